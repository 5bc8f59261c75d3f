"""Sessions in the docs: console lines and Python with their output below.

`make sessions` runs them and writes their output; `python -m docs.sessions PAGE.md` those of one page. A
test runs them and compares: lines and words must be equal, numbers within `BANDS`, since another
machine sums in another order, and there a training ends elsewhere.

A console session is a `text` block with lines that begin with `$ neurolsc`; a Python block with a `text`
block right below is one, too. The sessions of a page run in one folder, in order.
"""

import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from PIL import Image

from docs import hooks

ROOT = Path(__file__).parent.parent
# points by which the percentages of a page may differ: scores after short trainings differ most
BANDS = {
    "README.md": 25,
    "cli.md": 15,
    "diagnose.md": 10,
    "monitor.md": 25,
    "initialise.md": 10,
    "theory.md": 5,
    "interop.md": 5,
    "to_loihi.md": 15,
    "gallery": 25,
}
PAGES = [ROOT / "README.md", *(ROOT / "docs" / name for name in BANDS if name not in ("README.md", "gallery"))]
_BLOCK = re.compile(
    r"^```python\n(?P<code>(?:(?!^```).)*?)^```\n\n```text\n(?P<out>.*?)^```|^```text\n(?P<console>\$ .*?)^```",
    re.M | re.S,
)
_NUMBER = re.compile(r"\d[\d,]*\.?\d*(?:e[-+]?\d+)?%?")


@dataclass(frozen=True)
class Shown:
    """A command or Python code, its output, and where the output stands in the page."""

    arguments: list[str]
    output: str
    start: int
    end: int


def shown(text: str) -> Iterator[Shown]:
    """The sessions of a page."""
    for block in _BLOCK.finditer(text):
        if block["code"] is not None:
            yield Shown(["-c", block["code"]], block["out"], *block.span("out"))
            continue
        for part in re.finditer(r"^\$ neurolsc (.*)\n((?:(?!^\$ ).*\n)*)", block["console"], re.M):
            start, end = (block.start("console") + place for place in part.span(2))
            yield Shown(["-m", "neurolsc", *shlex.split(part[1])], part[2], start, end)


def run(arguments: list[str], folder: str | Path) -> str:
    """Output of Python with these arguments in a folder, on one thread.

    Raises:
        RuntimeError: if it fails.
    """
    environment = os.environ | {"MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    environment |= {"PYTHONUNBUFFERED": "1"}  # output of child processes comes in its place
    environment.pop("NEUROLSC_LAVA_PYTHON", None)  # Lava is not everywhere
    done = subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(arguments)} failed: {done.stderr}")
    return done.stdout


def differences(shown: str, printed: str, points: float) -> list[str]:
    """Lines that differ in their words, or in a number by more than it may.

    A percentage may be off by so many points, a number with an exponent (a gradient, a p-value) by
    a factor of ten, any other by half of it, or 0.02. Seconds, the best epoch, the first step at
    which an integer network differs and the number of ties may be any, and so may what holds fewer
    radii of a layer than another source does.
    """
    found = []
    for a, b in zip_longest(shown.strip().splitlines(), printed.strip().splitlines(), fillvalue=""):
        (words, numbers), (other, others) = _parts(a), _parts(b)
        if words != other or not all(_near(x, y, points) for x, y in zip(numbers, others, strict=False)):
            found.append(f"shown: {a}\nprinted: {b}")
    return found


def _near(shown: str, printed: str, points: float) -> bool:
    x, y = (float(number.strip("%").replace(",", "")) for number in (shown, printed))
    if "e" in shown and x and y:
        return abs(math.log10(x / y)) <= 1
    return abs(x - y) <= (points if shown.endswith("%") else max(0.02, x / 2))


def _parts(line: str) -> tuple[list[str], list[str]]:
    """The words of a line, with its numbers as #; and the numbers."""
    line = re.sub(r"[\d.]+ s\b", "SECONDS", line)
    line = re.sub(r"best epoch \d+|differs at step \d+|\b\d+ ties", "ANY", line)
    line = re.sub(r"\b([a-z]+ \d+%)(, [a-z]+ \d+%)+$", r"\1", line)  # what holds most radii
    return _NUMBER.sub("#", line).split(), _NUMBER.findall(line)


if __name__ == "__main__":
    chosen = sys.argv[1:]  # names of pages and examples; none: all
    for page in PAGES:
        if chosen and page.name not in chosen:
            continue
        text = page.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            found = [(session, run(session.arguments, folder)) for session in shown(text)]
        for session, output in reversed(found):
            gap = "\n" if session.output.endswith("\n\n") else ""
            text = text[: session.start] + output + gap + text[session.end :]
        page.write_text(text, encoding="utf-8")
    for path in hooks.EXAMPLES:
        if chosen and path.stem not in chosen:
            continue
        with tempfile.TemporaryDirectory() as folder:
            hooks.printed(path).write_text(run([str(path), "picture.png"], folder), encoding="utf-8")
            with Image.open(Path(folder, "picture.png")) as picture:  # 64 colours: a third of the size
                picture.convert("RGB").quantize(64, dither=Image.Dither.NONE).save(hooks.picture(path), optimize=True)
