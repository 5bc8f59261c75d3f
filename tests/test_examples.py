"""Every example, and Python blocks of docs without output, run as a user would run them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from docs import hooks, sessions

ROOT = Path(__file__).parent.parent
EXAMPLES = hooks.EXAMPLES
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


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_the_gallery_shows_and_leaves_only_its_picture(path, tmp_path):
    shown = hooks.printed(path).read_text(encoding="utf-8")
    printed = run(str(path), "picture.png", folder=tmp_path)
    # what a script claims it asserts
    assert sessions.differences(shown, printed, sessions.BANDS["gallery"]) == [], "run `make sessions`"
    assert [file.name for file in tmp_path.iterdir()] == ["picture.png"]
    with Image.open(tmp_path / "picture.png") as picture:
        assert min(picture.size) > 200


@pytest.mark.slow
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
