"""Files in simulators: fakes, Lava (`make lava-env`) and nengo-loihi (`make nengo-env`)."""

import os
import re
import signal
import stat
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from neurolsc import Network, wrap
from neurolsc.export import quantize, read_netx, verify, write_netx
from neurolsc.export.netx import replay
from tests.export.networks import KINDS, N_IN, WIDTH, alif, lif, make, spikes
from tests.export.test_wrapped import MODELS

STEPS, SAMPLES = 40, 3
X = spikes(STEPS, SAMPLES)


def arrays(path: Path, x: torch.Tensor = X) -> dict[str, Any]:
    """Lava's output: our integers, and the readout's sums."""
    quantized = read_netx(path)
    made: dict[str, Any] = {"versions": np.array(["lava-nc 0", "a fake"])}
    for i, (z, states) in enumerate(replay(quantized.layers, quantized.padded(x)), start=1):
        made[f"spikes_{i}"] = z.numpy().astype(np.uint8)
        made |= {f"{name}_{i}": value.numpy().astype(np.int32) for name, value in states.items()}
    added = z @ quantized.readout.T
    late = torch.cat((torch.zeros_like(added[:1]), added[:-1])).cumsum(0)
    made[f"v_{i + 1}"] = (64 * late).numpy().astype(np.int32)  # far below 24 bits
    return made


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """Writes a network's file, and fakes a simulator with the right output; it, its arguments, and the file."""
    output, arguments, path = {}, {}, tmp_path / "a.net"

    def simulate(name, path, x):
        if name != "Lava":
            raise TimeoutError("too slow")
        arguments.update(x=x)
        return output

    monkeypatch.setattr(sys.modules["neurolsc.export.verify"], "simulate", simulate)

    def prepare(network: Network, x: torch.Tensor = X) -> tuple[dict[str, Any], dict[str, Any], Path]:
        write_netx(quantize(network), path)
        output.update(arrays(path, x))
        return output, arguments, path

    return prepare


@pytest.mark.parametrize("kind", ["subtract", "bias, subtract", "ALIF"])
def test_equal_spikes_states_and_sums_are_exact(kind, fake):
    _, arguments, path = fake(make(kind))
    found, integer = verify(path, X), read_netx(path).run(X)
    assert found.exact
    assert all(layer.spikes > 200 and layer.first_difference is None for layer in found.layers)
    assert torch.equal(found.logits, integer.logits)
    assert (found.steps, found.samples, found.tools) == (STEPS, SAMPLES, ("lava-nc 0", "a fake"))
    assert arguments["x"].shape[0] == STEPS + read_netx(path).latency
    reason = "layer 1 is an ALIF, and a compartment of Loihi 1 has a fixed threshold." if "ALIF" in kind else "too slow"
    assert found.not_run == (f"nengo-loihi: not run: {reason}",)


@pytest.mark.parametrize(
    ("kind", "what"),
    [("zero", "spikes_2"), ("zero", "u_2"), ("zero", "v_2"), ("ALIF", "theta_2"), ("zero", "v_3")],
)
def test_one_spike_state_or_sum_that_differs_is_found_at_its_layer_and_step(kind, what, fake):
    output, _, path = fake(make(kind))
    changed = output[what]
    changed[7, 1, 3] ^= 1
    found, share = verify(path, X), pytest.approx(1 - 1 / changed.size, abs=1e-12)
    assert not found.exact
    below, layer = found.layers[:2]
    assert (below.agreement, below.state_agreement, below.first_difference) == (1, 1, None)
    if what == "v_3":
        assert (layer.first_difference, found.readout_agreement, found.readout_difference) == (None, share, 7)
        return
    shares = (share, 1) if what == "spikes_2" else (1, share)
    assert (layer.agreement, layer.state_agreement, layer.first_difference) == (*shares, 7)
    assert f"layer 2: {layer.spikes} spikes, {layer.agreement:.4%} equal; states {layer.state_agreement:.4%}" in str(
        found
    )
    if what == "spikes_2":
        assert not torch.equal(found.logits, read_netx(path).run(X).logits)  # the simulator's, and ours


