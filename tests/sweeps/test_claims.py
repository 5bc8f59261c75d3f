"""What is said of the paper's central claims follows from the scores as registered."""

from typing import Any

import pytest

from docs.tables.claims import compared, scores_of, share


def trials(part: str, cell: str, layers: int, **scores: list[float]) -> list[dict[str, Any]]:
    """Rows of arms, by the test scores in per cent of seeds 4, 5, 6, 7; seed 0, which chose, is far off."""
    return [
        {"part": part, "cell": cell, "layers": str(layers), "init": arm.replace("_", " "), "seed": seed, "test": score}
        for arm, values in scores.items()
        for seed, score in zip("04567", [0.99, *(value / 100 for value in values)], strict=True)
    ]


@pytest.mark.parametrize(
    ("gain", "said"),
    [
        ([9, 10, 11, 10], "found"),
        ([9, -10, 11, -10], "undecided"),  # 0 ± 19
        ([0.1, 0.0, -0.1, 0.0], "not found"),  # no gain of 3 points
        ([-9, -10, -11, -10], "not found"),
    ],
)
def test_a_claim_is_found_not_found_or_undecided(gain, said):
    rows = trials("d", "ALIFPlus", 2, none=[60] * 4, radius_1=[60 + value for value in gain])
    (comparison,) = compared(scores_of(rows))
    assert comparison.claimed and comparison.said() == said
    assert comparison.differences == pytest.approx(gain)


def test_comparisons_that_are_not_over_count_in_the_correction_and_are_not_shown():
    rows = trials("a", "ALIFPlus", 2, none=[60, 61, 62, 63], radius_1=[65, 67, 66, 68], balanced=[61, 63, 60, 64])
    one, other = compared(scores_of(rows))
    assert [c.arms for c in (one, other)] == [("radius 1", "none"), ("balanced", "none")]
    assert one.corrected == pytest.approx(7 * one.test.pvalue), "of the seven of part a"
    assert one.claimed and not other.claimed and other.said() == "no difference shown"
    assert compared(scores_of([row for row in rows if row["seed"] != "7"])) == []


def test_a_share_of_pairs_is_judged_by_its_interval():
    rows = []
    for cell in ("LSTM", "GRU"):
        for layers in (2, 5):
            rows += trials(
                "c", cell, layers, **{"none": [60] * 4, "radius_0.5": [61, 62, 61, 63], "radius_1": [60, 64, 60, 64]}
            )
    found = compared(scores_of(rows))
    against = {second: [c for c in found if c.arms == ("radius 0.5", second)] for second in ("none", "radius 1")}
    assert share(against["none"], 0.7) == (16, 16, "found")
    assert share(against["radius 1"], 0.63) == (8, 16, "undecided")
    assert share(against["radius 1"], 0.8) == (8, 16, "not found")
    assert share([], 0.63) == (0, 0, "undecided")
