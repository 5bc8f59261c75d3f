import json
import os
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from torch import nn

from neurolsc import LIF, ALIFPlus, ALIFPlusMinus, Cell, Network, load, neurons, save, surrogate
from neurolsc.files import read_tree, write_tree
from neurolsc.neurons.cell import CELLS, SURROGATES
from neurolsc.untrusted.tensors import sealed
from tests.bits import assert_same_bits

NETWORKS = {
    "paper": lambda: Network([ALIFPlus(4, 3), ALIFPlusMinus(3, 5)], 2),
    "options": lambda: Network(
        [ALIFPlus(4, 3, reset="static", reset_gradient=True, recurrent_init="orthogonal", tau_theta=250.0)],
        2,
        layer_delay=0,
        readout_bias=True,
    ),
    "lif": lambda: Network([LIF(4, 3, threshold=0.7, tau_v=2.0, reset="zero")], 2),
    "lobes": lambda: Network([LIF(4, 3, spike=surrogate.MultiGaussian(0.3, 2.0, height=0.2, scale=4.0))], 2),
    "learnable": lambda: Network([LIF(4, 3, spike=surrogate.Arctan(0.3, 2.0, learnable=True))], 2),
    "per neuron": lambda: Network([LIF(4, 3, spike=surrogate.Gaussian(torch.tensor([0.1, 0.2, 0.3])))], 2),
    "learnable per neuron": lambda: Network(
        [LIF(4, 3, spike=surrogate.Logistic(torch.tensor([0.1, 0.2, 0.3]), learnable=True))], 2
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_comes_back_bit_by_bit_and_runs_alike(name: str, dtype: torch.dtype, tmp_path: Path):
    torch.manual_seed(0)
    network = NETWORKS[name]().to(dtype)
    with torch.no_grad():  # away from the starting values, which no constructor could give again
        for parameter in network.parameters():
            parameter.mul_(1 + 0.1 * torch.randn_like(parameter)).add_(1e-3)
        for cell in network.cells:  # enough input for spikes
            cell.get_buffer("b_v").copy_(torch.linspace(0, 4, cell.n_hidden))
    save(network, tmp_path / "n.safetensors")
    again = load(tmp_path / "n.safetensors")

    assert_same_bits(dict(network.state_dict()), dict(again.state_dict()))
    assert repr(again) == repr(network)
    x = (torch.rand(30, 8, 4) < 0.5).to(dtype)
    with torch.no_grad():
        ours, theirs = network.run(x), again.run(x)
    assert any(layer.any() for layer in ours.spikes)
    assert torch.equal(ours.logits, theirs.logits)


@pytest.mark.parametrize("name", sorted(SURROGATES))
def test_every_surrogate_can_be_saved(name: str, tmp_path: Path):
    network = Network([LIF(2, 3, spike=SURROGATES[name](0.3, 1.7))], 2)
    save(network, tmp_path / "n")
    assert repr(load(tmp_path / "n")) == repr(network)


def test_the_registries_name_every_cell_and_surrogate_of_the_package():
    public = {c for c in vars(neurons).values() if isinstance(c, type) and issubclass(c, Cell)}
    assert {c for c in public if not c.__abstractmethods__} == set(CELLS.values())
    assert set(surrogate.__all__) - {"Surrogate"} == set(SURROGATES)


def test_a_loaded_network_can_be_trained_but_for_what_was_frozen(tmp_path: Path):
    network = Network([ALIFPlus(4, 3)], 2)
    network.cells[0].get_parameter("log_tau_theta").requires_grad_(False)
    save(network, tmp_path / "n")
    trainable = {name for name, p in load(tmp_path / "n").named_parameters() if p.requires_grad}
    assert trainable == {name for name, _ in network.named_parameters()} - {"cells.0.log_tau_theta"}


def test_loading_draws_no_random_numbers_and_is_free_of_the_default_dtype(tmp_path: Path):
    network = Network([ALIFPlus(4, 3)], 2)
    save(network, tmp_path / "n")
    before = torch.random.get_rng_state()
    torch.set_default_dtype(torch.float64)
    try:
        again = load(tmp_path / "n")
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert_same_bits(dict(network.state_dict()), dict(again.state_dict()))


def test_a_loaded_network_is_independent_of_its_file(tmp_path: Path):
    save(Network([LIF(4, 3)], 2), tmp_path / "n")
    network = load(tmp_path / "n")
    before = {name: value.clone() for name, value in network.state_dict().items()}
    with open(tmp_path / "n", "r+b") as file:
        file.write(b"\0" * os.path.getsize(tmp_path / "n"))
    assert_same_bits(before, dict(network.state_dict()))


class OtherCell(LIF):
    """A cell that no file knows."""


def test_what_a_file_cannot_describe_is_refused_when_it_is_saved(tmp_path: Path):
    path = tmp_path / "n"
    with pytest.raises(
        ValueError,
        match=r"OtherCell is not a known cell; known are ALIFLowPass, ALIFPlus, ALIFPlusMinus, ALIFPositive, CubaLIF",
    ):
        save(Network([OtherCell(2, 3)], 2), path)
    with pytest.raises(TypeError, match="only surrogates of neurolsc"):
        save(Network([LIF(2, 3, spike=torch.sign)], 2), path)

    extended = Network([LIF(2, 3)], 2)
    extended.extra = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"extra\.bias, extra\.weight would differ"):
        save(extended, path)

    spike = surrogate.FastSigmoid(learnable=True)
    with pytest.raises(ValueError, match="share a parameter"):
        save(Network([LIF(2, 3, spike=spike), LIF(3, 3, spike=spike)], 2), path)
    assert not path.exists()


def rewrite(path: Path, **changes: Any) -> None:
    """Change the header or, under its own keys, the layout of a saved network."""
    with safe_open(path, "pt") as file:
        header = dict(file.metadata())
        tensors = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118
    content = json.loads(header["content"])
    for key, value in changes.items():
        if key in header:
            header[key] = value
        else:
            content[key] = value
    header["content"] = changes.get("content", json.dumps(content))
    del header["crc32"]
    path.write_bytes(b"".join(sealed(tensors, header)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"cells": [{"class": "os.system", "n_in": 4, "n_hidden": 3}]},
            "unknown cell 'os.system'; known are",
        ),
        (
            {"cells": [{"class": "LIF", "n_in": 4, "n_hidden": 3, "spike": {"name": "eval"}}]},
            "unknown surrogate 'eval'; known are Arctan",
        ),
        ({"cells": [{"class": "LIF", "n_in": 4, "n_hidden": 3, "colour": 1}]}, "colour"),
        ({"cells": [{"class": "LIF", "n_in": 4, "n_hidden": 3, "reset": "no"}]}, "reset"),
        (
            {"cells": [{"class": "LIF", "n_in": 3, "n_hidden": 4}]},
            r"cells\.0\.w_in is torch\.float32 \(3, 4\), its layout",
        ),
        ({"cells": [{"class": "LIF", "n_in": 4, "n_hidden": 12_000}]}, "asks for 144000000 numbers at once"),
        ({"cells": [{"class": "ALIFPlus", "n_in": 4, "n_hidden": 3}]}, r"no tensor cells\.0\.log_tau_theta"),
        ({"cells": 3}, "does not describe a network"),
        ({"frozen": ["nothing"]}, "nothing"),
        ({"format": "1", "version": "9.9"}, "format 1, written by neurolsc 9.9; this version reads format 2"),
        ({"neurolsc": "tree"}, "does not hold a network of neurolsc, but a tree"),
        ({"content": "{"}, "Expecting property name"),
    ],
)
def test_a_file_that_asks_for_something_unknown_is_refused_by_name(
    changes: dict[str, Any], message: str, tmp_path: Path
):
    path = tmp_path / "changed.safetensors"
    save(Network([LIF(4, 3)], 2), path)
    rewrite(path, **changes)
    with pytest.raises(ValueError, match=r"changed\.safetensors(.|\n)*" + message):
        load(path)


@pytest.mark.parametrize("read", [load, read_tree])
def test_files_that_are_damaged_or_something_else_are_refused_by_name(read: Any, tmp_path: Path):
    path = tmp_path / "broken.safetensors"
    if read is load:
        save(Network([LIF(4, 3)], 2), path)
    else:
        write_tree(path, {"a": torch.zeros(50)})
    whole = path.read_bytes()
    header_end = 8 + int.from_bytes(whole[:8], "little")
    for content in (b"", b"abc", whole[:-1], whole[: header_end - 5], b"\xff" * 100, b"PK\x03\x04" + whole):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"broken\.safetensors: damaged"):
            read(path)
    path.write_bytes(safetensors.torch.save({"a": torch.zeros(2)}))
    with pytest.raises(ValueError, match=r"broken\.safetensors: does not hold .* but something else"):
        read(path)
    with pytest.raises(FileNotFoundError, match=r"missing\.safetensors"):
        read(tmp_path / "missing.safetensors")
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        read(tmp_path)
