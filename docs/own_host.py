"""The built site asks no other host for anything, and its links lead somewhere.

A hook of mkdocs.yml.
"""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

from mkdocs.exceptions import PluginError

FOREIGN = re.compile(r"\s*(?:https?:|wss?:)?//", re.I)
_STYLE = re.compile(r"""(?:@import\s*|url\(\s*)['"]?([^'")\s;]+)""", re.I)
_LOADED = {"src", "srcset", "poster", "data"}  # attributes whose address a browser loads
_LINKS = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "modulepreload", "manifest"}
_FETCHED = {"mermaid"}  # classes for which the theme's script loads a library from elsewhere


class _Addresses(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.led: list[str] = []
        self.places: set[str] = {""}
        self._in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self._in_style = tag == "style"
        self.places |= {given[name] for name in ("id", "name") if name in given}
        self.led += [given[name] for name in ("href", "src") if name in given]
        self.found += [given[name] for name in _LOADED & given.keys()]
        if tag == "link" and _LINKS & set(given.get("rel", "").lower().split()):
            self.found.append(given.get("href", ""))
        self.found += _STYLE.findall(given.get("style", ""))
        self.found += [f"//{name}" for name in _FETCHED & set(given.get("class", "").split())]

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.found += _STYLE.findall(data)


def foreign(text: str, style: bool = False) -> list[str]:
    """Addresses on other hosts that a browser loads by itself for a page, or for a style sheet."""
    if style:
        found = _STYLE.findall(text)
    else:
        parser = _Addresses()
        parser.feed(text)
        found = parser.found
    return [address for address in found if FOREIGN.match(address)]


def dead(site: Path) -> list[str]:
    """Links of pages to what the site does not have; not of 404.html, which is served anywhere."""
    pages: dict[Path, _Addresses] = {}
    for path in sorted(site.rglob("*.html")):
        if path.name != "404.html":
            pages[path] = _Addresses()
            pages[path].feed(path.read_text(encoding="utf-8"))
    found = []
    for path, page in pages.items():
        for link in dict.fromkeys(page.led):
            address, place = urldefrag(link)
            if FOREIGN.match(link) or re.match(r"[a-z]+:", link):
                continue
            to = (path.parent / unquote(address)).resolve() if address else path
            to = to / "index.html" if to.is_dir() else to
            if not to.exists() or (to in pages and unquote(place) not in pages[to].places):
                found.append(f"{path.relative_to(site)}: {link}")
    return found


def on_post_build(config: Any, **_: Any) -> None:
    site = Path(config["site_dir"])
    wrong = [
        f"{path.relative_to(site)}: {address}"
        for path in sorted([*site.rglob("*.html"), *site.rglob("*.css"), *site.rglob("*.svg")])
        for address in foreign(path.read_text(encoding="utf-8"), style=path.suffix == ".css")
    ]
    if wrong:
        raise PluginError("the site would ask other hosts\n" + "\n".join(wrong))
    if wrong := dead(site.resolve()):
        raise PluginError("links of the site lead nowhere\n" + "\n".join(wrong))
