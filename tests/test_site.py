"""The site: the API is whole."""

import importlib
from collections import Counter
from types import ModuleType

import pytest

pytest.importorskip("mkdocs", reason="the site needs the extra docs")

from docs import hooks

PUBLIC = [
    "neurolsc",
    "neurolsc.surrogate",
    "neurolsc.neurons",
    "neurolsc.stability",
    "neurolsc.theory",
    "neurolsc.initialisers",
    "neurolsc.diagnosis",
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


def test_the_front_page_is_readme_with_the_links_of_the_site():
    text = hooks.front_page()
    assert "(docs/" not in text
    assert "(diagnose.md)" in text
    assert "CHANGELOG.md" not in text, "the site has no such page"
