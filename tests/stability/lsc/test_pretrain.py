"""LSC pre-training: reaches its targets, moves what it says and nothing else, and survives being
killed."""

import copy
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import neurolsc
from neurolsc import (
    LIF,
    ALIFPlus,
    Cell,
    Criteria,
    Network,
    PaperRule,
    PretrainResult,
    TransitionRule,
    pretrain,
    radius_profile,
    scale_to_radius,
)
from neurolsc.io import read_tree
from neurolsc.stability.lsc.criteria import Measured
from neurolsc.stability.lsc.look import Look
from neurolsc.stability.lsc.loss import loss
from neurolsc.stability.lsc.options import Options
from neurolsc.stability.lsc.targets import Aim, Along
from neurolsc.stability.transitions import follow, time_derivative_by_autograd
from neurolsc.surrogate import FastSigmoid
from neurolsc.training.optim import adabelief_lookahead

NEVER = Criteria(tolerance=0.0)
AT_ONCE = Criteria(tolerance=math.inf, deviation=None, smoothed_deviation=None)


@pytest.fixture
def batches(make_spikes: Callable[..., Tensor]) -> list[Tensor]:
    return [make_spikes(T=20, B=6, seed=seed) for seed in range(1, 5)]


def weights(network: Network) -> dict[str, Tensor]:
    return copy.deepcopy(network.state_dict())


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def last_state(network: Network, batches: list[Tensor], path: Path, **settings: Any) -> dict[str, Any]:
    """The state that pre-training is in after all its steps, before the best weights are taken."""
    settings = {"criteria": NEVER, "progress": False} | settings
    pretrain(network, batches, checkpoint=path, checkpoint_every=1, **settings)
    return read_tree(path)


# ---- targets


@pytest.mark.parametrize("seed", [0, 1])
def test_reaches_one_half_with_our_rule_and_both_layers_fire(seed, make_network, batches):
    network = make_network(seed=seed)
    before = radius_profile(network, batches[0])
    assert (before.time_mean > 0.9).all()
    result = pretrain(network, batches, target=0.5, progress=False)
    assert result.converged
    assert 0 < result.steps < 60
    assert not result.findings
    fresh = radius_profile(network, batches[-1], seed=7)
    for means in (fresh.time_mean, fresh.depth_mean):
        torch.testing.assert_close(means, torch.full((2,), 0.5), rtol=0, atol=0.06)  # another batch: three tolerances
    assert (fresh.firing_rate > 0.01).all()
    assert result.profile.target == (0.5, 0.5)
    assert (result.profile.time_mean - 0.5).abs().max() <= 0.02
    assert (result.profile.depth_mean - 0.5).abs().max() <= 0.02
    assert str(result).startswith(f"converged after {result.steps} steps")


def test_reaches_one_half_while_the_threshold_is_held(make_network, batches):
    network = make_network()
    rest = [cell.theta_rest.mean().item() for cell in network.cells]
    result = pretrain(network, batches, target=0.5, rule=TransitionRule(hold_threshold=True), progress=False)
    assert result.converged
    assert (result.profile.firing_rate > 0).all()
    # not exactly: gradient and shuffle move b_theta and tau_theta apart
    assert [cell.theta_rest.mean().item() for cell in network.cells] == pytest.approx(rest, rel=0.1)


@pytest.mark.slow
def test_reaches_the_balanced_target_with_the_papers_rule(make_network, batches, tmp_path):
    network, path = make_network(), tmp_path / "state"
    result = pretrain(network, batches, target="balanced", checkpoint=path, progress=False)
    assert result.steps < 60, "polishing does not go round in circles"
    assert read_tree(path)["settings"]["rule"] == "paper"
    assert result.converged
    assert result.profile.target == (20 / 22, 2 / 22)
    for means, goal in zip((result.profile.time_mean, result.profile.depth_mean), result.profile.target, strict=True):
        assert ((means / goal - 1).abs() <= 0.04).all()
    assert (result.profile.firing_rate > 0).all()