def test_without_an_environment_golden_samples_are_replayed_or_the_error_names_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("NEUROLSC_LAVA_PYTHON", "NEUROLSC_NENGO_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    write_netx(quantize(make("zero")), "a.net")
    with pytest.raises(FileNotFoundError, match=r"\.lava-env/bin/python is not there\. `make lava-env`"):
        verify("a.net", spikes(5, 1))
    monkeypatch.setenv("NEUROLSC_LAVA_PYTHON", "elsewhere/python")
    write_netx(quantize(make("zero")), "a.net", golden=spikes(20, 4))
    found = verify("a.net", spikes(5, 1))
    assert found.exact
    assert not found.simulated
    assert found.samples == 4
    assert "Lava: not run: no Lava environment: elsewhere/python is not there" in str(found)


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_when_the_time_is_up_all_that_was_started_is_killed(tmp_path, monkeypatch):
    write_netx(quantize(make("zero")), tmp_path / "a.net")
    hangs = script(tmp_path / "python", f"sleep 600 & echo $! > {tmp_path}/pid; wait")
    monkeypatch.setenv("NEUROLSC_LAVA_PYTHON", str(hangs))
    monkeypatch.setattr(sys.modules["neurolsc.export.verify"], "PER_SAMPLE", 0.5)
    with pytest.raises(TimeoutError, match=r"did not finish .*a\.net in 1 s"):
        verify(tmp_path / "a.net", spikes(5, 1))
    pid = int((tmp_path / "pid").read_text())
    for _ in range(50):
        status = Path(f"/proc/{pid}/stat")
        if not status.exists() or status.read_text().split()[2] == "Z":
            return
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("a process of the simulator outlived the time limit")


# the simulators themselves


def one_sign() -> Network:
    cells = [lif(), lif(WIDTH, WIDTH, reset="zero")]
    network = Network(cells, 4)
    with torch.no_grad():
        for cell in cells:
            cell.w_in.abs_().mul_(0.5)
            cell.w_rec.abs_().mul_(-1)
        network.readout.weight.abs_()
    return network


def at_the_limits(n_in: int, highest: float, gain: float) -> Network:
    cell = alif(n_in)
    with torch.no_grad():
        cell.adaptation.fill_(1.0)
        cell.theta_rest = torch.linspace(0.5, highest, cell.n_hidden)
        cell.w_in.abs_().mul_(gain)
        cell.w_rec.mul_(0.1)
    return Network([cell], 4)


EXPORTED = {
    **{kind: (partial(make, kind), spikes(150, 1)) for kind in KINDS},
    "of one sign": (one_sign, spikes(150, 1)),
    "thresholds beyond 65535": (partial(at_the_limits, N_IN, 30.0, 0.1), spikes(100, 1, rate=0.5)),
    "inputs near 32767": (partial(at_the_limits, 200, 1.0, 2.0), spikes(100, 1, 200, rate=0.5)),
    "snnTorch, integrator": (lambda: wrap(MODELS["Leaky, zero, then a Synaptic without reset"]()), spikes(60, 1)),
    "norse, integrator": (lambda: wrap(MODELS["LIF, then LI"]()), spikes(60, 1, rate=0.3)),
}


RARE = ("of one sign", "thresholds beyond 65535", "inputs near 32767")


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.long if kind in RARE else pytest.mark.slow) for kind in EXPORTED]
)
def test_every_spike_state_and_readout_is_the_simulators(kind, simulators, tmp_path):
    torch.manual_seed(0)
    build, x = EXPORTED[kind]
    network = quantize(build())
    write_netx(network, tmp_path / "a.net")
    found, extremes = verify(tmp_path / "a.net", x), network.run(x).extremes[0]
    print(found)
    assert all(layer.spikes > 20 and layer.first_difference is None for layer in found.layers)
    assert found.exact
    assert any(tool.startswith("lava-nc") for tool in found.tools)
    nengo = [re.match(r"nengo-loihi 1\.1\.\d", other.tools[0]) for other in found.others]
    assert any(nengo) or all("ALIF" in reason or "environment" in reason for reason in found.not_run)
    if kind == "thresholds beyond 65535":
        assert network.layers[0].threshold.max() > 65535
    if kind == "inputs near 32767":
        assert 30000 < extremes.drive < 32768
        assert extremes.overflows > 100  # clipped


@pytest.mark.slow
def test_nengo_loihi_finds_an_input_that_is_too_large_for_the_chip(simulators, tmp_path):
    torch.manual_seed(0)
    cell = lif(400, reset="zero")
    with torch.no_grad():
        cell.w_in.fill_(1.0)
    quantized = quantize(Network([cell], 4))
    x = torch.ones(5, 1, 400)
    assert quantized.run(x).extremes[0].overflows > 0
    write_netx(quantized, tmp_path / "a.net")
    found = str(verify(tmp_path / "a.net", x))
    assert "Overflow in q0" in found or "no nengo-loihi environment" in found
