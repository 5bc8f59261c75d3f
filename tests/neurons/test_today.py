"""The neurons of 2022 to 2025: their steps as published, their derivatives, their domains."""

import math
from collections.abc import Iterator

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

from neurolsc import Network, diagnose, load, match_firing_rates, save
from neurolsc.cli import app
from neurolsc.export import quantize, to_nir
from neurolsc.init import Relay
from neurolsc.neurons import BRF, PLIF, RF, TCLIF, EFAdLIF, ExactRF, RadLIF, SEAdLIF
from neurolsc.stability import below_threshold
from tests.neurons.steps import KINDS, layers

pytestmark = pytest.mark.usefixtures("float64")

every_kind = pytest.mark.parametrize("kind", KINDS)


def run(cell, x: Tensor) -> tuple[Tensor, list]:
    """Spikes (T, B, N) and all states of a run from rest."""
    state, spikes, states = cell.initial_state(x.shape[1]), [], []
    with torch.no_grad():
        for now in x:
            z, state = cell.step(now, state)
            spikes.append(z)
            states.append(state)
    assert 0.02 < torch.stack(spikes).mean() < 0.98
    return torch.stack(spikes), states


# ---- steps as published: the voltage and the spikes of each

Course = Iterator[tuple[Tensor, Tensor]]


def adlif(cell: EFAdLIF | SEAdLIF, x: Tensor) -> Course:
    alpha, beta = torch.exp(-1 / cell.tau_u), torch.exp(-1 / cell.tau_w)
    u, w, z = torch.zeros(3, 3, 6)
    for now in x:
        current = now @ cell.w_in.T + z @ cell.w_rec.T
        u, last = u * (1 - z), (u * (1 - z), z)
        u = alpha * u + (1 - alpha) * (current - w)
        z = (u > 1).to(u)
        yield u, z
        by, fired = last if isinstance(cell, EFAdLIF) else (u * (1 - z), z)  # w reads the last step, or this one
        w = beta * w + (1 - beta) * 120 * (cell.a * by + cell.b * fired)


def radlif(cell: RadLIF, x: Tensor) -> Course:
    alpha, beta = torch.exp(-1 / cell.tau_u), torch.exp(-1 / cell.tau_w)
    between = cell.w_rec * (1 - torch.eye(6))
    u, w, z = torch.zeros(3, 3, 6)
    for now in x:
        w = beta * w + cell.a * u + cell.b * z
        u = alpha * (u - z) + (1 - alpha) * (now @ cell.w_in.T + z @ between.T - w)
        z = (u > 1).to(u)
        yield u, z


def brf(cell: BRF, x: Tensor) -> Course:
    u, v, q, z = torch.zeros(4, 3, 6)
    p = (-1 + torch.sqrt(1 - (0.01 * cell.omega) ** 2)) / 0.01
    for now in x:
        b = p - cell.damping - q
        i = now @ cell.w_in.T + z @ cell.w_rec.T
        u, v = u + 0.01 * (b * u - cell.omega * v + i), v + 0.01 * (cell.omega * u + b * v)
        z = (u - 1 - q > 0).to(u)
        yield u, z
        q = 0.9 * q + z


def tclif(cell: TCLIF, x: Tensor) -> Course:
    cell.c.data = torch.tensor([0.4, -0.3])
    first, second = torch.sigmoid(cell.c)
    d, v, z = torch.zeros(3, 3, 6)
    for now in x:
        d = d - first * v + now @ cell.w_in.T + z @ cell.w_rec.T
        v = v + second * d
        z = (v > 1).to(v)
        yield v, z
        d, v = d - 0.5 * z, v - z


def exact_rf(cell: ExactRF, x: Tensor) -> Course:
    factor = torch.exp((-cell.damping + 1j * cell.omega) * cell.dt)
    u, z = torch.zeros(3, 6, dtype=torch.complex128), torch.zeros(3, 6)
    for now in x:
        u = factor * (u - z) + now @ cell.w_in.T + z @ cell.w_rec.T
        z = (u.real > 1).double()
        yield u.real, z


@pytest.mark.parametrize(
    ("cell", "gain", "formula"),
    [
        (lambda: EFAdLIF(30, 6), 40, adlif),
        (lambda: SEAdLIF(30, 6), 40, adlif),
        *((lambda p=p: RadLIF(30, 6, parametrisation=p), 40, radlif) for p in ("sparch", "cadlif", "silif")),
        (lambda: BRF(30, 6), 150, brf),
        (lambda: TCLIF(30, 6), 2, tclif),
        (lambda: ExactRF(30, 6), 3, exact_rf),
    ],
)
def test_steps_are_those_of_the_paper(cell, gain, formula, make_spikes):
    cell, x = cell(), make_spikes(T=100, B=3)
    cell.w_in.data.mul_(gain)
    voltages, wanted = map(torch.stack, zip(*formula(cell, x), strict=True))
    spikes, states = run(cell, x)
    found = torch.stack([state.v if formula is tclif else state.u for state in states])
    torch.testing.assert_close(found, voltages)
    assert torch.equal(spikes, wanted)  # rounding turns none: over 40 seeds no voltage is within 1e-9 of its threshold


