"""The site: the API is whole, and the search finds what users call their trouble."""

import importlib
import re
from collections import Counter
from types import ModuleType

import pytest

pytest.importorskip("mkdocs", reason="the site needs the extra docs")

from docs import hooks, index_readme, notebooks, sphinx_roles

PUBLIC = [
    "neurolsc",
    "neurolsc.surrogate",
    "neurolsc.neurons",
    "neurolsc.stability",
    "neurolsc.theory",
    "neurolsc.init",
    "neurolsc.diagnosis",
    "neurolsc.monitor",
    "neurolsc.datasets",
    "neurolsc.tasks",
    "neurolsc.training",
    "neurolsc.metrics",
    "neurolsc.experiment",
    "neurolsc.export",
    "neurolsc.plots",
]


def found(name: str) -> object:
    """What stands under a dotted name."""
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last)


def test_every_public_name_is_in_the_api_once():
    listed = [name for page in hooks.pages() for _, names in hooks.sections(page) for name in names]
    assert len(set(listed)) == len(listed)
    times = Counter(id(found(name)) for name in listed)
    wrong = {}
    for module in map(importlib.import_module, PUBLIC):
        for name in module.__all__:
            value = getattr(module, name)
            if not isinstance(value, ModuleType) and times[id(value)] != 1:
                wrong[f"{module.__name__}.{name}"] = times[id(value)]
    assert not wrong


def test_every_page_of_the_api_is_in_its_table_and_its_names_in_the_list():
    pages = hooks.pages()
    assert {*pages, hooks.API / "index.md"} == set(hooks.API.glob("*.md"))
    text = hooks.names()
    assert "## More than radii\n" in text
    for name in ("neurolsc.pretrain", "neurolsc.stability.pretrain.pretrain", "neurolsc.surrogate.Arctan"):
        assert (f"{{ #{name} }}" in text) == (name != "neurolsc.pretrain")


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("dead neurons", "diagnose.md"),
        ("exploding gradients", "diagnose.md"),
        ("vanishing gradients", "diagnose.md"),
        ("dead neurons", "initialise.md"),
        ("exploding gradients", "initialise.md"),
        ("initialise", "initialise.md"),
        ("initialize", "initialise.md"),
        ("snntorch", "interop.md"),
    ],
)
def test_the_search_finds_what_users_call_their_trouble(words: str, page: str):
    """The search of the theme reads the text of pages, code and comments left out."""
    text = (hooks.API.parent / page).read_text(encoding="utf-8")
    assert words in re.sub(r"^```.*?^```|<!--.*?-->", "", text, flags=re.M | re.S).lower()


def test_the_front_page_is_readme_with_the_links_of_the_site():
    text = hooks.front_page()
    assert "(docs/" not in text
    assert "(diagnose.md)" in text
    assert "(changelog.md)" in text


LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")


def test_no_link_of_readme_is_lost_where_the_repository_has_an_address(monkeypatch):
    """What the site does not have, such as CITATION.cff, stands in the repository."""
    readme, address = (hooks.ROOT / "README.md").read_text(encoding="utf-8"), "https://example.org/neurolsc"
    urls = {"project": {"urls": {"Repository": address}}}
    monkeypatch.setattr(hooks.tomllib, "loads", lambda text: urls)
    links = LINK.findall(hooks.front_page())
    assert len(links) == len(LINK.findall(readme))
    assert f"{address}/blob/main/CITATION.cff" in links
    for link in links:
        path = hooks.ROOT / "docs" / link.partition("#")[0]
        assert link.startswith("https://") or path.exists() or path.with_suffix(".py").exists(), link


def test_the_benchmarks_are_a_page_with_the_links_of_the_site():
    text = (hooks.ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    page = hooks.with_links(text, "benchmarks")
    assert "(changelog.md)" in page
    assert "(study_tables.md#networks-of-snntorch)" in page
    assert "](../" not in page
    assert hooks.with_links("[there](#place)") == "[there](#place)"
    assert "(benchmarks.md#a-users-own-loop-userspy)" in hooks.front_page()


@pytest.mark.parametrize("address", ["", "https://example.org/neurolsc"])
def test_readme_has_no_relative_link_on_an_index(address: str):
    urls = {"Repository": address} if address else {}
    metadata = {"urls": urls}
    index_readme.IndexReadme(str(hooks.ROOT), {}).update(metadata)
    text = metadata["readme"]["text"]
    assert "[Stabilizing RNN Gradients through Pre-training](https://arxiv.org" in text
    links = LINK.findall(text)
    assert all(link.startswith("https://") for link in links)
    assert (f"{address}/blob/main/docs/diagnose.md" in links) == bool(address)
    assert "diagnose`" in text


def test_examples_of_docstrings_are_a_section_that_the_api_shows_as_code():
    assert sphinx_roles.to_markdown("A.\n\nExample:\n    >>> 1\n    1\n").startswith("A.\n\nExamples:\n    >>>")


def test_tutorials_that_are_not_run_are_pages_without_output(monkeypatch):
    monkeypatch.setenv("TUTORIALS", "unrun")
    notebook = notebooks.cached(notebooks.TUTORIALS[0])
    assert not any(cell.get("outputs") for cell in notebook.cells)
    text, pictures = notebooks.page(notebook, "1_first_network")
    assert "```python\n" in text
    assert not pictures
