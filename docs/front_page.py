"""The front page is README, with links as the site has them: a hook of mkdocs.

What README links to and the site does not have, such as the licence, is named without a link.
"""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TUTORIALS = "tutorials/1_first_network.md"
_LINK = re.compile(r"(!?)\[([^\]]+)\]\((?!https?:)([^)\s]+)\)")


def text() -> str:
    """README as a page of the site."""

    def link(match: re.Match[str]) -> str:
        mark, words, to = match.groups()
        page = {"docs/tutorials": TUTORIALS, "examples": "gallery.md"}.get(to, to.removeprefix("docs/"))
        return f"{mark}[{words}]({page})" if page != to else words

    return _LINK.sub(link, (ROOT / "README.md").read_text(encoding="utf-8"))


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put README into the front page."""
    return markdown.replace("<!-- readme -->", text()) if page.file.src_uri == "index.md" else markdown
