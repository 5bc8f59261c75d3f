"""What holds of every initialiser: seeds, frozen parameters, dtypes, modes, other libraries, refusals, texts."""

import copy
from dataclasses import dataclass

import pytest
import snntorch
import torch
from torch import Tensor, nn

from neurolsc import LIF, Network, diagnose, init, wrap
from neurolsc.init import (
    LSC,
    LSUV,
    Chain,
    Default,
    FiringRate,
    FluctuationDriven,
    Glorot,
    Initialiser,
    LayerwiseScaling,
    LSCLyapunov,
    LSCSingular,
    Orthogonal,
    Relay,
    named,
    register,
)
from neurolsc.init.base import INITIALISERS
from neurolsc.stability.conditions import Finding
from tests.init.networks import N_IN, NETWORKS, WIDTH, rates, spikes, weights
from tests.interop.layers import norse

SPECS = [
    "Default",
    "Glorot",
    "He",
    "Orthogonal",
    "LSUV",
    "FluctuationDriven",
    "ActivityPropagation",
    "IKUN",
    "FourConditions",
    "FiringRate(0.1)",
    "LSC(0.5, method='scale', samples=2, steps=4)",
    "LSCLyapunov(samples=2)",
    "LSCSingular(samples=2, steps=4)",
    "LayerwiseScaling(samples=2, steps=4)",
    "Relay",
    "Identity(rate=0.1)",
    "Orthogonal(2.0) + FiringRate(0.1)",
]
DRAWN = {"Glorot", "He", "Orthogonal", "LSUV", "FluctuationDriven", "ActivityPropagation", "IKUN"}


def few(seed: int = 1) -> Tensor:
    return spikes(20, 4, rate=0.3, seed=seed)


def test_every_known_initialiser_is_tried_here():
    public = {n for n in init.__all__ if n[0].isupper()} - {"Chain", "Initialiser", "InitReport", "LayerReport"}
    assert {name for name in INITIALISERS if any(name in spec for spec in SPECS)} == set(INITIALISERS) == public


@pytest.mark.parametrize("spec", SPECS)
def test_the_seed_alone_decides_and_the_readout_stays(spec):
    x, found, made, seeds = [few(), few(2)], [], [], (3, 3, 4) if spec in DRAWN else (3, 3)
    for seed in seeds:
        network = NETWORKS["ALIFPlus"]()
        torch.manual_seed(seed + len(made))  # torch's own generator stands elsewhere, and stays there
        state = torch.get_rng_state()
        found.append(named(spec).apply(network, x, seed=seed))
        assert torch.equal(torch.get_rng_state(), state)
        made.append(network)
    before, first, second, *others = (weights(n) for n in (NETWORKS["ALIFPlus"](), *made))
    assert all(isinstance(finding, Finding) and 1 <= finding.layer <= 2 for finding in found[0])
    assert found[0] == found[1]
    for key, value in first.items():
        assert torch.equal(value, second[key]), key
        assert value.isfinite().all()
        if key.startswith("readout"):
            assert torch.equal(value, before[key])
    changed = {key for key in first if not torch.equal(first[key], before[key])}
    assert bool(changed) is (spec != "Default")
    assert all(any(not torch.equal(first[key], other[key]) for key in changed) for other in others)


@pytest.mark.parametrize("spec", SPECS)
def test_frozen_parameters_dtype_and_modes_stay_and_what_is_no_network_is_refused(spec):
    network = NETWORKS["LIF"]().double().train()
    network.cells[1].eval()
    frozen = [network.cells[0].w_in, network.cells[1].w_rec]
    before = [matrix.requires_grad_(False).clone() for matrix in frozen]
    named(spec).apply(network, [few()], seed=1)
    assert all(map(torch.equal, frozen, before))
    assert {p.dtype for p in network.parameters()} == {torch.float64}
    assert rates(network, few())[0] > 0.001
    assert network.cells[0].training and not network.cells[1].training
    with pytest.raises(ValueError, match="there is no recurrent layer"):
        named(spec).apply(nn.Linear(N_IN, 3), [few()])  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.parametrize("spec", [s for s in SPECS if s not in ("Default", "FourConditions")])
def test_networks_of_norse_are_set_and_absent_connections_stay(spec):
    network, before = NETWORKS["norse"](), weights(NETWORKS["norse"]())
    named(spec).apply(network, [few()], seed=1)
    after = weights(network)
    assert any(not torch.equal(value, before[key]) for key, value in after.items())
    assert all(value.isfinite().all() for value in after.values())
    assert not any(cell.layer.recurrent_weights.diagonal().any() for cell in network.cells)


@pytest.mark.parametrize("spec", [s for s in SPECS if not s.startswith(("Default", "Identity"))])  # which leaves it
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
    if spec.startswith("LSC(") or "+" in spec:
        return  # pre-training has its own ways; a chain does one after the other
    with pytest.raises(TypeError, match="layer 2, a Mute,"):
        named(spec).apply(network, [few()], seed=0)
    assert all(torch.equal(value, before[key]) for key, value in weights(network).items())


