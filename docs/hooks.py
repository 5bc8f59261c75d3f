"""Hooks of mkdocs: README as front page, the changelog, examples as gallery, and the list of public names.

gallery.md says which example stands where. docs/gallery has what the scripts print and draw; `make
sessions` makes it anew, and a test runs them and compares. docs/api/index.md gives the order of the
pages of the API.
"""

import ast
import json
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
API = ROOT / "docs" / "api"
PLACE = re.compile(r"^<!-- example: (\w+) -->$", re.M)
PICTURE = re.compile(r"^!\[([^\]]*)\]\(([^)\s]+\.png)\)", re.M)
ARROW = re.compile(r"(?<=\d) → (?=\d)")
_LINK = re.compile(r"(!?)\[([^\]]+)\]\((?!https?:)([^)\s]+)\)")
_ENTRY = re.compile(r"^::: (?P<name>\S+)(?:\n    options: \{(?P<options>.*)\})?", re.M)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Fill the pages that stand elsewhere: README, changelog, gallery, benchmarks, the names of the API."""
    if page.file.src_uri == "index.md":
        markdown = front_page()
    if page.file.src_uri == "gallery.md":
        markdown = PLACE.sub(lambda place: example(ROOT / "examples" / f"{place[1]}.py"), markdown)
    if page.file.src_uri == "changelog.md":
        markdown = with_links((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    if page.file.src_uri == "benchmarks.md":
        markdown = with_links((ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8"), "benchmarks")
    if page.file.src_uri == "api/index.md":
        markdown = markdown.replace("<!-- names -->", names())
    markdown = PICTURE.sub(r"[\g<0>](\2)", markdown)  # a click shows it in its own size
    return ARROW.sub("\u00a0→\u00a0", markdown)  # "64 → 82" stays on one line of a narrow table


def on_post_build(config: Any, **_: Any) -> None:
    """Rank the entries of the search index."""
    path = Path(config["site_dir"], "search", "search_index.json")
    index = json.loads(path.read_text(encoding="utf-8"))
    ranked(index["docs"])
    path.write_text(json.dumps(index, separators=(",", ":")), encoding="utf-8")


def front_page() -> str:
    """README with links of the site."""
    return with_links((ROOT / "README.md").read_text(encoding="utf-8"))


MOVED = {
    "docs/tutorials": "tutorials/1_first_network.md",
    "examples": "gallery.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks.md",
}


def with_links(text: str, folder: str = "") -> str:
    """A text of the repository with links of the site.

    Files that the site does not have are linked in the repository whose address pyproject.toml gives, and without an
    address they lose their link. `folder` is the one in which the text stands.
    """
    repository = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"].get(
        "Repository"
    )

    def link(match: re.Match[str]) -> str:
        mark, words, to = match.groups()
        file, sign, place = to.partition("#")
        if file:  # else a place in the same text
            file = os.path.normpath(os.path.join(folder, file))
        page = MOVED.get(file, file.removeprefix("docs/"))
        if page != file or not file:
            return f"{mark}[{words}]({page}{sign}{place})"
        to = file + sign + place
        return f"{mark}[{words}]({repository}/blob/main/{to})" if repository else words

    return _LINK.sub(link, text)


def printed(path: Path) -> Path:
    """The file with the output of an example."""
    return ROOT / "docs" / "gallery" / f"{path.stem}.txt"


def picture(path: Path) -> Path:
    """The picture that an example draws."""
    return printed(path).with_suffix(".png")


def example(path: Path) -> str:
    """A script in Markdown: question, time, output, picture, code."""
    code = path.read_text(encoding="utf-8").rstrip()
    about = " ".join((ast.get_docstring(ast.parse(code)) or "").split())
    question, note, seconds = re.fullmatch(r"(.+?\?) (.*?)Takes (\d+ s) on a CPU\.", about).groups()
    return f"""### {question} {{ #{path.stem} }}

{note}`examples/{path.name}`, about {seconds} on a CPU, prints:

``` {{ .text .no-copy }}
{printed(path).read_text(encoding="utf-8").rstrip()}
```

![Picture of {path.name}](gallery/{picture(path).name})

<details markdown><summary>The script</summary>

```python
{code}
```

</details>"""


def pages() -> list[Path]:
    """The pages of the API, in their order."""
    return [API / name for name in re.findall(r"^\| \[.*?\]\((\w+\.md)\)", (API / "index.md").read_text("utf-8"), re.M)]


def public(module: str) -> list[str] | None:
    """Names in `__all__` of a module; None if it is no module."""
    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.is_file():
        return None
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def sections(page: Path) -> Iterator[tuple[str, list[str]]]:
    """The headings of a page of the API, each with the names below it."""
    parts = re.split(r"^##? (.*)\n", page.read_text(encoding="utf-8"), flags=re.M)[1:]
    for heading, text in zip(parts[::2], parts[1::2], strict=True):
        found: list[str] = []
        for entry in _ENTRY.finditer(text):
            inside = public(entry["name"])
            if inside is None:
                found.append(entry["name"])
                continue
            options = entry["options"] or ""
            shown = re.search(r"(?<!\w)members: \[(.*?)\]", options)
            chosen = shown[1].split(", ") if shown else [] if "members: false" in options else inside
            found += [f"{entry['name']}.{name}" for name in chosen] or [entry["name"]]
        yield heading, found


def names() -> str:
    """All public names as Markdown, section by section."""
    lines = []
    for page in pages():
        for heading, below in sections(page):
            if below:
                links = (f"[`{name.rpartition('.')[2]}`]({page.name}#{name}){{ #{name} }}" for name in below)
                lines += [f"## {heading}", "", ", ".join(links), ""]
    return "\n".join(lines)


def ranked(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Entries of the search index: public names before text, functions before classes, tutorials by that word."""
    public_names = {name for page in pages() for _, below in sections(page) for name in below}
    top = set(public("neurolsc") or ())
    for entry in entries:
        page, _, place = entry["location"].partition("#")
        if page.startswith("api/") and (name := unquote(place)) in public_names:
            last = name.rpartition(".")[2]
            entry["boost"] = 4 * (2 if last in top and ".interop." not in name else 1) * (2 if last[0].islower() else 1)
        if page.startswith("tutorials/"):
            entry["tags"] = ["Tutorial"]
    return entries
