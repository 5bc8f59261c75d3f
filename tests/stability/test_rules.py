"""Targets, criteria and rules: means apart, deviations one by one, the derivative times kappa."""

import copy
import math
import re
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from neurolsc import (
    GRU,
    LIF,
    LRU,
    LSTM,
    ALIFLowPass,
    ALIFPlusMinus,
    Cell,
    Criteria,
    Network,
    PaperRule,
    TransitionRule,
    wrap,
)
from neurolsc.neurons import BRF, PLIF, RF
from neurolsc.neurons.cell import ScaledParameter
from neurolsc.neurons.weights import stored_parameter
from neurolsc.stability import below_threshold, rules, time_constants
from neurolsc.stability.pretrain import Measurement, Meter
from neurolsc.stability.rules import (
    LayerRadii,
    PretrainOptions,
    RadiusTarget,
    as_rule,
    radius_target,
    standard_error,
)
from tests.patterns import same_bits, weights

pytestmark = pytest.mark.usefixtures("float64")


def falling(steps: int, layers: int) -> tuple[float, float]:
    return 0.7, 0.7 / layers


# ---- targets


@pytest.mark.parametrize(
    ("target", "direction", "wanted"),
    [
        (1, "both", (1, 1)),
        (0.5, "time", (0.5, None)),
        ("balanced", "both", (100 / 102, 2 / 102)),
        ("balanced", "depth", (None, 2 / 102)),
        (falling, "both", (0.7, 0.35)),
        (lambda *_: (None, 0.2), "both", (None, 0.2)),
    ],
)
def test_a_number_or_a_function_is_a_target_and_one_direction_leaves_the_other(target, direction, wanted):
    assert radius_target(target, 100, 2, direction) == wanted


@pytest.mark.parametrize("bad", [0, math.nan, math.inf, True, "half", (0.5, 0.5)])
def test_other_targets_are_refused(bad):
    with pytest.raises(ValueError, match="target must be a radius in"):
        radius_target(bad, 100, 2)


@pytest.mark.parametrize("bad", [(0, 1), (0.5,), 0.5, ("a", 0.5), None])
def test_what_a_function_returns_in_place_of_two_radii_is_named(bad):
    with pytest.raises(ValueError, match=f"of which one may be None; got {re.escape(repr(bad))}"):
        radius_target(lambda *_: bad, 100, 2)


# ---- criteria


HALF = RadiusTarget(0.5, 0.5)


def measured(
    time: list[float],
    depth: list[float],
    spread: float = 0.0,
    *,
    goal: RadiusTarget = HALF,
    **options,
) -> list[LayerRadii]:
    """Radii of these means, half of them above and half below by the spread."""
    steps = torch.tensor([[-spread], [spread]])
    network = Network([LIF(3, 3), LIF(3, 3)], 2)
    meter = Meter(network, goal, PretrainOptions(**options), seed=0)
    return meter.counted(Measurement([m + steps for m in time], [m + steps for m in depth], []), 100)


def misses(radii: list[LayerRadii]) -> list[tuple[int, str]]:
    return [(r.layer, r.direction) for r in radii if not r.miss <= r.allowed]


def test_means_are_judged_per_layer_and_direction_and_never_pooled():
    # time 0.95 and depth 0.15 pool to 0.55, and so do layers 0.4 and 0.7
    goal, criteria = RadiusTarget(0.55, 0.55), Criteria(deviation=None, smoothed_deviation=None)
    assert misses(measured([0.95], [0.15], goal=goal)) == [(0, "time"), (0, "depth")]
    assert misses(measured([0.55, 0.55], [0.4, 0.7], goal=goal)) == [(0, "depth"), (1, "depth")]
    for off, met in ((0.021, False), (0.019, True)):
        assert criteria.met(measured([0.55, 0.55], [0.55, 0.55 + off], goal=goal), 0.0) is met
    assert misses(measured([math.nan], [0.5])) == [(0, "time")], "NaN is never on target"
    exact = Criteria(tolerance=0.0)
    assert misses(measured([0.5], [0.5 + 1e-9], criteria=exact)) == [(0, "depth")]


def test_balanced_target_is_judged_relative_to_the_target():
    goal = radius_target("balanced", 98, 2)
    for depth, met in ((0.02 * 1.039, True), (0.02 * 1.041, False), (0.0, False)):  # 0 is within the absolute one
        assert Criteria().met(measured([0.98], [depth], goal=goal), 0.0) is met