@pytest.mark.parametrize(("layer_delay", "reset_gradient"), [(0, False), (1, True)])
def test_reaches_one_half_for_lif_layers(layer_delay, reset_gradient, make_network, batches):
    # a low threshold: at 1 nothing fires once the depth radius is 0.5
    settings = {"layer_delay": layer_delay, "reset_gradient": reset_gradient, "tau_v": 3.0, "threshold": 0.1}
    result = pretrain(make_network(LIF, **settings), batches, target=0.5, progress=False)
    assert result.converged
    assert (result.profile.firing_rate > 0).all()


@pytest.mark.parametrize("target", [0.0, -1.0, math.nan, "half", True], ids=str)
def test_other_targets_are_refused(target, make_network, batches):
    with pytest.raises(ValueError, match=r"target must be a radius in \(0, inf\) or 'balanced'"):
        pretrain(make_network(), batches, target=target)


# ---- what does not change


def test_zero_steps_change_nothing(make_network, batches):
    network = make_network()
    before = weights(network)
    result = pretrain(network, batches, target=0.5, max_steps=0, progress=False)
    assert same(weights(network), before)
    assert not result.converged
    assert result.steps == 0


def test_a_target_that_is_met_already_changes_nothing(make_network, batches):
    network = make_network()
    before = weights(network)
    result = pretrain(network, batches, criteria=AT_ONCE, progress=False)
    assert result.converged
    assert result.steps == 0
    assert same(weights(network), before)


def scaled(network: Network, batches: list[Tensor]) -> PretrainResult:
    return scale_to_radius(network, batches[0], target=0.5, progress=False)


def pretrained(network: Network, batches: list[Tensor]) -> PretrainResult:
    return pretrain(network, batches, target=0.5, max_steps=5, progress=False)


@pytest.mark.parametrize("method", [pretrained, scaled])
def test_readout_fixed_buffers_and_gradients_are_left_alone(method, make_network, batches):
    network = make_network(seed=3)
    before = weights(network)
    method(network, batches)
    after = weights(network)
    assert torch.equal(after["readout.weight"], before["readout.weight"])
    assert not any(after[f"cells.{i}.b_v"].any() for i in range(2))
    assert not torch.equal(after["cells.0.w_in"], before["cells.0.w_in"])
    assert all(p.grad is None for p in network.parameters())


def test_frozen_parameters_stay(make_network, batches, tmp_path):
    network = make_network()
    frozen = ["cells.0.w_rec", "cells.1.log_tau_theta"]
    for name in frozen:
        network.get_parameter(name).requires_grad_(False)
    before = weights(network)
    after = last_state(network, batches, tmp_path / "state", target=0.5, max_steps=5)["network"]
    for name in before:
        learnt = name.startswith("cells") and "b_v" not in name and name not in frozen
        assert learnt != torch.equal(after[name], before[name]), name


@pytest.mark.slow
def test_same_seed_same_weights_and_labels_are_ignored(make_network, batches):
    def run(batches: list[Any], seed: int) -> dict[str, Tensor]:
        network = make_network()
        torch.manual_seed(len(batches[0]))  # nothing is drawn from torch's own generator
        pretrain(network, batches, target=0.5, max_steps=4, seed=seed, progress=False)
        return weights(network)

    first = run(batches, 5)
    assert same(first, run(batches, 5))
    assert same(first, run([(x, torch.zeros(6, dtype=torch.long)) for x in batches], 5))
    assert not same(first, run(batches, 6))


@pytest.mark.parametrize("convert", [Tensor.bool, Tensor.to_sparse], ids=["bool", "sparse"])
def test_input_formats_are_equal(convert, make_network, batches):
    dense, other = make_network(), make_network()
    pretrain(dense, batches, target=0.5, max_steps=3, progress=False)
    pretrain(other, [convert(x) for x in batches], target=0.5, max_steps=3, progress=False)
    assert same(weights(dense), weights(other))


# ---- what each part does


