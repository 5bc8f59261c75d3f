"""Looks: as many samples as the error of the means needs, from batches that no step has looked
at."""

import pytest
import torch

from neurolsc import Criteria, TransitionRule
from neurolsc.stability.lsc.criteria import Measured
from neurolsc.stability.lsc.inputs import InputStream
from neurolsc.stability.lsc.look import FRESH_DOUBT, Look
from neurolsc.stability.lsc.options import Options
from neurolsc.stability.lsc.targets import Aim


@pytest.fixture
def batches():
    """Batches whose samples differ much: each fires at a rate of its own."""
    random = torch.Generator().manual_seed(0)
    rates = torch.rand(8, 1, 12, 1, generator=random).pow(2) * 0.8
    return list((torch.rand(8, 20, 12, 30, generator=random) < rates).float())


class Patient(Criteria):
    """Criteria under which no look is lost: the errors of the means alone decide."""

    def lost(self, *args, **keywords):
        return False


GOAL = Aim(0.9, 0.9)


def look(network, criteria, goal=GOAL):
    return Look(network, goal, Options(target=0.5, rule=TransitionRule(), samples=2, steps=5, criteria=criteria))


@pytest.mark.parametrize(("tolerance", "samples"), [(10.0, 4), (1e-4, 32)])
def test_a_look_at_fresh_inputs_takes_twice_to_sixteen_times_the_samples(tolerance, samples, make_network, batches):
    inputs = InputStream(batches)
    profile = look(make_network(gain=2), Patient(tolerance)).fresh(inputs, inputs.take(), 0)
    assert profile.time.shape[1:] == (20, samples)


def test_errors_of_the_means_end_below_a_quarter_of_the_tolerance_where_samples_suffice(make_network, batches):
    criteria, inputs = Patient(0.1), InputStream(batches)
    seen = look(make_network(gain=2), criteria)
    profile = seen.fresh(inputs, inputs.take(), 0)
    assert 4 < profile.time.shape[2] < 32, "the first four do not"
    assert criteria.doubt(Measured.of(profile), seen.goal, 20) < 1.5 * FRESH_DOUBT


def test_no_more_is_looked_at_once_a_mean_has_missed(make_network, batches):
    inputs = InputStream(batches)
    profile = look(make_network(gain=2), Criteria(1e-4), Aim(50.0, 50.0)).fresh(inputs, inputs.take(), 0)
    assert profile.time.shape[2] == 4
    assert inputs.taken == 2


def test_a_closer_look_takes_up_to_four_times_the_samples(make_network, batches):
    network = make_network(gain=2)
    for tolerance, samples in ((10.0, 2), (1e-4, 8)):
        measured, _ = look(network, Criteria(tolerance)).closer(batches[0], 0)
        assert measured.time[0].shape == (20, samples)


@pytest.mark.parametrize("non_square", ["submatrix", "singular"])
def test_a_fresh_look_measures_unequal_widths_as_the_steps_do(non_square, make_network, batches):
    options = Options(target=0.5, rule=TransitionRule(), samples=2, steps=5, non_square=non_square)
    inputs = InputStream(batches)
    profile = Look(make_network(gain=2), GOAL, options).fresh(inputs, inputs.take(), 0)
    assert profile.non_square == (non_square, None)  # the second layer reads one of its own width