@pytest.mark.parametrize(
    ("spread", "smoothed", "switches", "met"),
    [
        (0.19, 0.19, {}, True),
        (0.21, 0.19, {}, False),
        (0.21, 0.19, {"deviation": None}, True),
        (0.19, 0.21, {}, False),
        (0.19, 0.21, {"smoothed_deviation": None}, True),
        (0.19, 0.19, {"deviation": 0.1}, False),
    ],
)
def test_deviations_are_required_one_by_one(spread, smoothed, switches, met):
    assert Criteria(**switches).met(measured([0.5], [0.5], spread), smoothed) is met


def drawn_means(samples: int, steps: int, *, along: float, apart: float) -> tuple[float, float]:
    """Deviation of a mean over many draws, and the root mean square of its stated errors."""
    random, means, stated, total = torch.Generator().manual_seed(0), [], [], 100
    course = along * torch.sin(torch.arange(total, dtype=torch.float64) / 15) + 0.5
    for _ in range(1000):
        edges = torch.arange(steps + 1) * total // steps
        at = edges[:-1] + (torch.rand(steps, generator=random) * edges.diff()).long()
        radii = course[at].unsqueeze(1) + apart * torch.randn(samples, generator=random, dtype=torch.float64)
        means.append(radii.mean().item())
        stated.append(standard_error(radii, total))
    return torch.tensor(means).std().item(), torch.tensor(stated).square().mean().sqrt().item()


@pytest.mark.parametrize("bad", [-1, math.nan, "a"])
def test_criteria_that_nothing_can_meet_are_refused(bad):
    for name in ("tolerance", "deviation", "smoothed_deviation"):
        with pytest.raises(ValueError, match=f"{name} must be zero or positive, got {bad!r}"):
            Criteria(**{name: bad})


def test_standard_error_is_the_deviation_of_means_over_draws():
    deviation, stated = drawn_means(8, 32, along=0.0, apart=0.1)
    assert stated == pytest.approx(deviation, rel=0.08)
    deviation, stated = drawn_means(4, 20, along=0.4, apart=0.0)
    assert deviation <= stated <= 4 * deviation  # neighbouring stretches differ more than the steps within one


# ---- rules


def a_state(cell: Cell) -> tuple[Tensor, ...]:
    return type(cell.initial_state(3))(*(torch.randn(3, cell.n_hidden) for _ in cell.initial_state(3)))


def changes(cell: Cell, rule: object, *, time: float, depth: float) -> dict[str, Tensor]:
    """The factor by which each parameter moved, by name; untouched ones left out."""
    before = copy.deepcopy(cell)
    rule.apply(cell, time=time, depth=depth)
    names = [name.removeprefix("log_") for name, _ in cell.named_parameters()]
    factors = {name: (getattr(cell, name) / getattr(before, name)).detach() for name in names}
    return {name: factor for name, factor in factors.items() if not torch.equal(factor, torch.ones_like(factor))}


