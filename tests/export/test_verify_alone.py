"""What verify says of spikes and states, with a simulator that says what it is told."""

import stat
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from neurolsc.export import ask_nengo_loihi, read_netx, to_netx, verify
from neurolsc.export.loihi.fixed_point import moments
from tests.export.networks import KINDS, make, spikes

STEPS, SAMPLES = 40, 3
X = spikes(STEPS, SAMPLES)


def answers(path: Path) -> dict[str, np.ndarray]:
    """What Lava would write: our integers, and the readout's sums as plain Python integers."""
    quantized = read_netx(path)
    run = list(moments(quantized.layers, quantized.padded(X)))
    said = {"versions": np.array(["lava-nc 0", "a fake"])}
    for i, layer in enumerate(zip(*(moment.spikes for moment in run), strict=True), start=1):
        said[f"spikes_{i}"] = torch.stack(layer).numpy().astype(np.uint8)
        states = [moment.states[i - 1] for moment in run]
        for name in states[0]._fields:
            said[f"{name}_{i}"] = torch.stack([getattr(s, name) for s in states]).numpy().astype(np.int32)
    count = len(quantized.layers)
    added = torch.from_numpy(said[f"spikes_{count}"]).double() @ quantized.readout.T
    late = torch.cat((torch.zeros_like(added[:1]), added[:-1])).cumsum(0)
    sums = [wrapped(64 * int(value)) for value in late.flatten()]
    said[f"v_{count + 1}"] = np.array(sums, np.int32).reshape(late.shape)
    return said


def wrapped(value: int) -> int:
    """In 24 bits, as often as it takes, and no more than 2^23 - 1 in modulus."""
    while value > 2**23:
        value -= 2**24
    while value <= -(2**23):
        value += 2**24
    return min(value, 2**23 - 1)


@pytest.fixture
def told(monkeypatch):
    """What the simulator will say; and how it was asked."""
    said, asked = {}, {}

    def simulate(name, python, path, x, timeout, *, progress=False):
        asked.update(name=name, x=x, timeout=timeout, progress=progress)
        return said

    room = sys.modules["neurolsc.export.verify"]
    monkeypatch.setattr(room, "simulate", simulate)
    monkeypatch.setattr(room, "find_python", lambda name, python=None: Path("python"))
    return said, asked


@pytest.mark.parametrize("kind", KINDS)
def test_equal_spikes_states_and_sums_are_exact(kind, told, tmp_path):
    said, asked = told
    path = tmp_path / "a.net"
    to_netx(make(kind), path, X)
    said.update(answers(path))
    found, integer = verify(path, X, timeout=7.0), read_netx(path).run(X)
    assert found.exact
    assert all(layer.agreement == layer.state_agreement == 1 for layer in found.layers)
    assert all(layer.spikes > 200 for layer in found.layers)
    assert [layer.first_difference for layer in found.layers] == [None] * len(integer.spikes)
    assert all(torch.equal(a.double(), b) for a, b in zip(found.spikes, integer.spikes, strict=True))
    assert torch.equal(found.logits, integer.logits)
    assert torch.equal(found.expected_logits, integer.logits)
    assert (found.steps, found.samples, found.tools) == (STEPS, SAMPLES, ("lava-nc 0", "a fake"))
    assert asked["timeout"] == 7.0
    assert asked["x"].shape[0] == STEPS + read_netx(path).blank_steps
    assert len(found.opinions) == 1
    assert found.opinions[0].exact == ("ALIF" not in kind)


def test_layers_that_get_a_delay_are_run_with_blank_steps_and_given_on_time(told, tmp_path):
    said, asked = told
    network = make("bias, zero")
    network.layer_delay = 0
    to_netx(network, tmp_path / "a.net", X)
    said.update(answers(tmp_path / "a.net"))
    found, integer = verify(tmp_path / "a.net", X), read_netx(tmp_path / "a.net").run(X)
    assert found.exact
    assert asked["x"].shape[0] == STEPS + 1
    assert not asked["x"][STEPS:].any()
    assert torch.equal(found.logits, integer.logits)
    assert found.spikes[0].shape == integer.spikes[0].shape == (STEPS, SAMPLES, network.cells[0].n_hidden)
    assert torch.equal(found.spikes[0].double(), integer.spikes[0])
    assert found.layers[0].spikes > integer.spikes[0].sum() > 200  # the neuron that stands for biases fires, too


