"""The exported file in Lava's own simulator; slow tests need `make lava-env`."""

import os
import signal
import stat
import time
from pathlib import Path

import h5py
import pytest
import torch

from neurolsc import Network, scale_to_radius
from neurolsc.datasets import SpikeLatencyMNIST, collate, input_batches
from neurolsc.export import quantize, to_netx, verify, write_netx
from neurolsc.export.simulators import find_python
from tests.export.networks import KINDS, N_IN, alif, lif, make, spikes

ROOT = Path(__file__).parents[2]


@pytest.fixture
def lava() -> Path:
    """The Python of this checkout's environment, or the one that NEUROLSC_LAVA_PYTHON names."""
    try:
        return find_python("Lava", os.environ.get("NEUROLSC_LAVA_PYTHON") or ROOT / ".lava-env" / "bin" / "python")
    except FileNotFoundError as error:
        pytest.skip(str(error))


def assert_exact(network: Network, x: torch.Tensor, lava: Path, path: Path, *, fewest: int = 500) -> None:
    to_netx(network, path, x)
    found = verify(path, x, python=lava)
    print(found)
    assert all(layer.spikes > fewest for layer in found.layers)
    assert [layer.first_difference for layer in found.layers] == [None] * len(found.layers)
    assert found.exact
    assert any(tool.startswith("lava-nc") for tool in found.tools)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_spike_state_and_readout_sum_is_the_simulators_over_250_steps(kind, lava, tmp_path):
    assert_exact(make(kind), spikes(250, 1), lava, tmp_path / "a.net")


@pytest.mark.slow
def test_a_recurrent_network_of_700_256_20_is_exact(lava, tmp_path):
    torch.manual_seed(0)
    network = Network([lif(700, 256, bias=0.02)], 20)
    assert_exact(network, spikes(250, 1, 700, rate=0.03), lava, tmp_path / "a.net")


@pytest.mark.slow
@pytest.mark.parametrize("reset", ["zero", "subtract"])
def test_weights_of_one_sign_are_exact(reset, lava, tmp_path):
    torch.manual_seed(0)
    cell = lif(reset=reset)
    with torch.no_grad():
        cell.w_in.abs_().mul_(0.5)
        cell.w_rec.abs_().mul_(-1)
    network = Network([cell], 4)
    with torch.no_grad():
        network.readout.weight.abs_()
    assert_exact(network, spikes(100, 1), lava, tmp_path / "a.net", fewest=100)


def extreme_alif(n_in: int, highest: float, gain: float) -> Network:
    torch.manual_seed(0)
    cell = alif(n_in)
    with torch.no_grad():
        cell.adaptation.fill_(1.0)
        cell.theta_rest = torch.linspace(0.5, highest, cell.n_hidden)
        cell.w_in.abs_().mul_(gain)
        cell.w_rec.mul_(0.1)
    return Network([cell], 4)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["thresholds beyond 65535", "inputs near 32767, voltages at the end of 24 bits"])
def test_an_alif_is_exact_at_the_limits(case, lava, tmp_path):
    network = extreme_alif(N_IN, 30.0, 0.1) if "thresholds" in case else extreme_alif(200, 1.0, 2.0)
    x = spikes(100, 1, network.n_in, rate=0.5)
    quantized = quantize(network)
    extremes = quantized.run(x).extremes[0]
    if "thresholds" in case:
        assert quantized.layers[0].threshold.max() > 65535
    else:
        assert 30000 < extremes.drive[1] < 32768
        assert extremes.saturations > 100
    write_netx(quantized, tmp_path / "a.net")
    found = verify(tmp_path / "a.net", x, python=lava)
    assert found.layers[0].spikes > 20
    assert found.exact


@pytest.mark.slow
def test_a_pretrained_network_is_exact_on_20_digits(lava, tmp_path):
    torch.manual_seed(0)
    data = SpikeLatencyMNIST.embedded("train")
    network = Network([alif(data.n_in, 32), alif(32, 32)], data.n_classes)
    scale_to_radius(network, input_batches(data, 32, seed=0)[0], target=0.5, seed=0, progress=False)
    x, labels = collate([data[i] for i in range(20)])
    path = tmp_path / "digits.net"
    report = to_netx(network, path, x, labels=labels)
    found = verify(path, x, python=lava)
    assert all(layer.spikes > 500 for layer in found.layers)
    assert found.exact
    decided = report.with_simulator(network, x, found, labels).simulator
    assert decided is not None
    assert decided.accuracy_simulator == decided.accuracy_integer


@pytest.mark.slow
def test_what_lava_says_when_it_fails_is_passed_on(lava, tmp_path):
    path = tmp_path / "a.net"
    to_netx(make("recurrent, zero"), path)
    with h5py.File(path, "r+") as file:
        del file["layer/1/type"]
    with pytest.raises(RuntimeError, match=r"(?s)Lava failed on .*a\.net:\n.*object 'type' doesn't exist"):
        verify(path, spikes(5, 1), python=lava)


def test_without_an_environment_the_error_names_the_command(tmp_path, monkeypatch):
    monkeypatch.delenv("NEUROLSC_LAVA_PYTHON", raising=False)
    monkeypatch.chdir(tmp_path)
    write_netx(quantize(make("recurrent, zero")), "a.net")  # no golden samples that could be replayed
    with pytest.raises(FileNotFoundError, match=r"\.lava-env/bin/python is not there\. `make lava-env`"):
        verify("a.net", spikes(5, 1))
    with pytest.raises(FileNotFoundError, match="nowhere/python is not there"):
        verify("a.net", spikes(5, 1), python="nowhere/python")
    monkeypatch.setenv("NEUROLSC_LAVA_PYTHON", "elsewhere/python")
    with pytest.raises(FileNotFoundError, match="elsewhere/python is not there"):
        verify("a.net", spikes(5, 1))


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z" if Path("/proc").exists() else True


def test_when_the_time_is_up_all_that_was_started_is_killed(tmp_path):
    to_netx(make("recurrent, zero"), tmp_path / "a.net")
    hangs = script(tmp_path / "python", f"sleep 600 & echo $! > {tmp_path}/pid; wait")
    started = time.perf_counter()
    with pytest.raises(TimeoutError, match=r"did not finish .*a\.net in 1 s"):
        verify(tmp_path / "a.net", spikes(5, 1), python=hangs, timeout=1)
    assert time.perf_counter() - started < 30
    pid = int((tmp_path / "pid").read_text())
    for _ in range(50):
        if not alive(pid):
            break
        time.sleep(0.1)
    else:
        os.kill(pid, signal.SIGKILL)
        pytest.fail("a process of the simulator outlived the time limit")


def test_a_process_that_fails_is_quoted(tmp_path):
    to_netx(make("recurrent, zero"), tmp_path / "a.net")
    fails = script(tmp_path / "python", "echo no such module; exit 3")
    with pytest.raises(RuntimeError, match=r"a\.net:\nno such module"):
        verify(tmp_path / "a.net", spikes(5, 1), python=fails)


def test_input_that_is_no_spikes_is_refused_before_anything_runs(tmp_path):
    to_netx(make("recurrent, zero"), tmp_path / "a.net")
    with pytest.raises(ValueError, match="graded"):
        verify(tmp_path / "a.net", 0.5 * spikes(5, 1), python="nowhere")
