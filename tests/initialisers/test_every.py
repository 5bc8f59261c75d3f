"""What holds of every initialiser: seeds, torch's own generator, frozen parameters, dtypes, modes, refusals."""

from dataclasses import dataclass
from typing import Any

import pytest
import snntorch
import torch
from torch import Tensor, nn

from neurolsc import LIF, Network, diagnose, initialisers, wrap
from neurolsc.initialisers import (
    IKUN,
    LSC,
    LSUV,
    Chain,
    Default,
    FluctuationDriven,
    FourConditions,
    Glorot,
    Initialiser,
    Orthogonal,
    RateMatching,
    Relay,
    named,
    register,
)
from neurolsc.initialisers.base import INITIALISERS
from neurolsc.neurons.cell import weight_matrices
from neurolsc.stability.findings import Finding
from tests.initialisers.networks import N_IN, NETWORKS, WIDTH, rates, spikes, weights
from tests.interop.layers import norse

SPECS = [
    "Default",
    "Glorot",
    "He",
    "Orthogonal(inputs=True)",
    "LSUV",
    "FluctuationDriven",
    "ActivityPropagation",
    "IKUN",
    "FourConditions((1, 2))",
    "RateMatching(0.1)",
    "LSC(0.5, method='scale', samples=2, steps=4)",
    "LSC(0.5, max_steps=3, samples=2, steps=4)",
    "LSCLyapunov(samples=2)",
    "LSCSingular(samples=2, steps=4)",
    "BySource(samples=2, steps=4)",
    "Relay",
    "Orthogonal(2.0) + RateMatching(0.1)",
]
DRAWN = {"Glorot", "He", "Orthogonal(inputs=True)", "LSUV", "FluctuationDriven", "ActivityPropagation", "IKUN"}


def test_every_known_initialiser_is_tried_here():
    tried = {name for name in INITIALISERS if any(name in spec for spec in SPECS)}
    assert (
        tried
        == set(INITIALISERS)
        == {n for n in initialisers.__all__ if n[0].isupper()} - {"Chain", "Initialiser", "StartReport"}
    )


def few(seed: int = 1) -> Tensor:
    return spikes(20, 4, rate=0.3, seed=seed)


def pairs(specs: list[str], *names: str) -> list[Any]:
    """Specs by networks; those slow that pre-train, or run layers of other libraries."""
    slow = {(s, n) for s in specs for n in names if s.startswith("LSC(") or n in ("snntorch", "norse")}
    return [pytest.param(s, n, marks=pytest.mark.slow if (s, n) in slow else ()) for s in specs for n in names]


@pytest.mark.parametrize(("spec", "name"), pairs(SPECS, "LIF", "ALIFPlus", "snntorch", "norse"))
def test_the_seed_alone_decides_and_the_readout_stays(spec, name):
    x, found, made = [few(), few(2)], [], []
    for seed in (3, 3, 4):
        network = NETWORKS[name]()
        torch.manual_seed(seed + len(made))  # torch's own generator stands elsewhere, and stays there
        state = torch.get_rng_state()
        found.append(named(spec).apply(network, x, seed=seed))
        assert torch.equal(torch.get_rng_state(), state)
        made.append(network)
    before, first, again, other = (weights(n) for n in (NETWORKS[name](), *made))
    assert all(isinstance(finding, Finding) and 1 <= finding.layer <= 2 for finding in found[0])
    assert found[0] == found[1]
    for key, value in first.items():
        assert torch.equal(value, again[key]), key
        assert value.dtype == before[key].dtype and value.isfinite().all()
        if key.startswith("readout"):
            assert torch.equal(value, before[key])
    changed = {key for key in first if not torch.equal(first[key], before[key])}
    assert bool(changed) is (spec != "Default")
    if spec in DRAWN:
        assert any(not torch.equal(first[key], other[key]) for key in changed)
    if not spec.startswith(("Default", "LSC(", "LSCSingular")):  # targets that may silence a layer
        assert rates(made[0], x[0])[0] > 0.001


@pytest.mark.parametrize(("spec", "name"), pairs([s for s in SPECS if "Rate" not in s], "ALIFPlus", "norse"))
def test_frozen_parameters_stay(spec, name):
    network = NETWORKS[name]()
    (lower,) = weight_matrices(network.cells[0], "depth")
    (upper,) = weight_matrices(network.cells[1], "time")
    for cell, matrix in ((network.cells[0], lower), (network.cells[1], upper)):
        cell.get_parameter(matrix.name).requires_grad_(False)
    before = [matrix.weights.clone() for matrix in (lower, upper)]
    named(spec).apply(network, [few()], seed=1)
    assert all(torch.equal(matrix.weights, w) for matrix, w in zip((lower, upper), before, strict=True))


