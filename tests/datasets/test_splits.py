import numpy as np
import pytest

from neurolsc.datasets import hold_out
from neurolsc.datasets.splits import carve

SPEAKERS = np.repeat(np.arange(10), [5, 7, 9, 11, 13, 15, 17, 19, 21, 23])


@pytest.mark.parametrize("by", ["random", "speaker"])
def test_the_parts_are_disjoint_complete_and_the_same_for_the_same_seed(by):
    parts, again, other = (hold_out(SPEAKERS, by, share=0.2, seed=seed) for seed in (0, 0, 1))
    assert sorted([*parts.train, *parts.validation]) == list(range(len(SPEAKERS)))
    assert all((np.diff(part) > 0).all() for part in parts)
    assert parts.validation.tolist() == again.validation.tolist() != other.validation.tolist()


def test_random_utterances_are_of_the_asked_number_and_all_voices():
    parts = hold_out(SPEAKERS, "random", share=0.25)
    assert len(parts.validation) == round(0.25 * len(SPEAKERS))
    assert len(np.unique(SPEAKERS[parts.train])) == 10


@pytest.mark.parametrize(("share", "speakers"), [(0.2, 2), (0.1, 1), (0.01, 1), (0.5, 5)])
def test_held_out_speakers_are_in_one_part_only(share: float, speakers: int):
    parts = hold_out(SPEAKERS, "speaker", share=share)
    held = set(SPEAKERS[parts.validation])
    assert len(held) == speakers
    assert not held & set(SPEAKERS[parts.train])


@pytest.mark.parametrize(
    ("arguments", "kind", "told"),
    [
        ({"by": "voice"}, ValueError, "by must be one of 'random', 'speaker', got 'voice'"),
        ({"by": "random", "share": 1.0}, ValueError, "share must be between 0 and 1, got 1.0"),
        ({"by": "random", "share": 0.0}, ValueError, "share must be between 0 and 1"),
        ({"by": "speaker", "share": 0.99}, ValueError, "holding out 10 of 10 .speaker. leaves nothing"),
        ({"by": "random", "seed": -1}, ValueError, "seed must be at least 0"),
        ({"by": "random", "seed": 0.5}, TypeError, "seed must be an int"),
    ],
)
def test_what_cannot_be_held_out_is_refused(arguments, kind, told: str):
    with pytest.raises(kind, match=told):
        hold_out(SPEAKERS, **arguments)


def test_unknown_speakers_are_not_held_out_but_their_utterances_are():
    nobody = np.full(20, -1)
    assert len(hold_out(nobody, "random", share=0.25).validation) == 5
    with pytest.raises(ValueError, match="the data do not say"):
        hold_out(nobody, "speaker", share=0.25)


def test_carved_parts_are_the_permutation_cut_one_after_another():
    parts = carve(20, {"validation": 4, "train": 10}, 3)
    permutation = np.random.RandomState(3).permutation(20)
    assert list(parts) == ["validation", "train"]
    assert parts["validation"].tolist() == permutation[:4].tolist()
    assert parts["train"].tolist() == permutation[4:14].tolist()
    assert len(carve(20, {"all": 20}, 3)["all"]) == 20


@pytest.mark.parametrize(
    ("sizes", "seed", "kind", "told"),
    [
        ({"a": 15, "b": 6}, 0, ValueError, "in all need 21 items, got 20"),
        ({"a": 5}, -1, ValueError, "seed must be at least 0"),
        ({"a": 5}, 1.0, TypeError, "seed must be an int"),
    ],
)
def test_what_cannot_be_carved_is_refused(sizes, seed, kind, told: str):
    with pytest.raises(kind, match=told):
        carve(20, sizes, seed)
