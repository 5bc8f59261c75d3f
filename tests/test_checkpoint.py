import errno
import json
import math
import os
import resource
import stat
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor, nn

from neurolsc import LIF, ALIFPlus, ALIFPlusMinus, Cell, Network, load, neurons, save, surrogate
from neurolsc.checkpoint import CELLS, SURROGATES, atomic_write, read_tree, write_tree
from neurolsc.optimizer import adabelief_lookahead


def bits(t: Tensor) -> bytes:
    return t.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def assert_same_bits(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert list(a) == list(b)
    for name in a:
        assert a[name].dtype == b[name].dtype, name
        assert a[name].shape == b[name].shape, name
        assert bits(a[name]) == bits(b[name]), name


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
    with pytest.raises(ValueError, match=r"cell 'OtherCell'; known are ALIFPlus, ALIFPlusMinus, LIF"):
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
    path.write_bytes(safetensors.torch.save(tensors, header))


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
        ({"cells": [{"class": "LIF", "n_in": 4, "n_hidden": 7}]}, "size mismatch"),
        ({"cells": [{"class": "ALIFPlus", "n_in": 4, "n_hidden": 3}]}, "Missing key"),
        ({"cells": 3}, "does not describe a network"),
        ({"frozen": ["nothing"]}, "nothing"),
        ({"format": "2", "version": "9.9"}, "format 2, written by neurolsc 9.9; this version reads format 1"),
        ({"neurolsc": "tree"}, "does not hold a network of neurolsc, but a tree"),
        ({"content": "{"}, "description cannot be read"),
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
        with pytest.raises(ValueError, match=r"broken\.safetensors is damaged"):
            read(path)
    path.write_bytes(safetensors.torch.save({"a": torch.zeros(2)}))
    with pytest.raises(ValueError, match=r"broken\.safetensors does not hold .* but something else"):
        read(path)
    with pytest.raises(FileNotFoundError, match=r"missing\.safetensors"):
        read(tmp_path / "missing.safetensors")
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        read(tmp_path)


def assert_same_tree(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, Tensor):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert bits(a) == bits(b)
    elif isinstance(a, dict):
        assert list(a) == list(b)  # keys with their types, and the order
        assert [type(k) for k in a] == [type(k) for k in b]
        for key in a:
            assert_same_tree(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for left, right in zip(a, b, strict=True):
            assert_same_tree(left, right)
    elif isinstance(a, float):
        assert math.copysign(1, a) == math.copysign(1, b)
        assert a == b or (math.isnan(a) and math.isnan(b))
    else:
        assert a == b


TREE = {
    "plain": [None, True, False, 0, -3, 2**70, "", "ü\n\"'", 0.1, 1 / 3, -0.0, 5e-324, 1.7e308],
    "special": (math.inf, -math.inf, math.nan),
    "empty": [{}, [], ()],
    "tensor": "not a tensor",
    "look-alikes": {"tensor": "0", "list": [1], "dict": [[1, 2]]},
    (0, 1): {"slow": torch.randn(3, 2)},
    1: {None: torch.tensor(2.5), True: torch.empty(0, 3), 0.5: ((1, (2,)), "x")},
    "dtypes": [
        torch.tensor([0.1, math.nan, -0.0, math.inf], dtype=torch.float64),
        torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        torch.tensor([1.5, -2.0], dtype=torch.float16),
        torch.tensor([True, False]),
        torch.tensor([2**63 - 1]),
        torch.tensor([255], dtype=torch.uint8),
        torch.tensor([1 + 2j]),
    ],
    "strided": torch.arange(6.0).view(2, 3).T,
}


def test_a_tree_comes_back_with_all_its_bits_types_keys_and_order(tmp_path: Path):
    write_tree(tmp_path / "t", TREE)
    assert_same_tree(read_tree(tmp_path / "t"), TREE)


@pytest.mark.parametrize("tree", [None, 3, "x", [], torch.ones(2), {}])
def test_a_tree_may_be_a_single_leaf_or_empty(tree: Any, tmp_path: Path):
    write_tree(tmp_path / "t", tree)
    assert_same_tree(read_tree(tmp_path / "t"), tree)


def test_tensors_that_share_memory_come_back_apart(tmp_path: Path):
    a = torch.zeros(4, requires_grad=True)
    write_tree(tmp_path / "t", OrderedDict(a=a, part=a[1:3]))
    tree = read_tree(tmp_path / "t")
    assert type(tree) is dict
    tree["a"].fill_(1)
    assert tree["part"].tolist() == [0, 0]
    assert not tree["a"].requires_grad


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": [1, {2}]}, r"tree\['a'\]\[1\] cannot be stored.*got set"),
        ({"f": print}, r"tree\['f'\].*got builtin_function_or_method"),
        ({torch.zeros(1): 1}, "a key of tree.*tensor"),
        ({"a": torch.zeros(2).to_sparse()}, r"tree\['a'\].*sparse"),
        ({"a": torch.zeros(2, dtype=torch.complex128)}, r"tree\['a'\].*complex128"),
    ],
)
def test_what_a_tree_cannot_hold_is_refused_with_its_place(tree: Any, message: str, tmp_path: Path):
    with pytest.raises(TypeError, match=message):
        write_tree(tmp_path / "t", tree)
    assert list(tmp_path.iterdir()) == []


