"""Findings: what keeps radii from their targets, and how a finding is told."""

import dataclasses

import pytest
import torch

from neurolsc import radius_profile
from neurolsc.stability.findings import Finding, held_by, missed_targets, wide_spread

pytestmark = pytest.mark.usefixtures("float64")


def test_a_finding_is_told_with_its_place_and_its_cause_where_these_are_known():
    assert str(Finding(2, "never fires", "lower it")) == "layer 2: never fires; lower it."
    told = str(Finding(None, "the loss only grew", "lower lr", "steps too long"))
    assert told == "network: the loss only grew (steps too long); lower lr."


def test_the_source_named_is_that_of_most_points(make_network, make_spikes):
    profile = radius_profile(make_network(), make_spikes(T=2))
    shares = ({"feedback": 0.3, "leak": 0.6, "reset": 0.1}, {})
    profile = dataclasses.replace(profile, sources=shares)
    assert held_by(profile, 0).name == "leak"
    assert held_by(profile, 1).name == "unknown"
    first, second = missed_targets(profile, [(0, "time", 0.9, 0.5), (1, "depth", 0.1, 0.5)], ([0.01, 0.0], [0.0, 0.0]))
    held = "held by the leak at 60% of the points"
    assert first.problem == f"radius 0.900 ± 0.010 through time against a target of 0.5, {held}"
    assert second.cure.startswith("scale w_in up")


def test_the_widest_spread_is_named_without_a_first_layer_that_does_not_count(make_network, make_spikes):
    profile = radius_profile(make_network(), make_spikes(T=2))
    time, depth = torch.ones_like(profile.time), torch.ones_like(profile.depth)
    depth[0, 0], time[1, 0] = 9.0, 3.0
    profile = dataclasses.replace(profile, time=time, depth=depth)
    assert str(wide_spread(profile)).startswith("layer 1: mean radii are on target, but those through depth")
    without = wide_spread(profile, include_input=False)
    assert str(without).startswith("layer 2: mean radii are on target, but those through time")
