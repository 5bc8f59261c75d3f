"""Whether the contestants of layers.py do what ours do: the same spikes, the same gradients.

Two layers of 16, in float64 where they can. Of the contestants in other libraries, snnTorch's and
spikingjelly's are checked against our LIF with their reset and surrogate; norse's have a synaptic
current, which ours have not, and are not checked.
"""

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _layers import OURS, Ours, Peer, build, gains_for
from _layers_child import Child, names, numbers
from _layers_inductor import INDUCTOR
from _layers_libraries import LIBRARIES
from torch import Tensor

from neurolsc import LIF
from neurolsc.surrogate import Arctan, FastSigmoid

SIZES, STEPS, BATCH, CLOSE = (30, 16, 4), 20, 8, 1e-4


def check() -> dict[str, float]:
    """How far the gradients of each contestant are from ours, relative to their largest entry;
    raises where that is too far."""
    torch.set_default_dtype(torch.float64)
    x = (torch.rand(STEPS, BATCH, SIZES[0], generator=torch.Generator().manual_seed(0)) < 0.2).double()
    found = inductor(x) | (in_jax(x) if names() else {})
    torch.set_default_dtype(torch.float32)  # snnTorch's spikes are float32 whatever it reads
    return found | libraries(x.float())


def firing(make: Callable[..., Peer], x: Tensor) -> Any:
    """A network that fires a fifth of the time."""
    return build(make, SIZES, gains_for(make, x, SIZES, 0.2))


def run(network: Peer, x: Tensor, late: int = 0) -> list[Tensor]:
    """The spikes of both layers; leaves the gradients of the loss, of the second one's spikes as
    they are after some steps."""
    sent = network.spikes(x)
    last = torch.cat([torch.zeros_like(sent[-1][:late]), sent[-1][: len(x) - late]])
    network.zero_grad()
    (network.network if isinstance(network, Ours) else network).readout(last).square().mean().backward()
    return [z.detach() for z in sent]


def apart(ours: Sequence[Tensor], theirs: Sequence[Tensor], gradients: Sequence[tuple[Tensor, Tensor]]) -> float:
    """How far gradients are apart, where the spikes are the same."""
    for one, other in zip(ours, theirs, strict=True):
        if not one.any() or not torch.equal(one, other):
            raise RuntimeError(f"{(one != other).sum()} of {one.sum():g} spikes differ.")
    worst = max(((one - other).abs().max() / one.abs().max()).item() for one, other in gradients)
    if not worst < CLOSE:
        raise RuntimeError(f"Gradients are {worst:.2g} apart.")
    return worst


def grads(network: Peer) -> list[Tensor]:
    return [p.grad for p in network.parameters() if p.grad is not None]


def inductor(x: Tensor) -> dict[str, float]:
    """Compiled blocks."""
    found = {}
    for name, make in INDUCTOR.items():
        ours = firing(OURS[name.replace("inductor", "neurolsc")], x)
        theirs = make(*SIZES)
        theirs.load_state_dict(ours.state_dict())
        spikes = run(ours, x), run(theirs, x)
        found[name] = apart(*spikes, list(zip(grads(ours), grads(theirs), strict=True)))
    return found


def in_jax(x: Tensor) -> dict[str, float]:
    """jax.lax.scan, and spyx, which sends spikes a step late and lets a gradient through the
    reset."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names():
            kind, late = ("ALIF" if "ALIF" in name else "LIF"), int("spyx" in name)
            extra = {"reset_gradient": True} if late else {}
            make = partial(Ours, cell=partial(LIF, **extra)) if kind == "LIF" else OURS["neurolsc ALIF+"]
            network = firing(make, x)
            ours = run(network, x, 2 * late)
            child = Child({kind: network}, x, Path(folder, "task.npz"))
            child.ask(name, "save", str(Path(folder, "found.npz")))
            child.close()
            with np.load(Path(folder, "found.npz")) as file:
                theirs = [torch.from_numpy(file[f"spikes.{i}"]) for i in range(2)]
                known = {key: p.grad.t() for key, p in numbers(network).items() if p.is_leaf and p.grad is not None}
                pairs = [(g, torch.from_numpy(file[key])) for key, g in known.items()]
            shifted = [z[: len(x) - late * (i + 1)] for i, z in enumerate(ours)]
            found[name] = apart(shifted, [z[late * (i + 1) :] for i, z in enumerate(theirs)], pairs)
    return found


def libraries(x: Tensor) -> dict[str, float]:
    """snnTorch and, if it is there, spikingjelly."""
    found = {}
    for name, twin in (("snnTorch RLeaky", of_snntorch), ("spikingjelly LIFNode", of_spikingjelly)):
        if name in LIBRARIES:
            theirs = firing(LIBRARIES[name], x)
            ours, pairs = twin(theirs)
            spikes = run(ours, x), run(theirs, x)
            found[name] = apart(*spikes, pairs())
    return found


def twin_of(theirs: Any, cell: Callable[..., LIF], matrices: Callable[[int], tuple[Tensor, Tensor, Tensor]]) -> Ours:
    """Our LIF with the weights (input, recurrence, bias) of another library's layers."""
    ours = Ours(*SIZES, cell=cell)
    with torch.no_grad():
        for i, each in enumerate(ours.cells):
            each.tau_v = torch.full((SIZES[1],), -1 / np.log(0.8))
            for mine, given in zip((each.w_in, each.w_rec, each.b_v), matrices(i), strict=True):
                mine.copy_(given)
        ours.network.readout = theirs.readout
    return ours


def of_snntorch(theirs: Any) -> tuple[Ours, Callable[[], list[tuple[Tensor, Tensor]]]]:
    """Our LIF as RLeaky, and the gradients of both."""

    def matrices(i: int) -> tuple[Tensor, Tensor, Tensor]:
        fc, recurrent = theirs.fc[i], theirs.cells[i].recurrent
        return fc.weight, recurrent.weight, fc.bias + recurrent.bias

    ours = twin_of(theirs, partial(LIF, spike=FastSigmoid(1.0, 25.0)), matrices)

    def pairs() -> list[tuple[Tensor, Tensor]]:
        found = []
        for cell, fc, rleaky in zip(ours.cells, theirs.fc, theirs.cells, strict=True):
            found += [(cell.w_in.grad, fc.weight.grad), (cell.w_rec.grad, rleaky.recurrent.weight.grad)]
        return found

    return ours, pairs


def of_spikingjelly(theirs: Any) -> tuple[Ours, Callable[[], list[tuple[Tensor, Tensor]]]]:
    """Our LIF as LIFNode with tau 5 in its container, and the gradients of both."""
    hidden = SIZES[1]

    def matrices(i: int) -> tuple[Tensor, Tensor, Tensor]:
        fc, rc = theirs.fc[i], theirs.cells[i].rc
        read, recurrent = rc.weight.split(hidden, 1)
        return read @ fc.weight / 5, recurrent / 5, (read @ fc.bias + rc.bias) / 5

    spike = Arctan(1.0, 2.0)
    ours = twin_of(theirs, partial(LIF, spike=spike, reset="zero", reset_gradient=True), matrices)

    def pairs() -> list[tuple[Tensor, Tensor]]:
        found = []
        for cell, container in zip(ours.cells, theirs.cells, strict=True):
            found.append((cell.w_rec.grad / 5, container.rc.weight.grad[:, hidden:]))
        return found

    return ours, pairs


if __name__ == "__main__":
    print(check())