@pytest.mark.parametrize(
    "make",
    [
        lambda: LSUV(variance=0.0),
        lambda: LSCSingular(target=0.0),
        lambda: LSCLyapunov(samples=0),
        lambda: LayerwiseScaling(depth=-1.0),
        lambda: Relay(drawn=-1),
        lambda: FluctuationDriven(sigma=-1.0),
    ],
)
def test_a_setting_out_of_range_is_refused_where_it_is_given(make):
    with pytest.raises(ValueError, match="must be"):
        make()


def test_inputs_that_do_not_fit_are_refused():  # as pre-training does: test_pretrain.py
    with pytest.raises(ValueError, match=r"inputs must be \(T, B, 40\), got \(20, 4, 7\)"):
        LSUV().apply(NETWORKS["LIF"](), [few()[..., :7]])
    with pytest.raises(ValueError, match="inputs must be finite"):
        FiringRate(0.1).apply(NETWORKS["LIF"](), [few() / 0])
    with pytest.raises(TypeError, match=r"x must be a tensor, a batch .*, got str"):
        LSUV().apply(NETWORKS["LIF"](), "x")  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", ["FiringRate(0.1)", "LayerwiseScaling", "Relay", "Relay(drawn=1)"])
def test_frozen_thresholds_are_refused_and_stay(spec):
    network = NETWORKS["ALIFPlus"]()
    network.cells[1].adaptation.requires_grad_(False)
    before = weights(network)
    with pytest.raises(ValueError, match="layer 2, a ALIFPlus, has frozen thresholds"):
        named(spec).apply(network, [few()])
    assert all(torch.equal(value, before[key]) for key, value in weights(network).items())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:LSNNRecurrent. at tau_adapt_inv")
@pytest.mark.parametrize(("text", "recurrent"), [("FiringRate(0.15)", False), ("Relay()", True)])
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
    assert not [finding for finding in diagnose(network, few()) if finding.layer == 3]


def test_spikes_without_a_finite_derivative_are_a_finding_and_no_relays(make_spikes):
    def network(spike) -> Network:
        torch.manual_seed(0)
        layers = [nn.Linear(20, 16), snntorch.Leaky(0.5, spike_grad=spike)]
        layers += [nn.Linear(16, 16), snntorch.Leaky(0.5, spike_grad=spike)]
        return wrap([*layers, nn.Linear(16, 3)])

    x, initialiser = make_spikes(T=12, B=8, N=20).float(), FiringRate(0.15)
    found = initialiser.apply(network(snntorch.surrogate.sigmoid(slope=25)), [x])
    assert sum("derivative of its surrogate is not finite" in f.problem for f in found) == 2
    without = network(lambda v: (v > 0).float())
    assert [f.layer for f in initialiser.apply(without, [x]) if f.problem == "its spikes have no derivative"] == [1, 2]
    before = copy.deepcopy(without.state_dict())
    with pytest.raises(ValueError, match=r"layer 1: its spikes have no derivative .*use fast_sigmoid or atan"):
        Relay().apply(without, [x])
    assert all(torch.equal(value, before[name]) for name, value in without.state_dict().items())


# ---- texts


@pytest.mark.parametrize(
    ("spec", "made"),
    [
        (" Default ( ) ", Default()),
        ("LSC('balanced', rule=\"paper\", kappa=False)", LSC("balanced", "paper", kappa=False)),
        ("FluctuationDriven(-0.5, alpha=1)", FluctuationDriven(-0.5, alpha=1)),
        ("Glorot+(Orthogonal+FiringRate(0.1))", Glorot() + Orthogonal() + FiringRate(0.1)),
    ],
)
def test_a_text_makes_the_object_and_the_object_its_text(spec, made):
    assert named(spec) == made
    assert named(str(made)) == made


def test_a_chain_is_flat():
    a, b, c = Glorot(), Orthogonal(), FiringRate(0.1)
    assert (a + b) + c == a + (b + c) == Chain((a, b, c))
    with pytest.raises(TypeError):
        a + "LSUV"  # type: ignore[operator]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("LSVU", r"unknown name LSVU; did you mean LSUV\? Write .* known are .*LSUV"),
        ("LSUV(varience=1)", "unexpected keyword argument 'varience'"),
        ("FiringRate(2)", r"rate must be .* in \(0, 1\), got 2"),
        ("LSC(rule='mine')", "rule must be one of 'default', "),
        *((spec, "is no initialiser") for spec in ("", "LSUV(\x1b[2J)", "LSUV() - Default()", "LSUV(open('x'))")),
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

    with pytest.raises(ValueError, match="unknown name Mine"):
        named("Mine(2)")
    try:
        assert register(Mine) is Mine
        assert named("Mine(2) + LSUV").parts[0] == Mine(2)
        with pytest.raises(ValueError, match="'Mine' is another initialiser already"):
            register(type("Mine", (Mine,), {"__module__": "elsewhere"}))
    finally:
        del INITIALISERS["Mine"]


def test_initialisers_of_earlier_settings_are_read_under_their_names_of_today():
    assert named("RateMatching(0.15)") == init.FiringRate(0.15)
    assert named("Orthogonal() + BySource(depth=0)") == named("Orthogonal() + LayerwiseScaling(depth=0)")
