"""The tutorials: scripts whose claims hold, notebooks, and pages of the site."""

import ast
import re
from pathlib import Path

import nbformat
import pytest

from docs import notebooks

ROOT = Path(__file__).parent.parent
EACH = pytest.mark.parametrize("path", notebooks.TUTORIALS, ids=lambda path: path.stem)


@pytest.mark.slow
@EACH
def test_the_claims_of_a_tutorial_hold(path: Path):
    """Run by the docs build before, or now: its last cell asserts."""
    cells = [cell for cell in notebooks.cached(path).cells if cell.cell_type == "code"]
    assert any(output.output_type == "stream" for cell in cells for output in cell.outputs)
    for cell in cells:
        shown = sum("image/png" in output.get("data", ()) for output in cell.outputs)
        assert shown == cell.source.count("plt.show()") + cell.source.count(".plot()"), cell.source


@EACH
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
