"""Examples, tutorials, recipes and Python blocks of the docs run as a user would run them, and make their pages."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import neurolsc
from tests.patterns import Patterns, small_network

pytest.importorskip("nbformat", reason="the docs extra is not installed")
import nbformat

from docs import hooks, notebooks, sessions

ROOT = Path(__file__).parent.parent
EXAMPLES = hooks.EXAMPLES
TUTORIALS = pytest.mark.parametrize("path", notebooks.TUTORIALS, ids=lambda path: path.stem)
PAGES = [ROOT / "docs" / name for name in ("interop.md", "your_own_neuron.md")]


def run(*arguments: str, folder: Path) -> str:
    """Run Python in a folder of its own, on one thread and without a display; what it printed."""
    strict = "error,ignore:`torch.jit.script` is deprecated:DeprecationWarning"  # norse raises it when it is imported
    environment = os.environ | {"MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": strict}
    environment |= {"PYTHONUNBUFFERED": "1"}
    environment.pop("NEUROLSC_LAVA_PYTHON", None)
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def blocks(page: Path) -> list[str]:
    """The Python blocks of a Markdown page."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.long
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_the_gallery_shows_and_leaves_only_its_picture(path, tmp_path):
    shown = hooks.printed(path).read_text(encoding="utf-8")
    printed = run(str(path), "picture.png", folder=tmp_path)
    # what a script claims it asserts
    assert sessions.differences(shown, printed, sessions.BANDS["gallery"]) == [], "run `make sessions`"
    assert [file.name for file in tmp_path.iterdir()] == ["picture.png"]
    with Image.open(tmp_path / "picture.png") as picture:
        assert min(picture.size) > 200


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES, ids=[p.name for p in PAGES])
def test_the_code_on_a_page_runs(page, tmp_path):
    code = blocks(page)
    assert code
    for block in code:
        assert run("-c", block, folder=tmp_path)


def test_the_gallery_lists_every_example():
    examples = [path.stem for path in EXAMPLES]
    assert sorted(hooks.PLACE.findall((ROOT / "docs" / "gallery.md").read_text(encoding="utf-8"))) == examples
    places = [place for path in EXAMPLES for place in (hooks.picture(path), hooks.printed(path))]
    assert places == sorted(hooks.printed(EXAMPLES[0]).parent.iterdir())
    assert all(hooks.picture(path).stat().st_size < 60_000 for path in EXAMPLES)


@pytest.mark.parametrize("path", EXAMPLES, ids=[p.stem for p in EXAMPLES])
def test_the_gallery_shows_question_time_output_picture_and_script(path):
    text = path.read_text(encoding="utf-8")
    shown = hooks.example(path)
    question, seconds = re.match(r'"""(.+?\?).*?Takes\s(\d+ s)\son', text, re.S).groups()
    assert shown.startswith(f"### {' '.join(question.split())} {{ #{path.stem} }}\n")
    assert f"about {seconds} on a CPU" in shown
    assert hooks.printed(path).read_text(encoding="utf-8").strip() in shown
    assert f"](gallery/{path.stem}.png)\n" in shown
    assert text.strip() in shown


# tutorials


@pytest.mark.long
@TUTORIALS
def test_the_claims_of_a_tutorial_hold(path: Path):
    """Run by the docs build, unless TUTORIALS=unrun, or now: its last cell asserts."""
    cells = [cell for cell in notebooks.cached(path).cells if cell.cell_type == "code"]
    assert any(output.output_type == "stream" for cell in cells for output in cell.outputs)
    for cell in cells:
        shown = sum("image/png" in output.get("data", ()) for output in cell.outputs)
        assert shown == cell.source.count("plt.show()") + cell.source.count(".plot()"), cell.source


@TUTORIALS
def test_a_tutorial_is_a_notebook_with_a_title_pictures_and_assertions(path: Path):
    notebook = notebooks.unrun(path)
    nbformat.validate(notebook)
    title = notebook.cells[0].source.splitlines()[0]
    assert re.fullmatch(rf"# {path.stem[0]}\. .+", title)
    code = [ast.parse(cell.source) for cell in notebook.cells if cell.cell_type == "code"]
    assert any("plt.show()" in cell.source for cell in notebook.cells)
    last = [statement for part in code for statement in part.body][-1]
    assert isinstance(last, ast.Assert)


def test_tutorials_are_numbered_and_stand_right_after_the_start_page():
    numbers = [int(path.stem[0]) for path in notebooks.TUTORIALS]
    assert numbers == list(range(1, len(numbers) + 1))
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = "".join(rf"      - {path.stem[0]}\. .*: tutorials/{path.stem}\.md\n" for path in notebooks.TUTORIALS)
    assert re.search(rf"  - Start:\n      - index\.md\n{listed}      - ", nav)


# recipes of docs/training.md, on a small network


def recipe(heading: str) -> dict:
    """Run the code under a heading, with fewer epochs."""
    part = (ROOT / "docs" / "training.md").read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"^```python\n(.*?)^```", part, re.M | re.S)
    names = {"network": small_network(), "training": Patterns(12), "validation": Patterns(6), "train": neurolsc.train}
    names["words"] = names["training"]
    exec(code.replace("epochs=40", "epochs=2, progress=False"), names)
    return names


def test_loaders():
    assert len(recipe("Loaders")["result"].history) == 2


def test_a_task_of_your_own():
    result = recipe("A task of your own")["result"]
    assert len(result.history) == 2
    assert 0 <= result.best["validation_accuracy"] <= 1
    assert result.best["firing_rate"][0] > 0


def test_learning_rates_by_torchs_schedulers():
    assert recipe("Learning rates by torch's schedulers")["rise_and_fall"].every == "update"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of tensorboard's import
def test_tensorboard(tmp_path: Path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.chdir(tmp_path)
    recipe("TensorBoard")
    board = EventAccumulator(str(tmp_path / "runs" / "board"))
    board.Reload()
    assert {"validation_loss", "firing_rate/layer_1", "firing_rate/layer_2"} <= set(board.Tags()["scalars"])
    assert [event.step for event in board.Scalars("validation_loss")] == [1, 2]


@pytest.mark.long
def test_weights_and_biases_offline(tmp_path: Path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    recipe("Weights & Biases")
    wandb.teardown()  # until then its process may hold what is to be written
    (written,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert b"validation_loss" in written.read_bytes()
