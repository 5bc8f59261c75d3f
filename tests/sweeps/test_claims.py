"""What is said of the paper's central claims follows from the scores as registered."""

from typing import Any

import pytest

from docs.tables import claims
from docs.tables.claims import claimed, compared, reached_of, scores_of, share


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
        ([9, -10, 11, -10], "undecided: -18 to +18 points"),
        ([0.1, 0.0, -0.1, 0.0], "not found"),  # no gain of 3 points
        ([-9, -10, -11, -10], "not found"),
        ([0, 0, 0, 0], "not found: both arms stay at chance"),
    ],
)
def test_a_claim_is_found_not_found_or_undecided(gain, said):
    rows = trials("d", "ALIFPlus", 2, none=[60] * 4, radius_1=[60 + value for value in gain])
    (comparison,) = compared(scores_of(rows))
    assert claimed(comparison.network, comparison.arms) and comparison.said() == said
    assert comparison.differences == pytest.approx(gain)


def test_what_is_undecided_after_the_correction_alone_says_so():
    rows = trials("a", "ALIFPlus", 2, none=[60] * 4, radius_1=[62, 66, 64, 68])
    (comparison,) = compared(scores_of(rows))
    assert comparison.said() == "undecided: +1 to +9 points, and p is 0.21 after the correction"


def test_the_paper_claims_no_gain_of_gated_cells_in_two_layers():
    """Its Fig. 3: "No pre-training matched the rate of 0.5 for depth 2"."""
    for cell in ("LSTM", "GRU"):
        assert claimed(("c", cell, "5"), ("radius 0.5", "none"))
        assert not claimed(("c", cell, "2"), ("radius 0.5", "none"))
        assert claimed(("c", cell, "2"), ("radius 0.5", "radius 1"))


def test_more_so_with_depth_is_the_gain_at_five_layers_minus_that_at_two():
    rows = trials("a", "ALIFPlus", 2, none=[60, 61, 62, 63], radius_1=[61, 63, 62, 64])
    rows += trials("b", "ALIFPlus", 5, none=[40, 41, 42, 43], radius_1=[51, 53, 52, 54])
    found = compared(scores_of(rows))[-1]
    assert found.network == ("a, b", "ALIFPlus", "5 - 2") and found.differences == pytest.approx([10] * 4)
    assert claimed(found.network, found.arms)


@pytest.fixture
def with_trials(monkeypatch: pytest.MonkeyPatch):
    def set_trials(rows: list[dict[str, Any]]) -> None:
        monkeypatch.setattr(claims, "_trials", lambda: rows)

    return set_trials


def test_one_table_has_every_registered_comparison(with_trials):
    """Section 21: 7 of a and of b, 12 of c, one of d; and three between depths."""
    with_trials([])
    *table, _, counted = claims.study_claims()
    assert len(table) == 2 + 7 + 7 + 12 + 1 + 3
    assert all(line.endswith("| 0 | - | - | - | - | not run |") for line in table[2:])
    assert counted == "*Found 0, not found 0, undecided 0, not run 12 of 12 claims the paper makes.*"
    with_trials(trials("d", "ALIFPlus", 2, none=[60] * 4, radius_1=[69, 70, 71, 70]))
    assert "| d: 2 layers of ALIF+ | radius 1 - none | yes | 4 | +10.0 | +8.7 to +11.3 |" in claims.study_claims()[-6]
    assert claims.study_claims()[-1] == "*Found 1, not found 0, undecided 0, not run 11 of 12 claims the paper makes.*"


