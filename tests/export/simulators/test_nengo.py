"""The exported file in nengo-loihi's emulator; slow tests need `make nengo-env`."""

import os
import re
import stat
from pathlib import Path

import pytest
import torch

from neurolsc import Network
from neurolsc.export import ask_nengo_loihi, quantize, read_netx, to_netx, verify, write_netx
from neurolsc.export.loihi.fixed_point import moments
from neurolsc.export.simulators import find_python, simulate
from tests.export.networks import KINDS, lif, make, spikes

ROOT = Path(__file__).parents[3]


def python_of(name, variable: str, folder: str) -> Path:
    try:
        return find_python(name, os.environ.get(variable) or ROOT / folder / "bin" / "python")
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture
def nengo() -> Path:
    """The Python of this checkout's environment, or the one that NEUROLSC_NENGO_PYTHON names."""
    return python_of("nengo-loihi", "NEUROLSC_NENGO_PYTHON", ".nengo-env")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "ALIF" not in kind])
def test_every_spike_is_the_emulators_over_250_steps(kind, nengo, tmp_path):
    to_netx(make(kind), tmp_path / "a.net", spikes(250, 2))
    opinion = ask_nengo_loihi(tmp_path / "a.net", spikes(250, 2), python=nengo)
    print(opinion)
    assert opinion.exact
    assert all(layer.spikes > 1000 for layer in opinion.layers)
    assert re.match(r"nengo-loihi 1\.1\.\d, nengo .* beside the integers, 2 samples of 25[01] steps", str(opinion))


@pytest.mark.slow
def test_every_current_and_voltage_is_the_emulators_too(nengo, tmp_path):
    for kind in ("bias, subtract", "recurrent, zero"):
        path = tmp_path / f"{kind}.net"
        to_netx(make(kind), path)
        quantized = read_netx(path)
        x = quantized.padded(spikes(100, 1))
        result = simulate("nengo-loihi", nengo, path, x, 60)
        for t, moment in enumerate(moments(quantized.layers, x)):
            for i, state in enumerate(moment.states, start=1):
                for name in ("u", "v"):
                    assert torch.equal(getattr(state, name), torch.from_numpy(result[f"{name}_{i}"][t]).double())


@pytest.mark.slow
def test_a_recurrent_network_of_700_256_20_is_the_emulators(nengo, tmp_path):
    torch.manual_seed(0)
    x = spikes(250, 1, 700, rate=0.03)
    to_netx(Network([lif(700, 256, bias=0.02)], 20), tmp_path / "a.net", x)
    opinion = ask_nengo_loihi(tmp_path / "a.net", x, python=nengo)
    assert opinion.exact
    assert opinion.layers[0].spikes > 1000


@pytest.mark.slow
def test_the_emulator_finds_an_input_that_is_too_large_for_the_chip(nengo, tmp_path):
    torch.manual_seed(0)
    cell = lif(400, reset="zero")
    with torch.no_grad():
        cell.w_in.fill_(1.0)
    quantized = quantize(Network([cell], 4))
    x = torch.ones(5, 1, 400)
    assert quantized.run(x).extremes[0].large_inputs > 0
    write_netx(quantized, tmp_path / "a.net")
    opinion = ask_nengo_loihi(tmp_path / "a.net", x, python=nengo)
    assert not opinion.exact
    assert "Overflow in q0" in str(opinion)


@pytest.mark.slow
def test_verify_and_the_report_say_what_nengo_loihi_found(nengo, tmp_path, monkeypatch):
    lava = python_of("Lava", "NEUROLSC_LAVA_PYTHON", ".lava-env")
    monkeypatch.setenv("NEUROLSC_NENGO_PYTHON", str(nengo))
    network, x = make("recurrent, subtract"), spikes(100, 2)
    report = to_netx(network, tmp_path / "a.net", x)
    found = verify(tmp_path / "a.net", x, python=lava)
    assert found.exact
    assert [opinion.exact for opinion in found.opinions] == [True]
    told = str(report.with_simulator(network, x, found))
    print(told)
    assert re.search(r"nengo-loihi 1\.1\.\d.*100\.0000% equal", told)


def test_an_alif_is_not_asked(tmp_path):
    to_netx(make("ALIF below LIF"), tmp_path / "a.net")
    opinion = ask_nengo_loihi(tmp_path / "a.net", spikes(5, 1), python="nowhere")
    assert (
        str(opinion) == "nengo-loihi: not run: layer 1 is an ALIF, and a compartment of Loihi 1 has a fixed threshold."
    )
    assert not opinion.exact


def test_without_an_environment_the_reason_names_the_command(tmp_path, monkeypatch):
    monkeypatch.delenv("NEUROLSC_NENGO_PYTHON", raising=False)
    monkeypatch.chdir(tmp_path)
    to_netx(make("recurrent, zero"), "a.net")
    opinion = ask_nengo_loihi("a.net", spikes(5, 1))
    assert re.search(
        r"not run: no nengo-loihi environment: \.nengo-env/bin/python is not there\. `make nengo-env`", str(opinion)
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("echo no such module; exit 3", r"failed on .*a\.net:\nno such module"),
        ("sleep 60", r"did not finish .* in 0\.5 s"),
    ],
)
def test_an_emulator_that_fails_or_hangs_is_a_reason(text, message, tmp_path):
    to_netx(make("recurrent, zero"), tmp_path / "a.net")
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{text}\n")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    opinion = ask_nengo_loihi(tmp_path / "a.net", spikes(5, 1), python=python, timeout=0.5)
    assert re.search(rf"nengo-loihi: not run: nengo-loihi {message}", str(opinion))