def test_gradient_step_is_that_of_eq_2(make_network, batches, tmp_path):
    torch.set_default_dtype(torch.float64)
    network = make_network(n_in=32, width=6, layers=3, gain=3)
    x = (torch.rand(6, 3, 32) < 0.3).double()
    with torch.no_grad():
        network.cells[0].w_in.copy_(torch.randn(6, 32))
    twin = copy.deepcopy(network)
    only_gradient = {"multiplier": None, "shuffle": False, "include_input": False}
    everything = {"samples": 3, "steps": None}
    state = last_state(network, [x], tmp_path / "state", target=0.7, max_steps=1, **only_gradient, **everything)

    # the mean over all derivatives of (radius - target)², by torch's own eigenvalues of autograd's
    # own derivatives
    errors = []
    for layer, t in enumerate(follow(twin, x, torch.arange(6))[0]):
        matrices = [time_derivative_by_autograd(t)]
        if layer:
            s = t.below.spike.derivative(t.state_below.v - t.state_below.theta)
            matrices.append(t.cell.w_in * s.unsqueeze(1))  # lsc.md, part 3: the depth radius is that of w_in diag(s)
        errors += [torch.linalg.eigvals(m).abs().amax(-1) - 0.7 for m in matrices]
    optimizer = adabelief_lookahead(twin.cells.parameters(), lr=3.14e-3, weight_decay=1e-4)
    torch.cat(errors).square().mean().backward()
    optimizer.step()
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(state["network"][name], value, rtol=1e-6, atol=1e-9)
    assert not torch.equal(twin.cells[1].w_rec, network.cells[1].w_rec)
    loss = torch.cat(errors).square().mean().item()
    assert state["history"][0]["loss"] == pytest.approx(loss)


@pytest.mark.parametrize("bounds", [(0.85, 1.15), (0.5, 1.02)])
def test_multiplier_alone_scales_by_the_clipped_kappas(bounds, make_network, batches, tmp_path):
    network = make_network()
    before = weights(network)
    switches = {"gradient": False, "shuffle": False, "multiplier": bounds}
    state = last_state(network, batches, tmp_path / "state", target=0.5, max_steps=6, **switches)
    history = state["history"]
    assert len(history) == 6
    for name, direction in (("w_rec", "time"), ("adaptation", "time"), ("w_in", "depth")):
        for layer in range(2):
            kappas = [min(max(0.5 / row[direction][layer], bounds[0]), bounds[1]) for row in history]
            key = f"cells.{layer}.{name}"
            torch.testing.assert_close(state["network"][key], before[key] * math.prod(kappas), rtol=1e-4, atol=1e-7)
            assert math.prod(kappas) != 1
    assert torch.equal(state["network"]["cells.0.b_theta"], before["cells.0.b_theta"])


def test_shuffle_alone_permutes_the_elements_of_every_learnable_tensor(make_network, batches, tmp_path):
    network = make_network(spike=FastSigmoid(dampening=torch.linspace(0.2, 0.8, 16), learnable=True))
    before = weights(network)
    switches = {"gradient": False, "multiplier": None}
    after = last_state(network, batches, tmp_path / "state", target=0.5, max_steps=3, **switches)["network"]
    learnable = {name for name, _ in network.cells.named_parameters(prefix="cells", remove_duplicate=False)}
    for name in before:
        assert torch.equal(after[name].flatten().sort().values, before[name].flatten().sort().values)
        several = before[name].unique().numel() > 1
        assert torch.equal(after[name], before[name]) != (name in learnable and several), name


def test_all_switches_off_change_nothing(make_network, batches, tmp_path):
    network = make_network()
    before = weights(network)
    switches = {"gradient": False, "multiplier": None, "shuffle": False}
    state = last_state(network, batches, tmp_path / "state", target=0.5, max_steps=3, **switches)
    assert same(state["network"], before)