@pytest.mark.parametrize("spec", SPECS)
def test_dtype_and_modes_stay_and_what_is_no_network_is_refused(spec):
    network = NETWORKS["LIF"]().double().train()
    network.cells[1].eval()
    named(spec).apply(network, [few()], seed=1)
    assert {p.dtype for p in network.parameters()} == {torch.float64}
    assert rates(network, few())[0] > 0.001 or "LSC(0.5" in spec
    assert network.cells[0].training and not network.cells[1].training
    with pytest.raises(TypeError, match=r"network must be a neurolsc\.Network, got Linear"):
        named(spec).apply(nn.Linear(2, 3), [few()])  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", [s for s in SPECS if s != "Default"])
def test_a_cell_that_says_nothing_of_itself_is_refused_by_name_and_nothing_is_changed(spec):
    class Mute(LIF):
        scaled_parameters = ()

        def thresholds(self):
            return None

        def membrane(self):
            return None

    torch.manual_seed(0)
    network = Network([LIF(N_IN, WIDTH), Mute(WIDTH, WIDTH)], 4)
    before = weights(network)
    if spec.startswith("LSC(") or "Orthogonal(2.0)" in spec:
        return  # pre-training has its own ways; a chain does one after the other
    with pytest.raises(TypeError, match="layer 2, a Mute,"):
        named(spec).apply(network, [few()], seed=0)
    assert all(torch.equal(value, before[key]) for key, value in weights(network).items())


