"""The loop as the paper's released code has it."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from neurolsc import RNN, Criteria, Network, PaperRule, pretrain
from neurolsc.experiment.config import PretrainSettings
from neurolsc.initialisers import LSC
from neurolsc.stability.lsc import RELEASED
from neurolsc.stability.lsc.rules import RULES

AT_ONCE = {"tolerance": math.inf, "deviation": None, "smoothed_deviation": None}
STILL = {"gradient": False, "multiplier": None, "samples": 2, "steps": 2, "progress": False}


@pytest.fixture
def batches(make_spikes: Any) -> list[Tensor]:
    return [make_spikes(T=20, B=6, seed=seed) for seed in range(1, 5)]


def learnable(network: Network) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in network.cells.named_parameters()}


@pytest.fixture
def network(make_network: Any) -> Network:
    return make_network(layers=1, width=8, gain=2)


def test_the_settings_are_those_of_the_code():
    told = Criteria(tolerance=0.08, deviation=None, smoothed_deviation=None, hold=21)
    assert {"rule": PaperRule(), "criteria": told, "shuffle": 0.34, "polish": False, "lr": 7.2e-3} == RELEASED


@pytest.mark.parametrize("hold", [1, 2, 5])
def test_the_criteria_must_hold_in_so_many_steps_in_a_row(hold, network, batches):
    result = pretrain(network, batches, criteria=Criteria(**AT_ONCE, hold=hold), polish=False, **STILL)
    assert result.converged
    assert result.steps == hold - 1


def test_a_step_that_misses_begins_the_count_anew(network, batches, monkeypatch):
    criteria, misses = Criteria(**AT_ONCE, hold=3), iter([[], [], [(0, "time", 9.0, 0.5)]])
    monkeypatch.setattr(Criteria, "misses", lambda *_: next(misses, []))
    result = pretrain(network, batches, criteria=criteria, polish=False, **STILL)
    assert result.steps == 5  # after the third steps 3, 4 and 5 hold


def test_the_count_goes_on_after_a_stop(network, batches, tmp_path):
    settings = {"criteria": Criteria(**AT_ONCE, hold=6), "polish": False, "checkpoint": tmp_path / "state"}
    pretrain(network, batches, max_steps=3, **settings, **STILL)
    result = pretrain(network, batches, max_steps=50, **settings, **STILL)
    assert result.steps == 5


@pytest.mark.parametrize("hold", [0, -1, 1.5, True])
def test_a_count_that_is_none_is_refused(hold):
    with pytest.raises((ValueError, TypeError), match="hold must be"):
        Criteria(hold=hold)


@pytest.mark.parametrize(("share", "wanted"), [(0.0, 0.0), (0.34, 0.34), (1.0, 1.0), (False, 0.0), (True, 1.0)])
def test_a_share_of_the_steps_shuffles(share, wanted, network, batches, monkeypatch):
    shuffles = []
    monkeypatch.setattr("neurolsc.stability.lsc.loop.shuffled", lambda p, order: shuffles.append(1) or p)
    tensors = len(list(network.cells.parameters()))
    pretrain(network, batches, criteria=Criteria(tolerance=0.0), shuffle=share, polish=False, max_steps=150, **STILL)
    assert len(shuffles) / tensors / 150 == pytest.approx(wanted, abs=0.12)
    assert len(shuffles) % tensors == 0


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan, "often", None])
def test_no_share_is_refused(share, network, batches):
    with pytest.raises(ValueError, match="shuffle must be True, False or a share of the steps from 0 to 1, got"):
        pretrain(network, batches, shuffle=share, progress=False)


def test_it_stops_once_every_mean_was_within_its_tolerance_for_more_than_20_steps(batches):
    torch.manual_seed(0)
    calm = {**RELEASED, "shuffle": False, "samples": 6}  # of 12 neurons a shuffle moves the radius far
    result = pretrain(Network([RNN(30, 12), RNN(12, 12)], 4), batches, target=1.0, **calm, progress=False)
    assert result.converged
    assert result.steps < 200
    assert isinstance(result.options.rule, PaperRule)
    misses = [max(abs(r - 1) for way in ("time", "depth") for r in row[way]) for row in result.history]
    assert max(misses[-21:]) <= 0.08 < misses[-22]


@pytest.mark.parametrize("rule", ["default", "transition"])
def test_it_is_a_method_of_the_settings_and_of_the_initialiser(rule, make_network, batches):
    ours, start, theirs = (make_network(layers=1, gain=2) for _ in range(3))
    asked = dict(RELEASED) | ({} if rule == "default" else {"rule": RULES[rule]})
    pretrain(ours, batches, target=1.0, max_steps=6, seed=3, samples=2, steps=4, progress=False, **asked)
    settings = PretrainSettings("1.0", rule, "released", pretrain_steps=6, pretrain_samples=2, pretrain_times=4)
    settings.run(theirs, batches, seed=3, progress=False)
    LSC(1.0, rule, "released", max_steps=6, samples=2, steps=4).apply(start, batches, seed=3)
    for name, value in ours.state_dict().items():
        assert torch.equal(value, theirs.state_dict()[name])
        assert torch.equal(value, start.state_dict()[name])
