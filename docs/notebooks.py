"""The tutorials as pages and notebooks: a hook of mkdocs.

A tutorial is a script in docs/tutorials, in cells (`# %%`, `# %% [markdown]`). Jupytext reads it as a
notebook, and Jupyter runs that, once for every version of the script and of the package, into
.cache/tutorials. A cell that fails or warns fails the build. With TUTORIALS=unrun in the
environment none is run, and pages have no output.
"""

import base64
import hashlib
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from mkdocs.structure.files import File
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "tutorials"
CACHE = ROOT / ".cache" / "tutorials"
TUTORIALS = sorted(FOLDER.glob("[0-9]_*.py"))
SECONDS = 600  # for a cell
KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
KERNEL["language_info"] = {"name": "python"}


def on_files(files: Any, config: Any) -> Any:
    """Add page, notebook and pictures of every tutorial."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # each waits for a process of its own
        notebooks = list(pool.map(cached, TUTORIALS))
    for path, notebook in zip(TUTORIALS, notebooks, strict=True):
        text, pictures = page(notebook, path.stem)
        contents = {f"{path.stem}.md": text, f"{path.stem}.ipynb": nbformat.writes(notebook)} | pictures
        for name, content in contents.items():
            files.append(File.generated(config, f"tutorials/{name}", content=content))
    return files


def unrun(path: Path) -> nbformat.NotebookNode:
    """The notebook of a script."""
    notebook = jupytext.reads(path.read_text(encoding="utf-8"), fmt="py:percent")
    notebook.metadata = nbformat.from_dict(KERNEL)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"  # the same in every build
    return notebook


def run(path: Path) -> nbformat.NotebookNode:
    """The notebook of a script with the output of every cell.

    Raises:
        CellExecutionError: if a cell fails.
        RuntimeError: if one writes to standard error, as warnings do, or leaves a file.
    """
    notebook = unrun(path)
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            "MPLBACKEND": "module://matplotlib_inline.backend_inline",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            "PYTHONWARNINGS": "ignore:IProgress not found",  # tqdm misses ipywidgets
            "TQDM_DISABLE": "1",  # how many seconds a measurement takes is the machine's
            "IPYTHONDIR": f"{folder}/ipython",
        }
        where = Path(folder, "work")
        where.mkdir()
        place = {"metadata": {"path": str(where)}}
        client = NotebookClient(notebook, timeout=SECONDS, record_timing=False, resources=place)
        kernel = client.create_kernel_manager()
        kernel.transport, kernel.ip, kernel.connection_file = "ipc", f"{folder}/kernel", f"{folder}/kernel.json"
        client.execute(env=environment)
        left = [file.name for file in where.iterdir()]
    if left:
        raise RuntimeError(f"{path.name} leaves {', '.join(left)} where it runs.")
    for cell in notebook.cells:
        merged: list[Any] = []  # the kernel sends text of one cell in pieces
        for output in cell.get("outputs", ()):
            if output.get("name") == "stderr":
                raise RuntimeError(f"{path.name} warns:\n{output.text}\nin the cell\n{cell.source}")
            if output.output_type == "stream" and merged and merged[-1].output_type == "stream":
                merged[-1].text += output.text
            else:
                merged.append(output)
        if cell.cell_type == "code":
            cell.outputs = merged
    return notebook


def cached(path: Path) -> nbformat.NotebookNode:
    """The notebook with its output, from the cache if nothing has changed."""
    if os.environ.get("TUTORIALS") == "unrun":
        return unrun(path)
    file = CACHE / f"{path.stem}-{fingerprint(path)}.ipynb"
    if not file.exists():
        done = nbformat.writes(run(path))
        CACHE.mkdir(parents=True, exist_ok=True)
        for old in CACHE.glob(f"{path.stem}-*.ipynb"):
            old.unlink(missing_ok=True)
        new = file.with_suffix(f".{os.getpid()}")
        new.write_text(done, encoding="utf-8")
        new.replace(file)
    return nbformat.reads(file.read_text(encoding="utf-8"), as_version=4)


def fingerprint(path: Path) -> str:
    """A hash of script, hook, package and versions."""
    package = [file for file in (ROOT / "neurolsc").rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    found = hashlib.sha256(sys.version.encode())
    for name in ("torch", "numpy", "matplotlib", "snntorch", "norse"):
        found.update(f"{name} {version(name)}".encode())
    for file in (path, Path(__file__), *sorted(package)):
        found.update(str(file.relative_to(ROOT)).encode())
        found.update(hashlib.sha256(file.read_bytes()).digest())
    return found.hexdigest()[:16]


def page(notebook: nbformat.NotebookNode, name: str) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and its pictures by file name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    heading = ""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            title, rest = cell.source, ""
            if not parts:  # the download stands below the title
                title, _, rest = cell.source.partition("\n")
                rest = f'\n\n[Notebook]({name}.ipynb){{ .md-button download="{name}.ipynb" }}\n{rest}'
            parts.append(title + rest)
            heading = next(
                (line.lstrip("# ") for line in reversed(cell.source.splitlines()) if line[:1] == "#"), heading
            )
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in data:
                file = f"{name}-{len(pictures) + 1}.png"
                pictures[file] = base64.b64decode(data["image/png"])
                parts.append(f"![Picture: {heading}]({file})")
            else:
                parts.append(f"``` {{ .text .no-copy }}\n{data['text/plain'].rstrip()}\n```")
    return "\n\n".join(parts) + "\n", pictures