def test_the_shares_are_of_each_depth_and_stand_before_they_have_run(with_trials):
    with_trials([])
    assert [line.split(" | ")[0] for line in claims.study_claims_shares()[2:]] == [
        "| LSTM and GRU, 0.5 ahead of radius 1, 2 layers",
        "| LSTM and GRU, 0.5 ahead of radius 1, 5 layers",
        "| LSTM and GRU, 0.5 ahead of none, 5 layers",
        "| LSTM and GRU, 0.5 ahead of none, 2 layers",
    ]
    assert all(line.endswith("| - | not run |") for line in claims.study_claims_shares()[2:])
    scores = {"none": [60] * 4, "radius_0.5": [61, 62, 61, 63], "radius_1": [60, 60, 60, 64]}
    with_trials(trials("c", "LSTM", 2, **scores))
    assert claims.study_claims_shares()[2].endswith("| - | not run |"), "GRU is not over"
    with_trials(trials("c", "LSTM", 2, **scores) + trials("c", "GRU", 2, **scores))
    assert claims.study_claims_shares()[2].endswith("| more than 63% | 6 of 8 | undecided |")
    assert claims.study_claims_shares()[3].endswith("| - | not run |")


@pytest.mark.parametrize(("printed", "most"), [(0.63, 1), (0.7, 2)])
def test_of_eight_pairs_eight_are_found_and_few_are_not(printed: float, most: int):
    for ahead in range(9):
        differences = [1.0] * ahead + [-1.0] * (8 - ahead)
        comparison = claims.Comparison(("c", "GRU", "5"), ("radius 0.5", "none"), differences, 1.0, 1.0)
        said = "found" if ahead == 8 else "not found" if ahead <= most else "undecided"
        assert share([comparison], printed) == (ahead, 8, said)


def test_the_seeds_that_chose_are_shown_at_the_papers_own_rate(with_trials):
    rows = [
        {"part": "a", "cell": "ALIFPlus", "layers": "2", "init": "none", "lr": lr, "seed": seed, "test": score}
        for lr, score in (("0.001", 0.5), ("0.002", 0.9))
        for seed in "01234567"
    ]
    with_trials(rows)
    table = claims.study_claims_own_rate()
    assert table[2] == "| a: 2 layers of ALIF+ | 50.0±0.0 | not run | not run | not run | not run |"
    assert table[4] == "| c: 2 layers of LSTM | not run | not run | - | not run | not run |"
    with_trials([row for row in rows if row["seed"] != "3"])
    assert "50.0" not in "".join(claims.study_claims_own_rate())


def test_radii_are_those_of_the_weights_that_are_trained(with_trials):
    """One network for a seed, whatever the learning rate; `radii` and `pooled` are of the loop's last step."""
    row = {"part": "b", "cell": "ALIFPlus", "layers": "5", "init": "radius 1", "reached": "False", "pooled": "29.0"}
    row |= {"radii": "100 1 1 14", "time_radius": "1.0 1.2", "depth_radius": "0.9 0.1"}
    other = row | {"seed": "1", "reached": "True", "pooled": "1.0", "depth_radius": "0.9 0.3"}
    rows = [row | {"seed": "0", "lr": "0.001"}, row | {"seed": "0", "lr": "0.002"}, other]
    (found,) = reached_of(rows).values()
    assert (found.reached, found.pooled) == (1, [29.0, 1.0])
    assert sorted(found.distances) == pytest.approx([0, 0, 0.1, 0.1, 0.2, 0.2, 0.7, 0.9])
    with_trials(rows)
    _, _, line, _, sentence = claims.study_claims_radii()
    assert line.endswith("| 1 | 1 of 2 | 1.00, 1.20 | 0.90, 0.20 | 0.27, 0.90 | 1.00 to 29.00 |")
    assert "ALIF+ reaches radius 1 in 1 of 2 networks" in sentence and "0.27 from 1 on average, and 0.90" in sentence
    assert claims.targets(("b", "ALIFPlus", "5"), "balanced") == pytest.approx((50 / 55, 5 / 55))
    with_trials([])
    assert len(claims.study_claims_radii()) == 2


def test_comparisons_that_are_not_over_count_in_the_correction_and_are_not_shown():
    rows = trials("a", "ALIFPlus", 2, none=[60, 61, 62, 63], radius_1=[65, 67, 66, 68], balanced=[61, 63, 60, 64])
    one, other = compared(scores_of(rows))
    assert [c.arms for c in (one, other)] == [("radius 1", "none"), ("balanced", "none")]
    assert one.corrected == pytest.approx(7 * one.p), "of the seven of part a"
    assert not claimed(other.network, other.arms) and other.said() == "no difference shown"
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
