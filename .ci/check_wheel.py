"""Is the neurolsc that is imported the wheel's, and whole? Arguments: files that it must hold."""

import ast
import re
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions, requires, version
from pathlib import Path

import neurolsc

EXTRAS_FOR_DEVELOPERS = ("dev", "docs")
RUN_ELSEWHERE = ("simulator.py",)  # by the Pythons of other environments, `make lava-env nengo-env`


def imported(folder: Path) -> Iterator[str]:
    """The top-level modules that the code in a folder imports."""
    for file in folder.rglob("*.py"):
        if file.name in RUN_ELSEWHERE:
            continue
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Import):
                yield from (name.name.partition(".")[0] for name in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.partition(".")[0]


def canonical(name: str) -> str:
    """A distribution's name in the one form in which names are compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def declared() -> set[str]:
    """The distributions that a user gets with neurolsc or with one of its extras."""
    developers = re.compile(rf"extra\s*==\s*['\"]({'|'.join(EXTRAS_FOR_DEVELOPERS)})['\"]")
    wanted = [line for line in requires("neurolsc") or [] if not developers.search(line)]
    return {canonical(re.split(r"[\s;<>=!~\[(]", line, maxsplit=1)[0]) for line in wanted}


package = Path(neurolsc.__file__).parent
if Path(sys.prefix) not in package.parents:
    sys.exit(f"neurolsc came from {package}, not from the wheel")

expected = sys.argv[1:]
samples = [name for name in expected if name.startswith("neurolsc/datasets/samples/")]
if not samples:
    sys.exit("the repository has no embedded samples in neurolsc/datasets/samples")
missing = [name for name in expected if not (package.parent / name).is_file()]
if missing:
    sys.exit(f"the wheel lacks {', '.join(missing)}")

distributions = packages_distributions()
foreign = {name for name in imported(package) if name not in sys.stdlib_module_names} - {"neurolsc"}
undeclared = {name for name in foreign if not declared() & {canonical(d) for d in distributions.get(name, [name])}}
if undeclared:
    sys.exit(f"neurolsc imports {', '.join(sorted(undeclared))}, which pyproject.toml does not declare")

print(f"neurolsc {version('neurolsc')} from the wheel: {len(samples)} samples in it, imports declared")
