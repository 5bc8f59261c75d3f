"""Texts: tables are those of the results, sessions print what is shown, commands and links exist."""

import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import neurolsc
from docs import sessions, tables
from neurolsc.cli import app, commands

ROOT = Path(__file__).parent.parent
TEXTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "benchmarks").glob("*.md"))]


@pytest.mark.parametrize("page", tables.PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_tables_of_a_page_are_those_of_the_results(page: Path):
    text = page.read_text(encoding="utf-8")
    assert tables.filled(text) == text, "run `make tables`"


@pytest.mark.long
@pytest.mark.parametrize("page", sessions.PAGES, ids=lambda page: page.name)
def test_a_session_prints_what_is_shown(page: Path, tmp_path: Path):
    shown = list(sessions.shown(page.read_text(encoding="utf-8")))
    assert shown
    for session in shown:
        printed = sessions.run(session.arguments, tmp_path)
        assert sessions.differences(session.output, printed, sessions.BANDS[page.name]) == []


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("after 8 steps, 4.1 s\nrate 0.152 23%", "after 9 steps, 61.0 s\nrate   0.139 27%", True),
        ("converged 4.1 s", "missed 4.1 s", False),
        ("rate 0.152 23%", "rate 0.452 23%", False),
        ("a\nb", "a", False),
        ("best epoch 5; differs at step 23; 16 ties", "best epoch 1; differs at step 3; 7 ties", True),
        ("1  0.968  leak 95%, feedback 5%", "1  0.968  feedback 100%", False),
        ("gradient 1.1e+00", "gradient 1.2e+01", False),
    ],
)
def test_sessions_are_compared_by_lines_words_and_nearly_by_numbers(shown: str, printed: str, same: bool):
    assert bool(sessions.differences(shown, printed, 5)) != same


def test_texts_install_from_a_checkout_and_name_known_extras():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    files = [file for file in [*TEXTS, *ROOT.glob("neurolsc/**/*.py")] if ".venv" not in file.parts]
    lines = [line for file in files for line in re.findall(r"pip install (.*)", file.read_text(encoding="utf-8"))]
    assert not [line for line in lines if re.match(r"\W*neurolsc\b", line)]
    named = {name for line in lines for part in re.findall(r"\.\[([\w,]+)\]", line) for name in part.split(",")}
    assert {"ray", "snntorch"} <= named <= set(extras)


def test_version_and_address_are_the_same_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert "version" not in project
    assert "version" in project["dynamic"]
    assert f"\nversion: {neurolsc.__version__}\n" in citation
    assert f"version = {{{neurolsc.__version__}}}" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert ("\nrepository-code:" in citation) == ("Repository" in project["urls"])


def usual_day() -> list[list[str]]:
    """The commands in the help of `neurolsc`."""
    text = CliRunner().invoke(app, ["--help"]).output.replace("\\\n", "")
    lines = re.findall(r"^    neurolsc (.*)$", text, re.M)
    return [shlex.split(re.split(r"  (?! *--)", line)[0]) for line in lines]


SMALLER = {
    "radii": ["--width", "8"],
    "pretrain": ["--width", "8", "--pretrain-samples", "2"],
    "train": ["--width", "8", "--batch-size", "200", "--epochs", "1"],
    "demo": ["--epochs", "1"],
}
"""what is added to a command that makes networks; of two values of a flag the last one holds"""


@pytest.mark.long
def test_the_usual_day_succeeds_as_the_help_prints_it(tmp_path: Path, monkeypatch):
    """On few neurons and one epoch: as large as they are printed, the commands take minutes."""
    fixed = commands.DEMO["fixed"] | {"width": 8, "batch_size": 200}
    monkeypatch.setattr(commands, "DEMO", commands.DEMO | {"fixed": fixed})
    monkeypatch.chdir(tmp_path)
    day = usual_day()
    assert len(day) == 9
    for command in day:
        of_a_run = command[1:2] == ["runs/digits"]
        smaller = [] if of_a_run else SMALLER[command[0]]
        done = CliRunner().invoke(app, [*command, *smaller], catch_exceptions=False)
        assert done.exit_code == 0
        assert done.output


def shown_commands() -> list[str]:
    """Every line with a `neurolsc` command in a block of the texts, once."""
    texts = (page.read_text(encoding="utf-8").replace("\\\n", "") for page in TEXTS)
    lines = (line.strip().removeprefix("$ ") for text in texts for line in text.splitlines())
    return sorted({line for line in lines if line.startswith("neurolsc ")})


