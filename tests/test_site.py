"""The site: formulas are drawn when it is built, no other host is asked, the API is whole."""

import pytest

pytest.importorskip("mkdocs", reason="the site needs the extra docs")

from mkdocs.exceptions import PluginError

from docs import formulas, own_host


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


def test_a_built_site_that_asks_another_host_is_refused(tmp_path):
    (tmp_path / "a.html").write_text('<script src="https://cdn.example/x.js"></script>')
    with pytest.raises(PluginError, match=r"a.html: https://cdn.example/x.js"):
        own_host.on_post_build({"site_dir": tmp_path})
