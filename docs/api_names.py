"""The list of all public names on the first page of the API, and their rank in the search.

A hook of mkdocs.yml. The pages are those of docs/api, in the order in which the first links to
them.
"""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

ROOT = Path(__file__).parent.parent
API = ROOT / "docs" / "api"
_ENTRY = re.compile(r"^::: (?P<name>\S+)(?:\n    options: \{(?P<options>.*)\})?", re.M)
_SECTION = re.compile(r"^##? (.*)\n", re.M)


def pages() -> list[Path]:
    """The pages with names, in their order."""
    return [API / name for name in re.findall(r"^\| \[.*?\]\((\w+\.md)\)", (API / "index.md").read_text("utf-8"), re.M)]


def public(module: str) -> list[str] | None:
    """What a module says is public; None if it is none."""
    for node in (body := _body(module)):
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return list(ast.literal_eval(node.value))
    return [] if body else None


def _body(module: str) -> list[ast.stmt]:
    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8")).body if file.is_file() else []


def sections(page: Path) -> Iterator[tuple[str, list[str]]]:
    """The headings of a page, each with the names below it."""
    parts = _SECTION.split(page.read_text(encoding="utf-8"))[1:]
    for heading, text in zip(parts[::2], parts[1::2], strict=True):
        names: list[str] = []
        for entry in _ENTRY.finditer(text):
            inside = public(entry["name"])
            if inside is None:
                names.append(entry["name"])
                continue
            shown = re.search(r"(?<!\w)members: \[(.*?)\]", entry["options"] or "")
            chosen = shown[1].split(", ") if shown else [] if "members: false" in (entry["options"] or "") else inside
            names += [f"{entry['name']}.{name}" for name in chosen] or [entry["name"]]
        yield heading, names


def listed() -> str:
    """The names as Markdown, section by section."""
    lines = []
    for page in pages():
        for heading, names in sections(page):
            if names:
                links = (f"[`{name.rpartition('.')[2]}`]({page.name}#{name}){{ #{name} }}" for name in names)
                lines += [f"## {heading}", "", ", ".join(links), ""]
    return "\n".join(lines)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    return markdown.replace("<!-- names -->", listed()) if page.file.src_uri == "api/index.md" else markdown


def ranked(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Entries of the search index: public names count more than text, most those of the package.

    Functions count twice as much as classes, whose names often begin with theirs. Tutorials are
    found by that word.
    """
    names = {name for page in pages() for _, below in sections(page) for name in below}
    top = set(public("neurolsc") or ())
    for entry in entries:
        page, _, place = entry["location"].partition("#")
        if page.startswith("api/") and (name := unquote(place)) in names:
            last = name.rpartition(".")[2]
            entry["boost"] = 4 * (2 if last in top and ".interop." not in name else 1) * (2 if last[0].islower() else 1)
        if page.startswith("tutorials/"):
            entry["tags"] = ["Tutorial"]
    return entries


def on_post_build(config: Any, **_: Any) -> None:
    path = Path(config["site_dir"], "search", "search_index.json")
    index = json.loads(path.read_text(encoding="utf-8"))
    ranked(index["docs"])
    path.write_text(json.dumps(index, separators=(",", ":")), encoding="utf-8")