@pytest.mark.parametrize("slow_copy", [True, False])
def test_deviations_of_shuffled_weights_shrink_unless_the_slow_copy_follows(slow_copy, make_network, batches, tmp_path):
    network = make_network()
    before = network.cells[1].w_rec.std().item()
    switches = {"multiplier": None, "slow_copy": slow_copy, "lr": 1e-5}
    state = last_state(network, batches, tmp_path / "state", target=0.5, max_steps=18, samples=1, steps=1, **switches)
    shrunk = state["network"]["cells.1.w_rec"].std().item() / before
    # an average of two unrelated copies has 1/sqrt(2) of their deviation, here three times
    assert shrunk == pytest.approx(1 if slow_copy else 2**-1.5, rel=0.1 if slow_copy else 0.3)


def test_slow_copy_moves_like_the_weights(make_network, batches, tmp_path):
    # until Lookahead first averages, the slow copy is the start, with all kappas and shuffles
    network = make_network()
    twin = copy.deepcopy(network)
    state = last_state(network, batches, tmp_path / "a", target=0.5, max_steps=3, lr=1e-12, weight_decay=0.0)
    for i, (name, _) in enumerate(twin.cells.named_parameters(prefix="cells")):
        slow = state["optimizer"]["lookahead_state"][0, i]["slow_params"]
        torch.testing.assert_close(slow, state["network"][name], rtol=1e-5, atol=1e-6)
    assert not torch.equal(state["network"]["cells.0.w_in"], twin.cells[0].w_in)


@dataclass(frozen=True)
class Doubling:
    """A rule that moves what no optimizer holds."""

    name: str = "doubling"

    def apply(self, cell: Cell, *, time: float, depth: float) -> None:
        cell.theta.mul_(2)


def test_rules_move_buffers_once_a_step(make_network, batches, tmp_path):
    state = last_state(make_network(LIF), batches, tmp_path / "state", rule=Doubling(), max_steps=4)
    assert (state["network"]["cells.0.theta"] == 2**4).all()


def test_input_row_can_be_left_out(make_network, batches, tmp_path):
    network = make_network()
    before = weights(network)
    switches = {"gradient": False, "shuffle": False, "include_input": False}
    after = last_state(network, batches, tmp_path / "state", target=0.5, max_steps=2, **switches)["network"]
    assert torch.equal(after["cells.0.w_in"], before["cells.0.w_in"])
    assert not torch.equal(after["cells.1.w_in"], before["cells.1.w_in"])


@dataclass(frozen=True)
class Wrecker:
    """A rule under which the radii get worse with every step."""

    name: str = "wrecker"

    def apply(self, cell: Cell, *, time: float, depth: float) -> None:
        with torch.no_grad():
            cell.w_in.mul_(3)


def test_best_weights_are_given_back_when_the_target_was_missed(make_network, batches):
    network = make_network()
    before = weights(network)
    result = pretrain(
        network, batches, rule=Wrecker(), target=0.5, shuffle=False, gradient=False, max_steps=3, progress=False
    )
    assert not result.converged
    assert result.steps == 3
    assert result.history[-1]["depth"][0] > 20 * result.history[0]["depth"][0]
    assert same(weights(network), before)


def test_history_has_a_row_per_step_and_is_json(make_network, batches):
    result = pretrain(make_network(), batches, target=0.5, max_steps=4, criteria=NEVER, progress=False)
    history = json.loads(json.dumps(result.history))
    assert [row["step"] for row in history] == [0, 1, 2, 3, 4]
    smoothed = history[0]["deviation"]
    for row in history[1:]:
        smoothed = 0.9 * smoothed + 0.1 * row["deviation"]
        assert row["smoothed_deviation"] == pytest.approx(smoothed)
        assert len(row["time"]) == len(row["depth"]) == len(row["firing_rate"]) == 2


# ---- findings and errors