@pytest.mark.parametrize("kind", [LIF, ALIFPlusMinus, ALIFLowPass])
@pytest.mark.parametrize("kappa", [1.15, 0.3])
@pytest.mark.parametrize("hold_threshold", [False, True])
def test_transition_rule_multiplies_both_derivatives_by_exactly_kappa(kind, kappa, hold_threshold):
    cell = kind(6, 5, tau_v=2.0) if kind is LIF else kind(6, 5, tau_v=2.0, tau_theta=2.0)
    rest = None if kind is LIF else cell.theta_rest.clone()
    state = a_state(cell)
    before = sum(cell.derivatives().by_state(None, state).values())
    by_input = cell.derivatives().by_input(None, state).clone()
    TransitionRule(hold_threshold).apply(cell, time=kappa, depth=1 / kappa)
    after = sum(cell.derivatives().by_state(None, state).values())
    torch.testing.assert_close(after, kappa * before, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(cell.derivatives().by_input(None, state), by_input / kappa, rtol=1e-12, atol=0)
    if rest is not None:  # a shorter time constant lowers the threshold at rest, unless it is held or has no part in it
        assert torch.allclose(cell.theta_rest, rest) == (hold_threshold or kind is ALIFLowPass)


@pytest.mark.parametrize(
    ("kind", "depth_follows", "time_follows"),
    [
        (LIF, {"w_in"}, {"w_rec", "tau_v"}),
        (ALIFPlusMinus, {"w_in", "b_theta", "adaptation"}, {"w_rec", "tau_v", "tau_theta"}),
    ],
)
def test_paper_rule_multiplies_exactly_what_the_paper_lists(kind, depth_follows, time_follows):
    moved = changes(kind(6, 5), PaperRule(), time=0.9, depth=1.1)
    assert moved.keys() == depth_follows | time_follows
    for name, factor in moved.items():
        torch.testing.assert_close(factor, torch.full_like(factor, 1.1 if name in depth_follows else 0.9))


class Inner(LIF):
    """A cell whose decay is a number in a module of its own."""

    scaled_parameters = (
        ScaledParameter("memory.weight", "time"),
        ScaledParameter("memory.share", "time", through="decay_factor"),
    )

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.memory = torch.nn.Linear(2, 2)
        self.memory.register_buffer("share", torch.tensor([0.5, 0.99]))


def test_a_rule_reaches_into_modules_and_holds_shares_below_one(monkeypatch):
    monkeypatch.setattr(rules, "LONGEST", 100.0)
    cell = Inner()
    weight, share = cell.memory.weight, cell.memory.share
    before = weight.detach().clone()
    TransitionRule().apply(cell, time=1.1, depth=2.0)
    torch.testing.assert_close(cell.memory.weight.detach(), 1.1 * before)
    torch.testing.assert_close(cell.memory.share, torch.tensor([0.55, math.exp(-1 / 100)]))
    torch.testing.assert_close(share, torch.tensor([0.5, 0.99]))  # a buffer may be shared, so it is replaced


@pytest.mark.parametrize("name", ["tau_theta", "modulus"])
def test_long_memories_are_not_moved_by_the_depth_and_grow_no_longer(name):
    cell: Cell = ALIFPlusMinus(3, 4, tau_theta=1e5) if name == "tau_theta" else LRU(3, 4)
    if isinstance(cell, LRU):
        cell.modulus = torch.linspace(0.99995, 0.999999, cell.n_state)
    before, stored = getattr(cell, name).detach().clone(), stored_parameter(cell, name)
    assert stored is not None
    version = stored._version
    TransitionRule().apply(cell, time=1.0, depth=1.1)
    assert stored_parameter(cell, name) is stored and stored._version == version  # nothing has written it
    TransitionRule().apply(cell, time=1.1, depth=1.0)
    torch.testing.assert_close(getattr(cell, name).detach(), before)
    TransitionRule().apply(cell, time=0.9, depth=1.0)
    assert (getattr(cell, name) < before).all()


@pytest.mark.parametrize("make", [GRU, LSTM, LRU, PLIF, lambda n_in, n: wrap(nn.GRU(n_in, n)).cells[0]])
def test_a_frozen_gate_stays_and_is_told_from_a_constant(make):
    cell = make(3, 4).requires_grad_(False)
    before = weights(cell)
    TransitionRule().apply(cell, time=0.9, depth=0.9)
    assert same_bits(weights(cell), before)
    (memory,) = time_constants(cell)
    assert (memory.fixed, memory.trained) == (False, False)
    assert time_constants(cell.requires_grad_(True))[0].trained


@pytest.mark.parametrize("kind", [RF, BRF])
def test_the_damping_of_a_resonator_is_raised_no_further_than_to_its_smallest_radius(kind):
    cell = kind(3, 50)
    with torch.no_grad():
        cell.damping[::2] *= -1  # read by magnitude
    radii = [below_threshold(cell).radius]
    for _ in range(60):
        TransitionRule().apply(cell, time=0.85, depth=1.0)
        radii.append(below_threshold(cell).radius)
    assert all((after <= before + 1e-12).all() for before, after in pairwise(radii))
    floor = cell.dt * cell.omega.detach()
    if kind is BRF:  # its refractory term
        floor = floor.clamp(min=0.9)
    torch.testing.assert_close(radii[-1], floor)


def test_rules_by_name_and_the_papers_as_the_default_of_the_balanced_target_alone():
    assert as_rule("default", "balanced") == as_rule("paper", 0.5) == PaperRule()
    assert as_rule("default", 0.5) == as_rule("default", falling) == TransitionRule()
    assert as_rule("hold-threshold", 1.0) == TransitionRule(hold_threshold=True)
    with pytest.raises(ValueError, match="rule must be one of 'default', 'transition', 'hold-threshold', 'paper'"):
        as_rule("ours", 0.5)
    with pytest.raises(TypeError, match=r"rule must be an object with name and apply.*, got <class .*PaperRule"):
        as_rule(PaperRule, 0.5)
