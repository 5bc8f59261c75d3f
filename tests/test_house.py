"""The house: rooms on floors, imports that only go down, never in a circle."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import neurolsc

ROOT = Path(neurolsc.__file__).parent
FLOORS: tuple[tuple[str, ...], ...] = (
    ("validation", "display", "surrogate", "surroundings"),
    ("neurons",),
    ("network", "io", "metrics", "tasks", "plots"),
    ("hdf5", "interop"),
    ("datasets",),
    ("stability",),
    ("training",),
    ("export", "init", "diagnosis", "theory"),
    ("experiment", "callbacks", "advice", "monitor"),
    ("cli",),
)
"""rooms from the ground up; a room may import from lower floors, and from its own only where that
makes no circle"""


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name, without the package's own."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        if name and name != "__main__":
            found[name] = path
    return found


def imports(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """The package's modules that one imports, wherever in its file; not those for types alone."""
    found = set()
    for node in ast.walk(without_types(ast.parse(path.read_text(encoding="utf-8")))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "neurolsc":
            assert node.level == 0, f"{name} imports relatively"
            base = ".".join((node.module or "").split(".")[1:])
            for alias in node.names:
                inner = f"{base}.{alias.name}".strip(".")
                found.add(inner if inner in known else base)
        elif isinstance(node, ast.Import):
            found |= {a.name.removeprefix("neurolsc.") for a in node.names if a.name.startswith("neurolsc.")}
    return found - {"", name}


def without_types(tree: ast.AST) -> ast.AST:
    """The tree without the branches that only a type checker reads."""

    class Leave(ast.NodeTransformer):
        def visit_If(self, node: ast.If) -> ast.AST:
            checking = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
            return ast.Pass() if checking else self.generic_visit(node)

    return Leave().visit(tree)


KNOWN = modules()
GRAPH = {name: imports(name, path, KNOWN) for name, path in KNOWN.items()}


def room(module: str) -> str:
    return module.split(".")[0]


def floor(module: str) -> int:
    return next(i for i, rooms in enumerate(FLOORS) if room(module) in rooms)


def test_every_room_has_its_floor():
    rooms = {room(module) for module in KNOWN}
    planned = [r for rooms in FLOORS for r in rooms]
    assert rooms == set(planned)
    assert len(planned) == len(set(planned))


def test_the_map_for_contributors_has_these_floors():
    text = " ".join((ROOT.parent / "CONTRIBUTING.md").read_text(encoding="utf-8").split())
    assert " < ".join(", ".join(rooms) for rooms in FLOORS) in text


def test_a_room_imports_only_from_below():
    upward = [
        f"{module} -> {other}" for module, others in GRAPH.items() for other in others if floor(other) > floor(module)
    ]
    assert not upward


def test_no_module_and_no_room_imports_itself_through_others_and_pictures_know_no_model():
    TopologicalSorter(GRAPH).prepare()  # raises CycleError
    rooms: dict[str, set[str]] = {}
    for module, others in GRAPH.items():
        rooms.setdefault(room(module), set()).update(room(other) for other in others if room(other) != room(module))
    TopologicalSorter(rooms).prepare()
    assert rooms["plots"] <= {"io"}


def test_each_folder_maps_its_files():
    missing = {}
    for path in ROOT.rglob("__init__.py"):
        files = [f.stem for f in path.parent.glob("*.py") if f.stem != "__init__"]
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        if path.parent != ROOT and (unnamed := [f for f in files if f not in text]):
            missing[path.parent.name] = unnamed
    assert not missing


LATE = {"pytorch_optimizer", "scipy", "matplotlib", "pooch", "tonic", "pandas"}
LATE |= {"snntorch", "norse", "lightning", "spikingjelly"}


def test_importing_neurolsc_leaves_out_what_only_some_of_its_functions_need():
    code = "import sys, torch, neurolsc, neurolsc.interop, neurolsc.export; neurolsc.wrap(torch.nn.LSTM(3, 4)); "
    code += f"print(sorted({LATE} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert result.stdout.strip() == "[]"