@pytest.mark.parametrize("polish", [True, False])
def test_a_dead_layer_is_never_converged_and_named(polish, make_network, batches):
    network = make_network(gain=2)
    network.cells[1].theta_rest = 1000.0
    criteria = Criteria(tolerance=1.0, deviation=None, smoothed_deviation=None)
    settings = {"target": 1.0, "criteria": criteria, "polish": polish, "max_steps": 3, "progress": False}
    settings["gradient"] = False
    result = pretrain(network, batches, **settings)
    assert result.profile.firing_rate[0] > 0 == result.profile.firing_rate[1]
    assert not criteria.misses(Measured.of(result.profile), Aim(1.0, 1.0))
    assert not result.converged
    assert result.steps == (0 if polish else 3), "while polishing nothing wakes it: no step is wasted"
    (finding,) = result.findings
    assert finding.layer == 2
    assert "not converged" in str(result)
    assert "layer 2: never fires" in str(result)


def test_layers_of_other_outputs_than_spikes_are_not_asked_to_fire(batches):
    torch.manual_seed(0)
    network = neurolsc.wrap(torch.nn.Sequential(torch.nn.RNN(30, 8), torch.nn.Linear(8, 2)))
    result = pretrain(network, batches, criteria=AT_ONCE, progress=False)
    assert result.profile.firing_rate.isnan().all()
    assert [row["firing_rate"] for row in result.history] == [[None]] * len(result.history)
    assert "Spikes per neuron and step" not in [ax.get_title() for ax in result.plot().axes]
    assert result.converged


@pytest.mark.parametrize(
    ("source", "settings"),
    [
        ("leak", {"spike": FastSigmoid(dampening=0.0)}),
        ("feedback", {"adaptation": 50.0}),
        ("reset", {"reset_gradient": True, "spike": FastSigmoid(sharpness=1e-3), "b_theta": 1.0}),
    ],
)
def test_a_target_out_of_reach_names_what_holds_the_radius(source, settings, make_network, batches):
    switches = {"gradient": False, "multiplier": None, "shuffle": False, "max_steps": 1}
    result = pretrain(make_network(**settings), batches, target=0.5, progress=False, **switches)
    assert not result.converged
    through_time = [f for f in result.findings if "through time" in f.problem]
    assert [f.layer for f in through_time] == [1, 2]
    for finding in through_time:
        assert f"against a target of 0.5, held by the {source}" in finding.problem
        assert finding.cure


def test_radii_that_spread_too_far_are_named_where_their_means_are_on_target(make_network, batches):
    criteria = Criteria(tolerance=math.inf, deviation=0.0)
    result = pretrain(make_network(gain=2), batches, criteria=criteria, max_steps=0, progress=False)
    assert not result.converged
    (finding,) = result.findings
    spread = torch.stack((result.profile.time, result.profile.depth)).flatten(2).std(2, correction=0)
    direction, layer = divmod(int(spread.argmax()), 2)
    assert finding.layer == layer + 1
    through = ("time", "depth")[direction]
    assert finding.problem == f"mean radii are on target, but those through {through} spread by {spread.max():.2f}"


@pytest.mark.parametrize("layer", [0, 1])
def test_nan_weights_are_an_error_that_names_the_layer(layer, make_network, batches):
    network = make_network()
    with torch.no_grad():
        network.cells[layer].w_rec[0, 0] = math.nan
    with pytest.raises(FloatingPointError, match=f"layer {layer + 1}: .* NaN"):
        pretrain(network, [torch.ones(20, 2, 30)], progress=False)


def test_what_cannot_be_pretrained_is_refused_at_once(make_network, batches):
    with pytest.raises(ValueError, match="at least one batch of inputs, got none"):
        pretrain(make_network(), [])
    with pytest.raises(ValueError, match=r"more than the 4 batches it got .an iterator can be used only once"):
        pretrain(make_network(), iter(batches), criteria=NEVER, max_steps=10, progress=False)
    with pytest.raises(ValueError, match=r"x must have shape \(T, B, 30\)"):
        pretrain(make_network(), [torch.zeros(20, 6, 31)])
    with pytest.raises(TypeError, match=r"network must be a neurolsc.Network, got LSTM: give neurolsc.wrap\(module\)"):
        pretrain(torch.nn.LSTM(30, 4), batches)
    with pytest.raises(TypeError, match=r"network must be a neurolsc.Network, got list"):
        pretrain([], batches)
    with pytest.raises(TypeError, match=r"one tensor \(20, 6, 30\): give \[x\]"):
        pretrain(make_network(), batches[0])


