"""Looks: as many samples as the error of the means needs, from batches that no step has looked at."""

import pytest
import torch

from neurolsc import Criteria, TransitionRule
from neurolsc.stability.lsc.criteria import Measured
from neurolsc.stability.lsc.inputs import Inputs
from neurolsc.stability.lsc.look import FRESH_DOUBT, Look
from neurolsc.stability.lsc.options import Options
from neurolsc.stability.lsc.targets import Aim


@pytest.fixture
def batches():
    """Batches whose samples differ much: each fires at a rate of its own."""
    random = torch.Generator().manual_seed(0)
    rates = torch.rand(8, 1, 12, 1, generator=random).pow(2) * 0.8
    return list((torch.rand(8, 20, 12, 30, generator=random) < rates).float())


def look(network, tolerance, goal=None):
    options = Options(target=0.5, rule=TransitionRule(), samples=2, steps=5, criteria=Criteria(tolerance))
    if goal is None:  # where the means are, so that none is lost
        goal = Aim(0.9, 0.9)
    return Look(network, goal, options)


@pytest.mark.parametrize(("tolerance", "samples"), [(10.0, 4), (1e-4, 32)])
def test_a_look_at_fresh_inputs_is_as_large_as_the_error_of_its_means_needs(tolerance, samples, make_network, batches):
    network, inputs = make_network(gain=2), Inputs(batches)
    last = inputs.take()
    at = look(network, 10.0).fresh(inputs, last, 0)
    # every mean may be on target: the tolerance alone decides
    goal = Aim(at.time_mean.mean().item(), at.depth_mean.mean().item())
    seen = look(network, max(tolerance, 1e-4), goal)
    object.__setattr__(seen.options, "criteria", Patient(tolerance))
    profile = seen.fresh(inputs, last, 0)
    assert profile.time.shape[1:] == (20, samples)


class Patient(Criteria):
    """Criteria under which no look is lost."""

    def lost(self, *args, **keywords):
        return False


def test_errors_of_the_means_end_below_a_quarter_of_the_tolerance_where_samples_suffice(make_network, batches):
    network, inputs = make_network(gain=2), Inputs(batches)
    seen = look(network, 0.1)
    object.__setattr__(seen.options, "criteria", Patient(0.1))
    small = seen._profile(batches[0][:, :4], 0)
    assert Patient(0.1).doubt(Measured.of(small), seen.goal, 20) > FRESH_DOUBT, "four samples do not"
    profile = seen.fresh(inputs, inputs.take(), 0)
    assert 4 < profile.time.shape[2] < 32
    assert Patient(0.1).doubt(Measured.of(profile), seen.goal, 20) < 1.5 * FRESH_DOUBT


def test_no_more_is_looked_at_once_a_mean_has_missed(make_network, batches):
    inputs = Inputs(batches)
    profile = look(make_network(gain=2), 1e-4, Aim(50.0, 50.0)).fresh(inputs, inputs.take(), 0)
    assert profile.time.shape[2] == 4
    assert inputs.taken == 2


def test_a_closer_look_takes_up_to_four_times_the_samples(make_network, batches):
    network = make_network(gain=2)
    for tolerance, samples in ((10.0, 2), (1e-4, 8)):
        measured, _ = look(network, tolerance).closer(batches[0], 0)
        assert measured.time[0].shape == (20, samples)