@pytest.mark.parametrize("spec", ["LSUV", "LSC"])
def test_inputs_that_do_not_fit_are_refused(spec):
    network = NETWORKS["LIF"]()
    for wrong, kind, message in (
        ([], ValueError, "at least one batch"),
        (few(), TypeError, r"got Tensor: give \[x\]"),
        ([(few().transpose(0, 1), torch.arange(4))], ValueError, r"4 labels and x \(4, 20, 40\), which is batch first"),
        ([few()[..., :7]], ValueError, r"inputs must be \(T, B, 40\), got \(20, 4, 7\)"),
        ([("x", 1)], TypeError, "got tuple of str"),
    ):
        with pytest.raises(kind, match=message):
            named(spec).apply(network, wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", ["RateMatching(0.1)", "BySource", "Relay", "Relay(drawn=1)"])
def test_frozen_thresholds_are_refused_and_stay(spec):
    network = NETWORKS["ALIFPlus"]()
    network.cells[1].adaptation.requires_grad_(False)
    before = weights(network)
    with pytest.raises(ValueError, match="layer 2, a ALIFPlus, has frozen thresholds"):
        named(spec).apply(network, [few()])
    assert all(torch.equal(value, before[key]) for key, value in weights(network).items())


def test_connections_that_do_not_exist_stay_absent():
    network = NETWORKS["norse"]()
    for spec in ("Glorot", "Orthogonal", "LSUV", "FluctuationDriven", "FourConditions((1, 2))", "LSCLyapunov"):
        named(spec).apply(network, [few()], seed=1)
        assert not any(cell.layer.recurrent_weights.diagonal().any() for cell in network.cells)


@pytest.mark.filterwarnings("ignore:LSNNRecurrent. at tau_adapt_inv")
@pytest.mark.parametrize("text", ["RateMatching(0.15)", "Relay()", "LSUV()"])
@pytest.mark.parametrize("recurrent", [False, True])
def test_norse_networks_with_a_leaky_integrator_at_the_end_are_set_and_it_stays(text, recurrent):
    torch.manual_seed(0)
    below = (
        [norse.LSNNRecurrent(N_IN, WIDTH), norse.LSNNRecurrent(WIDTH, WIDTH)]
        if recurrent
        else [norse.Lift(nn.Linear(N_IN, WIDTH)), norse.LIF(), norse.Lift(nn.Linear(WIDTH, WIDTH)), norse.LIF()]
    )
    readout = nn.Linear(WIDTH, 5)
    network = wrap(norse.SequentialState(*below, norse.Lift(readout), norse.LI()))
    before = readout.weight.clone()
    named(text).apply(network, [few()], seed=0)
    first, second, voltage = network.run(few()).spikes
    assert network.spiking == (0, 1)
    assert first.any() and second.any() and voltage.any()
    assert torch.equal(readout.weight, before)
    if text == "RateMatching(0.15)":
        assert second.mean().item() == pytest.approx(0.15, rel=0.1)
        found = diagnose(network, few())
        assert not [finding for finding in found if finding.layer == 3]


@pytest.mark.parametrize("start", [Relay(drawn=1), RateMatching(0.15)], ids=str)
def test_a_surrogate_whose_derivative_is_not_finite_is_a_finding(start, make_spikes):
    def network(spike) -> Network:
        torch.manual_seed(0)
        layers = [nn.Linear(20, 16), snntorch.Leaky(0.5, spike_grad=spike)]
        layers += [nn.Linear(16, 16), snntorch.Leaky(0.5, spike_grad=spike)]
        return wrap([*layers, nn.Linear(16, 3)])

    x = make_spikes(T=12, B=8, N=20).float()
    found = start.apply(network(snntorch.surrogate.sigmoid(slope=25)), [x])
    faults = [f for f in found if "derivative of its surrogate is not finite" in f.problem]
    assert faults and all("use fast_sigmoid or atan" in str(f) for f in faults)
    assert not any("surrogate" in f.problem for f in start.apply(network(snntorch.surrogate.atan()), [x]))


# ---- texts


@pytest.mark.parametrize(
    ("spec", "made"),
    [
        (" Default ( ) ", Default()),
        ("LSUV(orthonormal=False, variance=2)", LSUV(2, orthonormal=False)),
        ("LSC('balanced', rule=\"paper\", kappa=False)", LSC("balanced", "paper", kappa=False)),
        ("FluctuationDriven(-0.5, alpha=1)", FluctuationDriven(-0.5, alpha=1)),
        ("FourConditions((1, 3))", FourConditions((1, 3))),
        ("Glorot+(Orthogonal+RateMatching(0.1))", Glorot() + Orthogonal() + RateMatching(0.1)),
    ],
)
def test_a_text_makes_the_object(spec, made):
    assert named(spec) == made
    assert named(str(made)) == made


def test_an_object_has_a_text_and_a_chain_is_flat():
    assert [str(one) for one in (Default(), RateMatching(0.15), IKUN("v2"))] == [
        "Default",
        "RateMatching(rate=0.15)",
        "IKUN(version='v2')",
    ]
    assert str(Orthogonal(2.0) + LSC(0.7)) == "Orthogonal(gain=2.0) + LSC(target=0.7)"
    a, b, c = Glorot(), Orthogonal(), RateMatching(0.1)
    assert (a + b) + c == a + (b + c) == Chain((a, b, c))
    with pytest.raises(TypeError):
        a + "LSUV"  # type: ignore[operator]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("LSVU", "unknown initialiser LSVU; known are .*LSUV.*; did you mean LSUV?"),
        ("LSUV(varience=1)", "LSUV takes variance, orthonormal: .*unexpected keyword argument 'varience'"),
        ("RateMatching", "RateMatching takes rate, tolerance: .*missing 1 required"),
        ("RateMatching(2)", r"rate must be .* in \(0, 1\), got 2"),
        ("LSC(rule='mine')", "rule must be one of 'default', "),
        ("LSUV(**{'variance': 1})", "LSUV takes"),
        ("LSUV(\x1b[2J)", "is no initialiser"),
        *((spec, "is no initialiser") for spec in ("", "LSUV(", "LSUV() - Default()", "LSUV(open('x'))", "LSUV(*[1])")),
        *((spec, "is no initialiser") for spec in ("__import__('os').system('true')", "a.LSUV()", "[LSUV()]")),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_known_names(spec, message):
    with pytest.raises(ValueError, match=message) as error:
        named(spec)
    assert str(error.value).isprintable()


def test_ones_own_is_known_after_it_is_registered():
    @dataclass(frozen=True)
    class Mine(Initialiser):
        size: float = 1.0

        def apply(self, network, inputs, *, seed=0):
            return ()

    with pytest.raises(ValueError, match="unknown initialiser Mine"):
        named("Mine(2)")
    try:
        assert register(Mine) is Mine
        assert named("Mine(2) + LSUV").parts[0] == Mine(2)
        with pytest.raises(ValueError, match="'Mine' is another initialiser already"):
            register(type("Mine", (Mine,), {"__module__": "elsewhere"}))
    finally:
        del INITIALISERS["Mine"]
