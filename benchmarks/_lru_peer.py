"""Our LRU next to minimal-LRU's, which runs in a process beside."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from _jax_process import JaxProcess, at_hand
from torch import Tensor

from neurolsc import LRU
from neurolsc.neurons.lru import linear_scan

PARTS = {"block": 0.01, "recurrence": 1e-4}
"""by how far outputs may differ: of the block's GELU theirs is the approximation by a tanh"""


def next_to_theirs(folder: Path, rounds: int, steps: int, batch: int, n: int) -> list[dict[str, Any]]:
    """Processor time of one thread of block and recurrence, each round ours and theirs in turn.

    Args:
        folder: a checkout of github.com/NicolasZucchet/minimal-LRU.
        rounds: of which medians are taken, the ratio's being that of the ratios; two more go ahead.
        steps: T of the input (T, B, N).
        batch: B.
        n: width, and numbers in the memory.
    """
    if not at_hand("minimal-LRU and jax"):
        return []
    cell, x = LRU(n, n).eval(), torch.randn(steps, batch, n)
    ours = {"block": lambda: cell.run(x, cell.initial_state(batch))[0], "recurrence": lambda: _recurrence(cell, x)}
    with tempfile.TemporaryDirectory() as where:
        given = {name: p.detach().numpy() for name, p in cell.named_parameters()}
        outputs = {part: run().detach().numpy() for part, run in ours.items()}
        np.savez(file := Path(where) / "task.npz", x=x.numpy(), **outputs, **given)
        process, found = JaxProcess("_lru_jax.py", folder, file), []
        for part, run in ours.items():
            apart = process.ask(part, "apart")
            if not apart < PARTS[part]:
                raise ArithmeticError(f"minimal-LRU's {part} is apart from ours by {apart}, not below {PARTS[part]}.")
            row: dict[str, Any] = {"part": part, "n": n, "batch": batch, "steps": steps, "apart": apart}
            for what in ("both", "forward"):
                times = [
                    (_milliseconds(lambda r=run, w=what: _went(cell, r, w)), process.ask(part, what))
                    for _ in range(rounds + 2)
                ][2:]
                row[what] = {"ours": median(a for a, _ in times), "minimal-LRU": median(b for _, b in times)}
                row[what] |= {"ratio": median(b / a for a, b in times)}
            found.append(row)
            print(row, flush=True)
        process.close()
    return found


def _recurrence(cell: LRU, v: Tensor) -> Tensor:
    """What stands between the layer norm and the GELU."""
    start = cell.initial_state(v.shape[1]).x
    return cell.told(linear_scan(cell.eigenvalues, cell.driven(v), start), v)


def _went(cell: LRU, run: Callable[[], Tensor], what: str) -> None:
    """A run forward, or with the gradient of its mean square."""
    with torch.set_grad_enabled(what == "both"):
        outputs = run()
        if what == "both":
            torch.autograd.grad(outputs.square().mean(), list(cell.parameters()), allow_unused=True)


def _milliseconds(way: Callable[[], None]) -> float:
    started = time.process_time()
    way()
    return 1e3 * (time.process_time() - started)