def test_a_tree_whose_structure_does_not_fit_its_tensors_is_damaged(tmp_path: Path):
    header = {"neurolsc": "tree", "format": "1", "version": "0", "content": ""}
    for content in ('{"tensor": "7"}', '{"dict": [1]}', '{"code": 1}', "[1]"):
        header["content"] = content
        (tmp_path / "t").write_bytes(safetensors.torch.save({"0": torch.zeros(1)}, header))
        with pytest.raises(ValueError, match="t is damaged: its structure"):
            read_tree(tmp_path / "t")


MAKERS = [adabelief_lookahead, torch.optim.Adam, lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9)]


@pytest.mark.parametrize("make", MAKERS, ids=["lookahead", "adam", "sgd"])
@pytest.mark.parametrize("done", [1, 4, 6, 8])
def test_an_optimizer_goes_on_from_its_state_as_if_nothing_had_happened(make: Any, done: int, tmp_path: Path):
    """Lookahead synchronises every 6 steps: its counter and its slow copies must come back."""

    def start() -> tuple[nn.Linear, Any]:
        torch.manual_seed(0)
        layer = nn.Linear(5, 3)
        return layer, make(layer.parameters(), 1e-2)

    def steps(layer: nn.Linear, optimizer: Any, numbers: range) -> None:
        for i in numbers:
            optimizer.zero_grad()
            layer(torch.full((2, 5), math.sin(i))).square().sum().backward()
            optimizer.step()

    through, optimizer = start()
    steps(through, optimizer, range(15))

    first, optimizer = start()
    steps(first, optimizer, range(done))
    write_tree(tmp_path / "t", {"layer": first.state_dict(), "optimizer": optimizer.state_dict()})
    second, optimizer = start()
    tree = read_tree(tmp_path / "t")
    second.load_state_dict(tree["layer"])
    optimizer.load_state_dict(tree["optimizer"])
    if make is adabelief_lookahead:
        assert [group["counter"] for group in optimizer.param_groups] == [done % 6]
        assert all("slow_params" in optimizer.state[p] for p in second.parameters())
    steps(second, optimizer, range(done, 15))

    assert_same_bits(dict(through.state_dict()), dict(second.state_dict()))


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path):
    path = tmp_path / "file"
    path.write_text("old")

    def fail(file: BinaryIO) -> None:
        file.write(b"half of the new")
        raise KeyError("the writer broke")

    with pytest.raises(KeyError, match="the writer broke"):
        atomic_write(path, fail)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """The nearest thing to a full disk that a test may cause: no file may grow beyond a size."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_a_write_that_runs_out_of_room_names_path_and_reason_and_cleans_up(tmp_path: Path):
    path = tmp_path / "big.safetensors"
    path.write_text("old")
    with (
        file_size_limit(4096),
        pytest.raises(OSError, match=r"could not write .*File too large.*big\.safetensors"),
    ):
        write_tree(path, {"a": torch.zeros(10_000)})
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_kind_of_error_and_its_number_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(FileNotFoundError, match=r"nowhere/n") as caught:
        save(Network([LIF(2, 2)], 2), tmp_path / "nowhere" / "n")
    assert caught.value.filename == str(tmp_path / "nowhere" / "n")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="file/n"):
        write_tree(tmp_path / "file" / "n", 1)
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError, match="folder"):
        write_tree(tmp_path / "folder", 1)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_tree(tmp_path / "n", 1)
    assert caught.value.errno == errno.ENOSPC
    assert {p.name for p in tmp_path.iterdir()} == {"file", "folder"}


@pytest.mark.skipif(os.geteuid() == 0, reason="for root no folder is read-only")
def test_a_folder_that_may_not_be_written_is_named(tmp_path: Path):
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError, match=str(tmp_path)):
        write_tree(tmp_path / "n", 1)


def test_a_written_file_has_the_usual_rights_and_a_link_stays_a_link(tmp_path: Path):
    plain, link = tmp_path / "plain", tmp_path / "link"
    plain.touch()
    link.symlink_to(plain)
    atomic_write(tmp_path / "new", lambda file: file.write(b"x"))
    atomic_write(link, lambda file: file.write(b"through"))
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
    assert link.is_symlink()
    assert plain.read_bytes() == b"through"


@pytest.mark.slow
def test_neither_a_reader_nor_a_kill_ever_sees_half_a_file(tmp_path: Path):
    path = tmp_path / "n"
    write_tree(path, torch.zeros(100_000))
    code = (
        "import sys, torch; from neurolsc.checkpoint import write_tree\n"
        "print('ready', flush=True); i = 0\n"
        "while True: i += 1; write_tree(sys.argv[1], torch.full((100_000,), float(i)))"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        for _ in range(20):  # while the writer is at work
            assert len(read_tree(path).unique()) == 1
        writer.kill()
    assert len(read_tree(path).unique()) == 1
