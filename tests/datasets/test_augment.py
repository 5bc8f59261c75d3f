"""Each augmentation against its formula, and in law against tonic's transform where there is
one."""

import numpy as np
import pytest
import tonic
from scipy import stats

from neurolsc.datasets import ChannelJitter, Events, SpikeDrop, TimeStretch
from tests.words import draw_words

LEVEL = 1e-3  # of the tests of law: seeded, so they pass or fail for good


@pytest.fixture
def events() -> Events:
    words = draw_words(8, most=3000)
    offsets = np.concatenate([[0], np.cumsum([len(t) for t, _ in words])])
    return Events(np.concatenate([t for t, _ in words]), np.concatenate([u for _, u in words]), offsets)


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("change", [ChannelJitter(20.0), TimeStretch(0.8, 1.2), SpikeDrop(0.3)], ids=repr)
def test_a_change_is_the_same_for_the_same_seed_and_touches_neither_its_input_nor_the_layout(events: Events, change):
    before = [part.copy() for part in events]
    one, again, other = (change(events, random(seed)) for seed in (0, 0, 1))
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(events, before, strict=True))
    assert len(one.times) == len(one.units) == one.offsets[-1]
    assert len(one.offsets) == len(events.offsets)
    assert one.units.dtype == np.uint16
    falls = np.diff(one.times) < 0
    assert not falls[np.setdiff1d(np.arange(len(falls)), one.offsets[1:-1] - 1)].any()  # still ascending


def test_channel_jitter_moves_units_by_rounded_normal_numbers_and_drops_what_leaves_the_range(events: Events):
    middle = events._replace(units=np.full_like(events.units, 350))
    moved = ChannelJitter(20.0)(middle, random())
    shift = moved.units.astype(int) - 350
    normal = stats.norm(0, 20)
    edges = np.arange(-60, 61, 5)
    seen = np.histogram(shift, [-1e9, *edges, 1e9])[0]
    expected = np.diff(normal.cdf([-np.inf, *(edges - 0.5), np.inf])) * len(shift)
    assert stats.chisquare(seen, expected).pvalue > LEVEL
    edge = ChannelJitter(20.0)(events._replace(units=np.zeros_like(events.units)), random())
    assert len(edge.units) / len(events.units) == pytest.approx(stats.norm.sf(-0.5 / 20), abs=0.02)
    assert np.array_equal(ChannelJitter(0.0)(events, random()).units, events.units)


def test_time_stretch_scales_each_utterance_by_one_factor_of_a_uniform_law(events: Events):
    slow = TimeStretch(0.8, 1.2)(events, random())
    assert np.array_equal(slow.units, events.units)
    assert np.array_equal(slow.offsets, events.offsets)
    for a, b in zip(events.offsets[:-1], events.offsets[1:], strict=True):
        factors = slow.times[a:b][events.times[a:b] > 0] / events.times[a:b][events.times[a:b] > 0].astype(np.float32)
        assert np.ptp(factors) < 1e-6
    one = Events(np.ones(4000, np.float16), np.zeros(4000, np.uint16), np.arange(4001))
    drawn = TimeStretch(0.8, 1.2)(one, random()).times
    np.random.seed(0)
    theirs = tonic.transforms.TimeSkew(coefficient=(0.8, 1.2))
    skewed = [theirs(np.array([(1.0,)], [("t", float)]))["t"][0] for _ in range(4000)]
    assert stats.kstest(drawn, stats.uniform(0.8, 0.4).cdf).pvalue > LEVEL
    assert stats.ks_2samp(drawn, skewed).pvalue > LEVEL


def test_spike_drop_keeps_each_spike_alone_with_the_same_mean_as_tonics(events: Events):
    p, n = 0.3, 200
    one = Events(np.zeros(500 * n, np.float16), np.tile(np.arange(n, dtype=np.uint16), 500), np.arange(501) * n)
    kept = SpikeDrop(p)(one, random())
    law, edges = stats.binom(n, 1 - p), np.arange(126, 155, 4)
    expected = 500 * np.diff(law.cdf([-np.inf, *edges, np.inf]))
    seen = np.histogram(kept.counts, [-np.inf, *(edges + 0.5), np.inf])[0]
    assert stats.chisquare(seen, expected).pvalue > LEVEL
    assert kept.counts.var() == pytest.approx(n * p * (1 - p), rel=0.2)
    np.random.seed(0)
    theirs = tonic.transforms.DropEvent(p)
    left = [len(theirs(np.zeros(n, [("t", int)]))) for _ in range(5)]
    assert set(left) == {round((1 - p) * n)}
    assert kept.counts.mean() == pytest.approx(left[0], abs=3 * np.sqrt(n * p * (1 - p) / 500))
    by_unit = np.bincount(kept.units, minlength=n)
    assert stats.chisquare(by_unit).pvalue > LEVEL
    assert len(SpikeDrop(0.0)(events, random()).times) == len(events.times)


def test_an_emptied_utterance_stays_in_its_place():
    events = Events(np.float16([0.1, 0.2, 0.3]), np.uint16([1, 2, 3]), np.array([0, 1, 2, 3]))
    kept = SpikeDrop(0.9)(events, random(1))
    assert len(kept.offsets) == 4
    assert kept.counts.min() == 0


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: ChannelJitter(-1.0), "sigma must be zero or positive"),
        (lambda: TimeStretch(0.0, 1.0), "low must be positive"),
        (lambda: TimeStretch(1.2, 0.8), "low must not be above high, got 1.2 and 0.8"),
        (lambda: SpikeDrop(1.0), r"p must be a probability in \[0, 1\), got 1.0"),
    ],
)
def test_numbers_out_of_range_are_refused(make, told: str):
    with pytest.raises(ValueError, match=told):
        make()


@pytest.mark.parametrize(("unit", "last"), [(699, 0.5), (698, 1.5)])
def test_a_spike_moved_beyond_the_last_unit_is_dropped_and_not_put_on_it(unit: int, last: float):
    n = 20_000
    edge = Events(np.zeros(n, np.float16), np.full(n, unit, np.uint16), np.array([0, n]))
    moved = ChannelJitter(1.0)(edge, random()).units
    assert moved.max() == 699
    tolerance = 4 * 0.5 / np.sqrt(n)
    assert len(moved) / n == pytest.approx(stats.norm.cdf(last), abs=tolerance)
    assert (moved == 699).sum() / n == pytest.approx(stats.norm.cdf(last) - stats.norm.cdf(last - 1), abs=tolerance)
