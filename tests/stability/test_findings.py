"""Findings: what keeps radii from their targets, and how a finding is told."""

import dataclasses

import pytest

from neurolsc import radius_profile
from neurolsc.stability.findings import Finding

pytestmark = pytest.mark.usefixtures("float64")


def test_a_finding_is_told_with_its_place_and_its_cause_where_these_are_known():
    assert str(Finding(2, "never fires", "lower it")) == "layer 2: never fires; lower it."
    told = str(Finding(None, "the loss only grew", "lower lr", "steps too long"))
    assert told == "network: the loss only grew (steps too long); lower lr."


def test_the_source_named_is_that_of_most_points(make_network, make_spikes):
    profile = radius_profile(make_network(), make_spikes(T=2))
    shares = ({"feedback": 0.3, "leak": 0.6, "reset": 0.1}, {})
    profile = dataclasses.replace(profile, sources=shares)
    assert profile.main_term(0).name == "leak"
    assert profile.main_term(1).name == "unknown"
