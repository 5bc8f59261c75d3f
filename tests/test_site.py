"""The site: formulas are drawn when it is built, no other host is asked, the API is whole."""

import importlib
import re
from collections import Counter
from types import ModuleType

import pytest

pytest.importorskip("mkdocs", reason="the site needs the extra docs")

from mkdocs.exceptions import PluginError

from docs import api_names, formulas, front_page, own_host


class Page:
    """What the hooks ask of a page."""

    class file:  # noqa: N801
        src_uri = "a.md"


def built(text: str) -> str:
    """A page that consists of this text, as it leaves the hook of formulas."""
    formulas.on_pre_build()
    content = formulas.on_page_content(text, page=Page)
    formulas.on_env(None)
    return formulas.on_post_page(content)


def test_a_formula_is_drawn_when_the_site_is_built():
    page = built(
        r'a <span class="arithmatex">\(x &lt; \tau_v\)</span> <div class="arithmatex">\[\n\rho\n\]</div>'.replace(
            r"\n", "\n"
        )
    )
    assert page.count('class="katex-html"') == 2
    assert page.count("katex-display") == 1
    assert r"\(" not in page
    assert r"\[" not in page


def test_a_formula_that_is_none_stops_the_build():
    with pytest.raises(PluginError, match=r"a.md: KaTeX parse error: .*\\nosuch"):
        built(r'<span class="arithmatex">\(\nosuch x\)</span>')


@pytest.mark.parametrize(
    "text", [r"<p>\quad z</p>", "<p>$$ x $$</p>", "<p>of $x_1$</p>", "<p>:math:<code>x</code></p>"]
)
def test_tex_that_no_formula_holds_stops_the_build(text: str):
    with pytest.raises(PluginError, match="would show TeX as it is"):
        built(text)


def test_tex_in_code_is_shown():
    assert built(r"<code>\quad $x$</code> and $5") == r"<code>\quad $x$</code> and $5"


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://cdn.example/x.js"></script>',
        '<link rel="stylesheet" href="//cdn.example/x.css">',
        '<img alt="" src="http://example.org/x.png">',
        '<img alt="" srcset="https://example.org/x.png 2x">',
        '<link rel="preconnect" href="https://fonts.example">',
        "<style>@import 'https://example.org/x.css';</style>",
        '<p style="background: url(https://example.org/x.png)">',
        '<pre class="mermaid"></pre>',
    ],
)
def test_what_a_page_would_load_from_another_host_is_seen(text: str):
    assert own_host.foreign(text)


def test_links_to_other_hosts_and_files_of_the_site_are_no_requests():
    assert not own_host.foreign(
        '<a href="https://arxiv.org">x</a><img src="../x.png"><script src="assets/x.js"></script>'
    )
    assert not own_host.foreign('<link rel="canonical" href="https://example.org/">')
    assert own_host.foreign("@font-face { src: url(https://example.org/x.woff2) }", style=True)
    assert not own_host.foreign("@font-face { src: url(fonts/x.woff2) }", style=True)


def test_links_within_the_site_lead_to_files_and_places(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "index.html").write_text('<h2 id="x y">x</h2><a href="..">up</a>')
    good = (
        '<a href="b/#x%20y">b</a><a href="b/">b</a><a href="#here" id="here">c</a><a href="https://example.org">d</a>'
    )
    (tmp_path / "index.html").write_text(good)
    assert own_host.dead(tmp_path) == []
    (tmp_path / "index.html").write_text(
        good + '<a href="b/#z">e</a><a href="c.html">f</a><img src="x.png"><a href="#z">g</a>'
    )
    assert own_host.dead(tmp_path) == [f"index.html: {link}" for link in ("b/#z", "c.html", "x.png", "#z")]


def test_a_built_site_that_asks_another_host_is_refused(tmp_path):
    (tmp_path / "a.html").write_text('<script src="https://cdn.example/x.js"></script>')
    with pytest.raises(PluginError, match=r"a.html: https://cdn.example/x.js"):
        own_host.on_post_build({"site_dir": tmp_path})


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
    "neurolsc.schedule",
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
    listed = [name for page in api_names.pages() for _, names in api_names.sections(page) for name in names]
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
    pages = api_names.pages()
    assert {*pages, api_names.API / "index.md"} == set(api_names.API.glob("*.md"))
    text = api_names.listed()
    assert "## More than radii\n" in text
    for name in ("neurolsc.pretrain", "neurolsc.stability.lsc.pretrain.pretrain", "neurolsc.surrogate.Arctan"):
        assert (f"{{ #{name} }}" in text) == (name != "neurolsc.pretrain")


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("dead neurons", "diagnose.md"),
        ("exploding gradients", "diagnose.md"),
        ("vanishing gradients", "diagnose.md"),
        ("initialise", "initialisers.md"),
        ("initialize", "initialisers.md"),
        ("snntorch", "interop.md"),
    ],
)
def test_the_search_finds_what_users_call_their_trouble(words: str, page: str):
    """The search of the theme reads the text of pages, code and comments left out."""
    text = (api_names.API.parent / page).read_text(encoding="utf-8")
    assert words in re.sub(r"^```.*?^```|<!--.*?-->", "", text, flags=re.M | re.S).lower()


def test_the_front_page_is_readme_with_the_links_of_the_site():
    text = front_page.text()
    assert "(docs/" not in text
    assert "(diagnose.md)" in text
    assert "CHANGELOG.md" not in text, "the site has no such page"


def test_the_search_puts_functions_of_the_package_before_what_begins_like_them():
    places = ["api/stability/#neurolsc.stability.lsc.pretrain.pretrain", "api/stability/#neurolsc.PretrainResult"]
    places += ["api/interop/#neurolsc.interop.snntorch.ALIFPlus", "cli/#pretrain", "tutorials/1_first_network/"]
    pretrain, result, foreign, text, tutorial = api_names.ranked([{"location": place} for place in places])
    assert pretrain["boost"] > result["boost"] > foreign["boost"] > 1
    assert "boost" not in text
    assert tutorial["tags"] == ["Tutorial"]