def test_commands_in_the_texts_have_known_flags_and_values(monkeypatch, tmp_path: Path):
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    for name in ("train.h5", "mine.safetensors", "x.npy", "depth.toml"):
        (tmp_path / name).touch()
    (tmp_path / "runs").mkdir()
    settings = tmp_path / "settings.toml"
    settings.write_text('data = "shd"\nepochs = 3\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    context = click.Context(app)
    lines = shown_commands()
    assert lines
    for line in lines:
        command: click.Command = app
        words = ["runs" if word.startswith("runs/") else word for word in shlex.split(line)[1:]]
        if "--config" in words:
            words[words.index("--config") + 1] = str(settings)
        while isinstance(command, click.Group):
            _, found, words = command.resolve_command(context, words)
            assert found is not None, line
            command = found
        command.make_context(command.name, words)


LINKED = [
    *ROOT.glob("*.md"),
    *(page for folder in ("benchmarks", "datasets", "neurolsc/trained") for page in (ROOT / folder).glob("*.md")),
]


def dead_links(page: Path) -> list[str]:
    """Links of a text to files and headings that the repository does not have."""
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    found = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, place = link.partition("#")
        to = (page.parent / name).resolve() if name else page
        if not to.exists() or (place and place not in headings(to)):
            found.append(link)
    return found


def headings(page: Path) -> set[str]:
    """The headings of a text as they are linked to: small letters, words joined by hyphens."""
    lines = re.findall(
        r"^#+ (.*)", re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S), re.M
    )
    return {re.sub(r"[^\w\- ]", "", line.lower()).strip().replace(" ", "-") for line in lines}


def test_links_outside_of_the_site_lead_to_files_and_headings():
    assert {page: dead for page in LINKED if (dead := dead_links(page))} == {}


# ---- words

FORMER_WORDS = [
    r"\bwoken\b|\bwak(e|es|ing)\b",
    r"\brelays\b|\bas a relay\b",
    r"neurolsc\.initialisers|import initialisers|interop\.foreign",
    r"\bStart(Report|Settings)\b|\bStarting\(",
    r"(?<![\w-])--start\b",
    r"\bstart\.(json|checkpoint)\b",
    r"\bstart_(firing_rate|seconds|time_radius|depth_radius|gradient|usable|survives)",
    r"^start = ",
    r"\bpublished starts\b|\bstart as relays\b|\bways to start\b",
    r"Foreign(Cell|NeuronWarning)|PrecededCell",
    r"\bdue_to\b|time radius due to",
    r"\busable_share\b|\busable derivatives?\b|\bsurviving_share\b|[\".]survives\b",
    r"through=\"share\"",
    r"\bto_tensor\b",
]
"""what is called otherwise now, by the table in CHANGELOG.md"""
# where former names are read or listed, what was registered under them, and texts of others
WITH_FORMER_WORDS = ("CHANGELOG.md", "former.py", "test_former.py", "test_texts.py", "registration.md")


def former_words(text: str) -> list[str]:
    """Former words in a text."""
    return [found.group() for words in FORMER_WORDS for found in re.finditer(words, text, re.M)]


def test_texts_code_and_results_have_the_words_of_today():
    kinds = ("*.py", "*.md", "*.toml", "*.yml", "*.txt", "*.csv", "*.json")
    folders = ("neurolsc", "tests", "benchmarks", "docs", "examples", "datasets")
    files = [file for folder in folders for kind in kinds for file in (ROOT / folder).rglob(kind)]
    files += [*ROOT.glob("*.md"), *ROOT.glob("*.toml"), *ROOT.glob("*.yml")]
    found = {}
    for file in files:
        if file.name not in WITH_FORMER_WORDS and "samples" not in file.parts:
            words = former_words(file.read_text(encoding="utf-8"))
            if words:
                found[str(file.relative_to(ROOT))] = words
    assert found == {}


def test_the_changelog_names_former_words_and_the_help_does_not():
    table = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").partition("| before | now |")[2].partition("\n\n")[0]
    assert {"woken", "relays", "due_to", "usable_share", "ForeignCell", "--start"} <= set(former_words(table))
    for command in (app, *app.commands.values()):
        shown = CliRunner().invoke(app, [*([] if command is app else [str(command.name)]), "--help"]).output
        assert former_words(shown) == []