@pytest.mark.parametrize(
    ("bad", "kind", "message"),
    [
        ({"samples": 0}, ValueError, "samples must be at least 1, got 0"),
        ({"checkpoint_every": 0}, ValueError, "checkpoint_every must be at least 1, got 0"),
        ({"max_steps": -1}, ValueError, "max_steps must be at least 0, got -1"),
        ({"steps": 1.5}, TypeError, "steps must be an int, got float"),
        ({"lr": 0.0}, ValueError, "lr must be positive"),
        ({"multiplier": (1.1, 1.2)}, ValueError, "0 < low <= 1 <= high"),
        ({"non_square": "norm"}, ValueError, "non_square must be one of 'submatrix', 'singular'"),
        ({"rule": PaperRule}, TypeError, "rule must be an object with name and apply.*, got the class PaperRule"),
        ({"rule": "paper"}, TypeError, "rule must be an object with name and apply.*, got 'paper'"),
        ({"method": "scale"}, TypeError, "unexpected keyword argument 'method'"),
    ],
    ids=str,
)
def test_settings_that_do_not_do_are_refused_at_once(bad, kind, message, make_network, batches):
    with pytest.raises(kind, match=message):
        pretrain(make_network(), batches, **bad)


@dataclass(frozen=True)
class Falling:
    """A target of a stranger: less through depth the deeper the network."""

    top: float

    def aim(self, steps: int, layers: int) -> Aim:
        return Aim(self.top, self.top / layers)


@pytest.mark.slow
def test_a_target_of_ones_own_is_reached(make_network, batches):
    result = pretrain(make_network(), batches, target=Falling(0.6), progress=False)
    assert result.profile.target == (0.6, 0.3)
    assert result.converged
    assert (result.profile.depth_mean / 0.3 - 1).abs().max() <= 0.04
    assert result.options.target == Falling(0.6)


@pytest.mark.parametrize("direction", ["time", "depth"])
def test_one_direction_is_reached_and_the_multipliers_leave_the_other(direction, make_network, batches, tmp_path):
    network = make_network()
    before, target = weights(network), Along(0.5, direction)
    switches = {"gradient": False, "shuffle": False, "target": target, "max_steps": 3}
    after = last_state(network, batches, tmp_path / "state", **switches)["network"]
    left = {"time": "w_in", "depth": "w_rec"}[direction]
    for layer in range(2):
        assert torch.equal(after[f"cells.{layer}.{left}"], before[f"cells.{layer}.{left}"])
    result = pretrain(make_network(), batches, target=target, progress=False)
    assert result.converged
    assert (getattr(result.profile, f"{direction}_mean") - 0.5).abs().max() <= 0.02


def test_the_loss_asks_nothing_of_the_other_direction(make_network, batches):
    drawn = torch.Generator().manual_seed(0)
    measured = Measured(*((torch.rand(3, 4, generator=drawn), torch.rand(3, 4, generator=drawn)) for _ in range(2)))
    asked = loss(measured, Aim(0.5, None))
    torch.testing.assert_close(asked, (torch.stack(measured.time) - 0.5).square().mean())
    criteria = Criteria(tolerance=math.inf, deviation=0.0)
    result = pretrain(
        make_network(), batches, target=Along(0.5, "depth"), criteria=criteria, max_steps=0, progress=False
    )
    (finding,) = result.findings
    assert "through depth spread by" in finding.problem


def test_one_layer_without_its_input_has_no_radius_through_depth(batches):
    network = Network([ALIFPlus(20, 16)], n_out=2)
    for setting, some in ((pretrain, batches), (scale_to_radius, batches[0])):
        with pytest.raises(ValueError, match="one layer has a radius through depth from its input alone"):
            setting(network, some, target=Along(0.5, "depth"), include_input=False, progress=False)


