"""Layers, surrogates, resets, inputs and lengths drawn at random against plain steps."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from neurolsc import LIF, ALIFPlus, ALIFPlusMinus, ALIFPositive, surrogate
from neurolsc.neurons.fast import cpu_kernels, sequence
from tests.neurons.fast.both import assert_same, counted, gradients, own
from tests.neurons.fast.test_sequence import Parabola, Widened
from tests.neurons.steps import by_steps

OURS = [getattr(surrogate, name) for name in surrogate.__all__ if name != "Surrogate"]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.uint8, torch.int64, torch.bool]


RUNS = st.fixed_dictionaries(
    {
        "kind": st.sampled_from([LIF, ALIFPlus, ALIFPlusMinus, ALIFPositive]),
        "reset": st.sampled_from(["subtract", "static", "zero"]),
        "spike": st.sampled_from([*OURS, *[Parabola, Widened] * 2]),
        "sizes": st.tuples(st.integers(1, 9), st.integers(1, 4), st.integers(1, 9), st.just(8)),
        "dtype": st.sampled_from(DTYPES),
        "lengths": st.none() | st.lists(st.integers(0, 9), min_size=4, max_size=4),
        "parts": st.sampled_from(["spikes", "states", "both"]),
        "seed": st.integers(0, 2**16),
        **dict.fromkeys(
            ("reset_gradient", "learnable", "per_neuron", "late", "by_x", "by_state", "frozen", "twice"), st.booleans()
        ),
    }
)


def layer(case: dict[str, Any], precision: torch.dtype) -> Any:
    """The cell of a case."""
    _, _, n_in, n = case["sizes"]
    if case["spike"] in OURS or case["spike"] is Parabola:
        dampening = torch.linspace(0.3, 1.1, n) if case["per_neuron"] else 0.7
        spike = case["spike"](dampening, 1.3, learnable=case["learnable"])
    else:
        spike = case["spike"]()
    fixed = {name: case[name] for name in ("reset", "reset_gradient")}
    cell = case["kind"](n_in, n, spike=spike, tau_v=2.0, **fixed)
    cell.b_v.normal_(0.2, 0.3)
    with torch.no_grad():
        cell.w_in.mul_(4)
        cell.w_rec.mul_(2)
    if case["frozen"]:
        for parameter in list(cell.parameters())[::2]:
            parameter.requires_grad_(False)
    return cell.to(precision)


def outcome(case: dict[str, Any], precision: torch.dtype, way: Any) -> tuple[list[Tensor], list[Tensor | None]]:
    """Spikes while they count, the last state, and gradients of a loss, once and again."""
    torch.manual_seed(case["seed"])
    (steps, batch, n_in, _), cell = case["sizes"], layer(case, precision)
    x = ((torch.rand(steps, batch, n_in) < 0.5) * torch.randint(1, 5, (steps, batch, n_in)) / 2).to(case["dtype"])
    late = torch.rand(batch, n_in).to(case["dtype"]) if case["late"] else None
    lengths = None if case["lengths"] is None else torch.tensor(case["lengths"][:batch]).clamp(max=steps)
    with torch.no_grad():
        _, state = by_steps(cell, torch.rand(2, batch, n_in), cell.initial_state(batch))
    by = [p for p in cell.parameters() if p.requires_grad]
    if case["by_x"] and case["dtype"].is_floating_point:
        by += [tensor.requires_grad_() for tensor in (x, late) if tensor is not None]
    if case["by_state"]:
        by += [leaf.requires_grad_() for leaf in state]
    z, after = way(cell, x, state, late=late, lengths=lengths)
    if lengths is not None:
        z = z * (torch.arange(steps).unsqueeze(1) < lengths).unsqueeze(-1)
    loss = torch.zeros((), dtype=precision)
    if case["parts"] != "states":
        loss = loss + (z * torch.linspace(-1, 1, z.numel()).view_as(z).to(z)).sum()
    if case["parts"] != "spikes":
        loss = loss + sum(((leaf + 1) ** 3).sum() for leaf in after)
    if not loss.requires_grad or not by:
        return [z, *after], []
    found = gradients(loss, by, create_graph=case["twice"])
    if case["twice"]:
        again = sum(g.square().sum() for g in found if g is not None and g.requires_grad)
        found += gradients(again, by) if isinstance(again, Tensor) and again.requires_grad else [None] * len(by)
    return [z, *after], found


def assert_equal(case: dict[str, Any], precision: torch.dtype, rtol: float) -> bool:
    """Compare; say whether the loop was taken and anything fired."""
    with counted() as calls:
        values, found = outcome(case, precision, own)
    plain_values, plain_found = outcome(case, precision, by_steps)
    assert torch.equal(values[0], plain_values[0])
    half = case["dtype"].itemsize == 2 and case["by_x"]
    assert_same(values, plain_values, rtol)
    assert_same(found, plain_found, 2e-2 if half else rtol)
    return bool(calls) and bool(values[0].any())


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("events", [False, True])
def test_any_run_is_its_plain_steps(events, monkeypatch):
    seen = []
    if events:
        monkeypatch.setattr(cpu_kernels, "DENSITY", 1.0)
        monkeypatch.setattr(sequence, "ROWS", 6)

    @settings(max_examples=30)
    @given(RUNS, st.booleans())
    def draw(case: dict[str, Any], double: bool) -> None:
        precision, rtol = (torch.float64, 1e-10) if double else (torch.float32, 1e-4)
        seen.append(assert_equal(case | {"twice": case["twice"] and double}, precision, rtol))

    draw()
    assert sum(seen) > 0.5 * len(seen)
