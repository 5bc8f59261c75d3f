"""One figure from its first trial to its picture and its reading."""

from dataclasses import asdict
from pathlib import Path

from examples.paper.asked import Asked
from examples.paper.figure import Figure, Result
from examples.paper.reading import sentence
from examples.paper.trials import trained
from neurolsc.experiment import Trial, run_sweep
from neurolsc.experiment.sweep import Pool
from neurolsc.io import write_json, write_text

READING = "reading.txt"
JUDGED = "reading.json"
TRIALS = "trials"


def trials_of(figure: Figure, asked: Asked) -> list[Trial]:
    """The trials that a figure will have run in the end."""
    return [trial for grid in figure.grids(asked) for trial in grid.trials]


def reproduce(
    figure: Figure,
    out: Path,
    asked: Asked,
    pool: Pool,
    *,
    retry: bool = False,
    device: str = "cpu",
    progress: bool = True,
) -> str:
    """Run what a figure has to train, draw it, and tell what of the paper was found.

    Written are ``figure.png``, or the tables ``table.csv`` and ``table.md``, and ``reading.txt``,
    with its claims apart as ``reading.json``.
    Trials lie in ``trials``, a sweep for each data set; whatever stops them, the same call goes on.

    Args:
        figure: one of :data:`examples.paper.FIGURES`.
        out: folder, made if it is missing.
        asked: the size, and which data.
        pool: who runs the trials.
        retry: run those anew that came to an error.
        device: where networks are trained, as torch calls it.
        progress: show bars over the trials.

    Returns:
        The reading, one line.

    Raises:
        ValueError: if data are wanted and no root is given, or torch cannot use the device.
        OSError: if the folder cannot be written.
        Stopped: for a KeyboardInterrupt.
    """
    grids = figure.grids(asked)
    asked.check(figure.datasets(asked))
    out.mkdir(parents=True, exist_ok=True)
    results = []
    for grid in grids:
        folder = out / TRIALS / grid.name
        rows = run_sweep(grid, folder, pool, retry=retry, device=device, progress=progress)
        results.append(Result(grid, tuple(rows), folder))
    found = figure.measure(asked, results)
    figure.draw(found, out)
    notes = figure.notes(asked)
    if results:
        whole = len(trials_of(figure, Asked("paper")))
        notes = [trained(results) + ("" if asked.whole else f"; the paper's grid has {whole}"), *notes]
    judged = figure.judge(found)
    told = sentence(f"{figure.title}, size {asked.size}", judged, notes)
    write_json(out / JUDGED, {"figure": figure.title, "size": asked.size, "judged": [asdict(one) for one in judged]})
    write_text(out / READING, f"{told}\n")
    return told