def test_the_result_says_on_how_many_points_it_rests(make_network, batches):
    result = pretrain(make_network(), batches, criteria=AT_ONCE, progress=False)
    assert result.points == (20, 8) == result.profile.time.shape[1:]  # all steps, twice four samples
    means = result.profile.time.double().mean(1)  # all steps were looked at: only samples differ
    expected = [math.sqrt(row.var().item() / 8) for row in means]
    assert result.time_error == pytest.approx(expected)
    assert len(result.depth_error) == 2
    worst = f"at most {max(result.time_error):.3f} through time and {max(result.depth_error):.3f} through depth"
    assert f"means over 20 steps of 8 samples, standard errors {worst}" in str(result)


def test_short_runs_are_looked_at_as_a_whole(make_network, make_spikes):
    short = [make_spikes(T=3, B=6)]
    by_default, whole = make_network(), make_network()
    result = pretrain(by_default, short, max_steps=2, progress=False)  # the default draws eight steps
    assert result.profile.steps.tolist() == [0, 1, 2]
    pretrain(whole, short, max_steps=2, steps=3, progress=False)
    assert same(weights(by_default), weights(whole))


# ---- checkpoints

INTERRUPTED = {"target": 0.5, "max_steps": 9, "samples": 2, "steps": 4, "criteria": NEVER, "progress": False}
KILLED_AT, EVERY = 8, 3


def small_network() -> Network:
    torch.manual_seed(0)
    spike = FastSigmoid(learnable=True)
    return Network([ALIFPlus(10, 8, spike=spike), ALIFPlus(8, 8)], 3)


class Batches:
    """Four batches, gone through again and again; may kill the process when one is asked for."""

    def __init__(self, killed_at: int | None = None) -> None:
        self.left = killed_at

    def __iter__(self) -> Iterator[Tensor]:
        for seed in range(4):
            if self.left is not None:
                self.left -= 1
                if self.left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            yield (torch.rand(10, 4, 10, generator=torch.Generator().manual_seed(seed)) < 0.4).float()


def pretrain_until_killed(path: str) -> None:
    pretrain(small_network(), Batches(KILLED_AT), checkpoint=path, checkpoint_every=EVERY, **INTERRUPTED)


@pytest.mark.slow
def test_killed_and_resumed_equals_uninterrupted_bit_for_bit(tmp_path):
    path = tmp_path / "state"
    root = Path(neurolsc.__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(Path(__file__).parent), str(root)))}
    code = f"import test_pretrain; test_pretrain.pretrain_until_killed({str(path)!r})"
    killed = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert read_tree(path)["step"] == 6

    resumed, whole = small_network(), small_network()
    with torch.no_grad():
        resumed.cells[0].w_in.zero_()  # all of it comes from the file
    after = pretrain(resumed, Batches(), checkpoint=path, checkpoint_every=EVERY, **INTERRUPTED)
    before = pretrain(whole, Batches(), **INTERRUPTED)
    assert same(weights(resumed), weights(whole))

    def without_clock(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in history]

    assert without_clock(after.history) == without_clock(before.history)
    assert after.steps == before.steps == 9


def test_best_weights_of_before_an_interruption_are_given_back(make_network, batches, tmp_path):
    settings = {"rule": Wrecker(), "shuffle": False, "gradient": False, "progress": False}
    settings |= {"checkpoint": tmp_path / "state", "checkpoint_every": 1}
    pretrain(make_network(), batches, max_steps=2, **settings)
    resumed = make_network(seed=1)
    assert pretrain(resumed, batches, max_steps=4, **settings).steps == 4
    assert same(weights(resumed), weights(make_network()))