@pytest.mark.parametrize("hard", [True, False])
def test_plif_is_spikingjellys(hard, make_spikes):
    neuron = pytest.importorskip("spikingjelly.activation_based.neuron")
    theirs = neuron.ParametricLIFNode(init_tau=3.0, v_reset=0.0 if hard else None, store_v_seq=False).double()
    cell, x = PLIF(30, 6, tau=3.0, hard_reset=hard), make_spikes(T=60, B=3)
    cell.w_in.data.mul_(6)
    cell.w_rec.data.zero_()
    spikes, _ = run(cell, x)
    with torch.no_grad():
        expected = torch.stack([theirs(now @ cell.w_in.T) for now in x])
    assert torch.equal(spikes, expected)


@every_kind
def test_a_saved_network_comes_back_with_its_settings(kind, tmp_path, make_spikes):
    network, x = layers(kind), make_spikes(T=15, B=2)
    save(network, tmp_path / "n")
    again = load(tmp_path / "n")
    assert repr(again) == repr(network)
    with torch.no_grad():
        assert torch.equal(again(x), network(x))


def test_a_and_b_are_read_within_their_ranges_unless_they_are_free():
    for cell in (SEAdLIF(3, 4), RadLIF(3, 4, parametrisation="cadlif")):
        cell.a.data.fill_(-3.0)
        assert (cell.coefficients()[2] == 0).all()
        cell.clamp = False
        assert (cell.coefficients()[2] < 0).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EFAdLIF(3, 4, tau_u_range=(0, 5)), r"tau_u_range must be two positive, finite .*\(0, 5\)"),
        (lambda: EFAdLIF(3, 4, a_range=(1, 0)), "a_range must be two finite numbers, the lower one first"),
        (lambda: EFAdLIF(3, 4, a_range=(0, 1, 2)), r"a_range must be two numbers, .*\(0, 1, 2\)"),
        (lambda: EFAdLIF(3, 4, a_range=0.5), r"a_range must be two numbers, .*0\.5"),
        (lambda: SEAdLIF(3, 4, q=-1.0), "q must be positive"),
        (lambda: RadLIF(3, 4, **{"parametrisation": "adlif"}), "parametrisation must be one of 'sparch'"),
        (lambda: RF(3, 4, omega_range=(5, 120)), r"dt omega must be at most 1, .*up to 120 with dt 0\.01"),
        (lambda: BRF(3, 4, damping_range=(-1, 1)), "damping_range must not be negative"),
        (lambda: ExactRF(3, 4, dt_range=(0, 1)), "dt_range must be two positive"),
        (lambda: ExactRF(3, 4, omega=math.nan), "omega must be finite, got nan"),
        (lambda: ExactRF(3, 4, omega=-math.inf), "omega must be finite, got -inf"),
        (lambda: PLIF(3, 4, tau=1.0), "tau must be above 1 step"),
        (lambda: TCLIF(3, 4, gamma=-0.5), "gamma must be zero or positive"),
    ],
)
def test_parameters_outside_of_a_domain_are_refused_by_name(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


@pytest.mark.slow
@every_kind
def test_initialisations_rates_and_diagnoses_take_every_kind(kind, make_spikes):
    x = make_spikes(T=30, B=4)
    network = layers(kind, width=12)
    Relay().apply(network, [x])
    reached = match_firing_rates(network, x, [0.15] * 2, tolerance=math.inf)
    assert all(0 < rate < 1 for rate in reached)
    diagnosis = diagnose(network, x, samples=2, steps=4)
    unstable = [finding for finding in diagnosis if finding.name == "unstable below threshold"]
    outside = [below_threshold(cell).outside for cell in network.cells]
    assert [finding.layer for finding in unstable] == [i for i, share in enumerate(outside, 1) if share > 0.01]
    assert bool(unstable) or kind not in ("RadLIF", "RF")


@pytest.mark.slow
def test_a_diagnosis_says_which_bound_is_broken_and_what_to_do():
    torch.manual_seed(0)
    network = Network([RadLIF(5, 200)], 2)
    (finding,) = [f for f in diagnose(network, torch.rand(8, 2, 5)) if f.name == "unstable below threshold"]
    share = (network.cells[0].a < torch.exp(-1 / network.cells[0].tau_w) - 1).double().mean().item()
    assert str(finding).startswith(
        f"layer 1: {share:.0%} of its neurons are unstable below threshold (a < -(1 - beta); radii up to 1."
    )
    assert finding.cure.startswith("clamp a to -(1 - beta) or more")


@every_kind
def test_no_chip_holds_these_neurons(kind):
    network = layers(kind)
    name = type(network.cells[0]).__name__
    for export in (quantize, lambda network: to_nir(network, dt=1e-3)):
        with pytest.raises(TypeError, match=f"layer 1 is a {name}; only LIF, CubaLIF, ALIF, LI can be exported"):
            export(network)


@pytest.mark.long
@pytest.mark.parametrize("cell", ["RadLIF", "PLIF"])  # with and without a region to draw
def test_the_command_line_trains_and_measures_them(cell, tmp_path):
    digits = ["--data", "shd", "--channels", "70", "--dt", "0.05", "--repeat", "1"]
    flags = ["--width", "16", "--epochs", "1", "--lr", "0.01", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, ["train", "--cell", cell, *digits, *flags])
    assert done.exit_code == 0, done.output
    assert "best epoch 1" in done.output
    done = CliRunner().invoke(app, ["radii", str(tmp_path / "run"), "--out", str(tmp_path / "radii")])
    assert done.exit_code == 0, done.output
    assert "below threshold  mean radius" in done.output
    assert (tmp_path / "radii" / "neurons.png").exists() == (cell != "PLIF")
