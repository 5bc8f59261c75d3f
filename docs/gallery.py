"""The gallery: a hook of mkdocs that shows every script in examples/ with what it prints and draws.

gallery.md says which stands where. What a script prints and draws is kept in docs/gallery; `make
sessions` makes it anew, and the test that runs the script compares what it prints.
"""

import ast
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PLACE = re.compile(r"^<!-- example: (\w+) -->$", re.M)


def kept(path: Path) -> Path:
    """The file with what a script printed."""
    return ROOT / "docs" / "gallery" / f"{path.stem}.txt"


def picture(path: Path) -> Path:
    """What a script drew."""
    return kept(path).with_suffix(".png")


def shown(path: Path) -> str:
    """A script in Markdown: its question, how long it takes, what it prints and draws, its code."""
    code = path.read_text(encoding="utf-8").rstrip()
    asked = " ".join((ast.get_docstring(ast.parse(code)) or "").split())
    question, note, seconds = re.fullmatch(r"(.+?\?) (.*?)Takes (\d+ s) on a CPU\.", asked).groups()
    printed = kept(path).read_text(encoding="utf-8").rstrip()
    return f"""### {question} {{ #{path.stem} }}

{note}`examples/{path.name}`, about {seconds} on a CPU, prints:

``` {{ .text .no-copy }}
{printed}
```

![What {path.name} draws](gallery/{picture(path).name})

<details markdown><summary>The script</summary>

```python
{code}
```

</details>"""


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put the scripts into the gallery."""
    if page.file.src_uri != "gallery.md":
        return markdown
    return PLACE.sub(lambda place: shown(ROOT / "examples" / f"{place[1]}.py"), markdown)