@pytest.mark.parametrize("polish", [True, False])
def test_near_the_target_only_the_multipliers_act_and_a_closer_look_sets_them(
    polish, make_network, make_spikes, tmp_path
):
    x, network = make_spikes(B=16), make_network(gain=2)
    # every mean counts as near, and no spread is small enough
    settings = {"criteria": Criteria(tolerance=10.0, deviation=0.0), "samples": 2, "steps": 3, "polish": polish}
    settings["multiplier"] = (0.01, 100.0)
    state = last_state(network, [x], tmp_path / "state", target=0.5, max_steps=1, **settings)
    twin = make_network(gain=2)
    options = Options(target=0.5, rule=TransitionRule(), samples=2, steps=3, criteria=settings["criteria"])
    measured, _ = Look(twin, Aim(0.5, 0.5), options).closer(x, 0)
    assert [radii.shape for radii in measured.time] == [(12, 2)] * 2  # at 4 times 3 steps, of 2 samples
    for layer, (cell, radii) in enumerate(zip(twin.cells, measured.time, strict=True)):
        kappa = 0.5 / radii.mean().item()
        scaled = torch.allclose(state["network"][f"cells.{layer}.w_rec"], kappa * cell.w_rec, rtol=1e-4)
        assert scaled == polish


def test_multipliers_near_the_target_are_damped_as_often_as_their_miss_changed_sign(
    make_network, make_spikes, tmp_path
):
    x, criteria = make_spikes(B=16), Criteria(tolerance=10.0, deviation=0.0)
    settings = {"criteria": criteria, "target": 0.5, "max_steps": 6, "checkpoint_every": 1, "progress": False}
    seen: list[tuple[float, float]] = []

    @dataclass(frozen=True)
    class Spy:
        name: str = "spy"

        def apply(self, cell: Cell, *, time: float, depth: float) -> None:
            seen.append((time, depth))
            PaperRule().apply(cell, time=time, depth=depth)

    network = make_network(gain=2)
    history = pretrain(network, [x], rule=Spy(), **settings).history
    damped = 0
    for layer in range(2):
        for which, direction in enumerate(("time", "depth")):
            turns, before = 0, None
            for row, kappas in zip(history[:-1], seen[layer::2], strict=True):
                full = min(max(0.5 / row[direction][layer], 0.85), 1.15)
                turns += before is not None and (full > 1) != before
                before = full > 1
                assert kappas[which] == pytest.approx(full ** (1 / (1 + turns)))
                damped += turns > 0
    assert damped > 2


@pytest.mark.slow
def test_polishing_begins_from_the_nearest_weights_where_the_loop_stalls(make_network, batches, tmp_path):
    # under this rule no step is better than the first
    start = weights(make_network())
    settings = {"rule": Wrecker(), "shuffle": False, "gradient": False, "target": 0.5, "criteria": Criteria()}
    before = last_state(make_network(), batches, tmp_path / "before", max_steps=14, **settings)
    assert not before["polishing"] and before["best_step"] == 0
    after = last_state(make_network(), batches, tmp_path / "after", max_steps=16, **settings)
    assert after["polishing"]
    torch.testing.assert_close(after["network"]["cells.0.w_in"], 3 * start["cells.0.w_in"])  # one step from the start


def test_checkpoint_goes_on_to_more_steps_and_refuses_other_settings(tmp_path):
    path = tmp_path / "state"
    settings = INTERRUPTED | {"checkpoint": path, "checkpoint_every": 1}
    pretrain(small_network(), Batches(), **settings | {"max_steps": 2})
    more, whole = small_network(), small_network()
    assert pretrain(more, Batches(), **settings | {"max_steps": 4}).steps == 4
    pretrain(whole, Batches(), **INTERRUPTED | {"max_steps": 4})
    assert same(weights(more), weights(whole))
    for changed in ({"target": 1.0}, {"rule": PaperRule()}, {"seed": 1}, {"lr": 1e-2}, {"shuffle": False}):
        (name,) = changed
        with pytest.raises(ValueError, match=f"the checkpoint began with other settings \\({name} was"):
            pretrain(small_network(), Batches(), **settings | changed)
