"""Trials known from a table: they are rows, and are not run."""

import csv
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from neurolsc.cli import app
from neurolsc.runs import Stopped
from neurolsc.sweeps import read_sweep, run_sweep
from neurolsc.sweeps.figures import draw
from neurolsc.sweeps.known import read_known
from neurolsc.sweeps.work import Job
from tests.sweeps.grids import CHOOSING, SMALL, Here, grid, write_grid

pytestmark = pytest.mark.usefixtures("quick")


def csv_rows(table: Path) -> list[dict[str, str]]:
    with table.open(newline="") as file:
        return list(csv.DictReader(file))


def rewritten(table: Path, to: Path, change: Any) -> Path:
    """A table with changed rows; those of which the change is None are left out."""
    rows = [changed for row in csv_rows(table) if (changed := change(row)) is not None]
    with to.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return to


def test_a_sweep_from_a_table_is_the_sweep_itself(tmp_path: Path):
    made = grid(tmp_path / "grids", **CHOOSING)
    first = run_sweep(made, tmp_path / "first", Here(), progress=False)
    table = tmp_path / "first" / "table.csv"
    rows = run_sweep(made, tmp_path / "again", pool := Here(), known=table, progress=False)
    assert not pool.jobs
    assert [row | told for row, told in zip(rows, first, strict=True)] == rows  # and None where a cell is empty
    copy, original = (csv_rows(path) for path in (tmp_path / "again" / "table.csv", table))
    assert copy == original


def test_it_is_kept_and_what_is_missing_is_run(tmp_path: Path):
    made = grid(tmp_path / "grids", **SMALL)
    first = run_sweep(made, tmp_path / "first", Here(), progress=False)
    part = rewritten(tmp_path / "first/table.csv", tmp_path / "part.csv", lambda r: r if r["layers"] == "1" else None)
    rows = run_sweep(made, tmp_path / "s", pool := Here(), known=part, progress=False)
    assert [job.trial.settings["layers"] for job in pool.jobs] == [2, 2]
    part.unlink()
    assert run_sweep(made, tmp_path / "s", pool := Here(), progress=False) == rows == read_sweep(tmp_path / "s")[1]
    assert not pool.jobs
    assert [row["validation_loss"] for row in rows] == [row["validation_loss"] for row in first]


class Unwilling(Here):
    def start(self, job: Job) -> None:
        raise KeyboardInterrupt


def test_two_tables_are_put_together(tmp_path: Path):
    made = grid(tmp_path / "grids", **SMALL)
    run_sweep(made, tmp_path / "first", Here(), progress=False)
    parts = [
        rewritten(tmp_path / "first/table.csv", tmp_path / f"{n}.csv", lambda r, n=n: r if r["layers"] == n else None)
        for n in "12"
    ]
    with pytest.raises(Stopped, match="2 of 4 trials are over"):
        run_sweep(made, tmp_path / "s", Unwilling(), known=parts[0], progress=False)
    assert len(run_sweep(made, tmp_path / "s", pool := Here(), known=parts[1], progress=False)) == 4
    assert not pool.jobs


def test_a_trial_chosen_later_is_still_tested(tmp_path: Path):
    made = grid(tmp_path / "grids", **CHOOSING)
    run_sweep(made, tmp_path / "first", Here(), progress=False)
    bare = rewritten(
        tmp_path / "first/table.csv",
        tmp_path / "bare.csv",
        lambda r: {name: value for name, value in r.items() if not name.startswith("test_")},
    )
    rows = run_sweep(made, tmp_path / "s", pool := Here(), known=bare, progress=False)
    assert pool.jobs
    assert all(job.test for job in pool.jobs)
    assert len(pool.jobs) == sum(row["chosen"] for row in rows)
    assert all((row.get("test_mode_accuracy") is not None) is row["chosen"] for row in rows)


def test_what_came_to_an_error_is_run_again(tmp_path: Path):
    made = grid(tmp_path / "grids", **SMALL)
    run_sweep(made, tmp_path / "first", Here(), progress=False)
    table = rewritten(
        tmp_path / "first/table.csv",
        tmp_path / "t.csv",
        lambda r: r | ({"error": "it fell"} if r["seed"] == "0" else {}),
    )
    run_sweep(made, tmp_path / "s", pool := Here(), known=table, progress=False)
    assert [job.trial.settings["seed"] for job in pool.jobs] == [0, 0]