@pytest.mark.parametrize("i", [1, 2])
def test_one_spike_that_differs_is_found_at_its_layer_and_step(i, told, tmp_path):
    said, _ = told
    path = tmp_path / "a.net"
    to_netx(make("recurrent, zero"), path)
    said.update(answers(path))
    flipped = said[f"spikes_{i}"]
    flipped[7, 1, 3] ^= 1
    found = verify(path, X)
    assert not found.exact
    layer, other = found.layers[i - 1], found.layers[2 - i]
    assert layer.first_difference == 7
    assert layer.agreement == pytest.approx(1 - 1 / flipped.size, abs=1e-12)
    assert (other.agreement, other.first_difference, layer.state_agreement) == (1, None, 1)
    assert f"layer {i}: {layer.spikes} spikes, {layer.agreement:.4%} equal; states 100.0000% equal, first" in str(found)
    if i == 2:  # the logits are the simulator's, the expected ones ours
        assert not torch.equal(found.logits, found.expected_logits)
        assert torch.equal(found.expected_logits, read_netx(path).run(X).logits)
        assert found.readout_agreement < 1


@pytest.mark.parametrize(("kind", "state"), [("recurrent, zero", "u_1"), ("bias, zero", "v_1"), ("ALIF", "theta_1")])
def test_one_state_that_differs_is_found(kind, state, told, tmp_path):
    said, _ = told
    path = tmp_path / "a.net"
    to_netx(make(kind), path)
    said.update(answers(path))
    said[state][5, 0, 2] += 1
    found = verify(path, X)
    assert not found.exact
    assert found.layers[0].agreement == 1
    assert found.layers[0].state_agreement == pytest.approx(1 - 1 / said[state].size, abs=1e-12)


def test_one_sum_of_the_readout_that_differs_is_found(told, tmp_path):
    said, _ = told
    path = tmp_path / "a.net"
    to_netx(make("recurrent, zero"), path)
    said.update(answers(path))
    said["v_3"][9, 2, 1] -= 64
    found = verify(path, X)
    assert not found.exact
    assert found.readout_agreement == pytest.approx(1 - 1 / said["v_3"].size, abs=1e-12)
    assert all(layer.agreement == 1 for layer in found.layers)


@pytest.mark.slow
def test_sums_that_wrap_more_than_once_are_followed(told, tmp_path, monkeypatch):
    said, _ = told
    path = tmp_path / "a.net"
    network = make("recurrent, zero")
    with torch.no_grad():
        network.readout.weight.abs_()
    to_netx(network, path)
    monkeypatch.setattr("tests.export.test_verify_alone.X", spikes(3000, 1))
    said.update(answers(path))
    found = verify(path, spikes(3000, 1))
    total = 64 * found.expected_logits.sum(0).max()
    assert total > 2**25  # left 24 bits at least twice
    assert said["v_3"].max() < 2**23
    assert found.readout_agreement == 1


def test_a_second_opinion_that_differs_is_no_error_of_the_first(told, tmp_path):
    said, _ = told
    path = tmp_path / "a.net"
    to_netx(make("bias, subtract"), path)
    said.update(answers(path))
    said["spikes_2"][3, 0, 0] ^= 1
    opinion = ask_nengo_loihi(path, X)
    assert not opinion.exact
    assert [layer.first_difference for layer in opinion.layers] == [None, 3]
    assert str(opinion).startswith(f"lava-nc 0, a fake beside the integers, {SAMPLES} samples of {STEPS + 1} steps: ")


@pytest.mark.parametrize("progress", [False, True])
def test_progress_tells_of_the_samples_that_were_run(progress, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NEUROLSC_NENGO_PYTHON", "nowhere")
    monkeypatch.setattr("neurolsc.progress.LOG_INTERVAL", 0.0)
    path, prepared = tmp_path / "a.net", tmp_path / "prepared.npz"
    to_netx(make("recurrent, zero"), path)
    np.savez(prepared, allow_pickle=False, **answers(path))
    python = tmp_path / "python"
    done = "echo 'neurolsc: a sample is done'"
    python.write_text(f'#!/bin/sh\n{done}; sleep 0.5; {done}\n{done}\ncp {prepared} "$5"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    found = verify(path, X, python=python, progress=progress)
    assert found.exact
    shown = capsys.readouterr().err
    assert ("3/3" in shown) == progress
    assert ("1/3" in shown) == progress  # while it ran
