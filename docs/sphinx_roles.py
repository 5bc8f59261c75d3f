"""Show Sphinx forms of our docstrings (``:math:``, ``.. math::``, ``:class:``) in Markdown, and examples as code."""

import inspect
import re
from typing import Any

from griffe import Extension, Object

BLOCK = re.compile(
    r"^(?P<indent> *)\.\. math:: *(?P<first>[^\n]*)(?P<rest>(?:\n(?:(?P=indent) +[^\n]*| *(?=\n)))*)", re.M
)
INLINE = re.compile(r":math:`([^`]+)`")
EXAMPLE = re.compile(r"^( *)Example:$", re.M)
ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|obj|exc):`~?([^`]+)`")


def display(match: re.Match[str]) -> str:
    """One ``.. math::`` block as $$ ... $$, its lines aligned as Sphinx aligns them."""
    lines = [match["first"], *inspect.cleandoc(match["rest"].strip("\n") or "").split("\n")]
    formula = "\n".join(line.strip() for line in lines if line.strip())
    if "&" in formula or r"\\" in formula:
        formula = f"\\begin{{aligned}}\n{formula}\n\\end{{aligned}}"
    body = f"$$\n{formula}\n$$"
    return "\n".join(match["indent"] + line for line in ["", *body.split("\n"), ""])


def to_markdown(text: str) -> str:
    """The text of a docstring, its Sphinx forms in Markdown."""
    text = EXAMPLE.sub(r"\1Examples:", text)  # the section that griffe knows
    text = INLINE.sub(r"$\1$", BLOCK.sub(display, text))
    return ROLE.sub(r"`\1`", text)


class SphinxRoles(Extension):
    """Rewrites each docstring when it has been read."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)