def test_a_run_in_the_folder_stands_before_a_row(tmp_path: Path):
    made = grid(tmp_path / "grids", **SMALL)
    first = run_sweep(made, tmp_path / "s", Here(), progress=False)
    other = rewritten(tmp_path / "s/table.csv", tmp_path / "t.csv", lambda r: r | {"validation_loss": "77.0"})
    assert run_sweep(made, tmp_path / "s", Here(), known=other, progress=False) == first
    shutil.rmtree(tmp_path / "s" / first[0]["trial"])
    rows = run_sweep(made, tmp_path / "s", pool := Here(), progress=False)
    assert not pool.jobs
    assert [row["validation_loss"] == 77.0 for row in rows] == [True, False, False, False]


def test_figures_are_drawn_of_what_there_is(tmp_path: Path):
    made = grid(tmp_path / "grids", **SMALL)
    run_sweep(made, tmp_path / "first", Here(), progress=False)
    part = rewritten(tmp_path / "first/table.csv", tmp_path / "part.csv", lambda r: r if r["layers"] == "1" else None)
    rows = run_sweep(made, tmp_path / "s", Here(), known=part, progress=False)
    assert [path.name for path in draw(made, rows, tmp_path / "s")] == ["learning.png", "scores.png"]
    rows = run_sweep(made, tmp_path / "all", Here(), known=tmp_path / "first/table.csv", progress=False)
    assert [path.name for path in draw(made, rows, tmp_path / "all")] == ["scores.png"]


def test_settings_that_differ_under_one_name_are_refused(tmp_path: Path):
    made = grid(tmp_path / "grids", **SMALL)
    run_sweep(made, tmp_path / "first", Here(), progress=False)
    other = rewritten(tmp_path / "first/table.csv", tmp_path / "t.csv", lambda r: r | {"tau_v": "20.0"})
    told = r"is known with tau_v 20.0, and 0.1 is asked for: it was run when defaults were others"
    with pytest.raises(ValueError, match=told):
        run_sweep(made, tmp_path / "s", Here(), known=other, progress=False)
    assert not (tmp_path / "s").exists()


def test_a_table_of_other_trials_is_refused(tmp_path: Path):
    made = grid(tmp_path / "grids", **SMALL)
    run_sweep(made, tmp_path / "first", Here(), progress=False)
    other = grid(tmp_path / "grids", **SMALL | {"grid": {"layers": [3], "seed": [0, 1]}})
    with pytest.raises(ValueError, match="none of its 4 finished trials is a trial of small"):
        run_sweep(other, tmp_path / "s", Here(), known=tmp_path / "first" / "table.csv", progress=False)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "not the table of a sweep: it has no column trial, finished, error"),
        ("trial,finished\na,True\n", "not the table of a sweep: it has no column error"),
        ("trial,finished,error\na,True\n", "row 1: a row has a cell for each of 3 columns"),
        ("trial,finished,error\na,True,,4\n", "row 1: a row has a cell for each of 3 columns"),
        ('trial,finished,error\n"a,True,\n', "not the table of a sweep .Error"),
        ("\xff", "not the table of a sweep .UnicodeDecodeError"),
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, content: str, told: str):
    path = tmp_path / "t.csv"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=rf"t.csv: {told}"):
        read_known(path)


def test_a_missing_or_an_endless_table_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ValueError, match=r"cannot read the table .*t.csv: No such file"):
        read_known(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_text("trial,finished,error\n")
    monkeypatch.setattr("neurolsc.sweeps.known.LONGEST", 10)
    with pytest.raises(ValueError, match="a table takes less than 10 bytes"):
        read_known(tmp_path / "t.csv")


def test_the_command_takes_a_table(tmp_path: Path):
    made = grid(tmp_path / "grids", **SMALL)
    run_sweep(made, tmp_path / "first", Here(), progress=False)
    given = [str(write_grid(tmp_path / "g.toml", **SMALL)), "--out", str(tmp_path / "s")]
    result = CliRunner().invoke(app, ["sweep", *given, "--known", str(tmp_path / "first" / "table.csv")])
    assert result.exit_code == 0, result.output
    assert "4 trials in" in result.output
    assert len(read_sweep(tmp_path / "s")[1]) == 4
