"""The kernels of a layer's time loop against the loop: on a GPU where there is one, else under
Triton's interpreter."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from neurolsc import LIF, ALIFPlus, Cell, Network, surrogate
from neurolsc.neurons import fast as fast_room
from neurolsc.neurons.fast import fused
from neurolsc.neurons.spiking import SpikingCell

pytest.importorskip("triton", reason="Triton, of which the kernels are made, is not installed")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WITH_RESETS = [
    (kind, reset, gradient)
    for kind in (LIF, ALIFPlus)
    for reset in ("subtract", "static", "zero")
    for gradient in (False, True)
]


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs take the kernels, on a CPU too, and this list grows with each of them."""
    names: list[str] = []
    for name in ("forward", "reverse"):
        real = getattr(fused, name)
        monkeypatch.setattr(fused, name, lambda *args, name=name, real=real: (names.append(name), real(*args))[1])
    if DEVICE == "cpu":
        monkeypatch.setattr(fused, "suits", lambda *_: True)
    return names


@contextmanager
def the_loop() -> Iterator[None]:
    """Runs take no kernel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "suits", lambda *_: False)
        yield


def firing(kind: type[SpikingCell], n_in: int, n_hidden: int, **settings: Any) -> SpikingCell:
    """A cell that fires."""
    cell = kind(n_in, n_hidden, tau_v=2.0, **settings)
    cell.b_v.normal_(0, 0.1)
    with torch.no_grad():
        cell.w_in.mul_(5)
        cell.w_rec.mul_(2)
    return cell.to(DEVICE)


def spikes(*shape: int) -> Tensor:
    return (torch.rand(shape) < 0.4).float().to(DEVICE)


def moving(cell: Cell, batch: int) -> Any:
    """A state in the middle of a run, to be differentiated by; it lies in memory neuron by
    neuron."""
    with torch.no_grad():
        _, state = cell.run(spikes(4, batch, cell.n_in), cell.initial_state(batch))
    return type(state)(*(leaf.T.contiguous().T.requires_grad_() for leaf in state))


def outcome(
    cell: Cell, x: Tensor, state: Any, *, by: tuple[Tensor, ...] = (), parts: str = "spikes, states", **settings: Any
) -> tuple[list[Tensor], list[Tensor]]:
    """Spikes and the last state, and the gradients by the parameters and others of a loss that sees
    parts of them."""
    z, after = cell.run(x, state, **settings)
    assert 0.03 < z.mean() < 0.9
    loss = torch.zeros(())
    if "spikes" in parts:
        loss = loss + (z * torch.linspace(-1, 1, z.numel(), device=DEVICE).view_as(z)).sum()
    if "states" in parts:
        loss = loss + sum((leaf**2).sum() for leaf in after)
    wanted = [*(p for p in cell.parameters() if p.requires_grad), *by]
    return [z, *after], list(torch.autograd.grad(loss, wanted))


def assert_as_the_loop(run: Callable[[], tuple[list[Tensor], list[Tensor]]], launches: list[str]) -> None:
    launches.clear()
    values, gradients = run()
    assert set(launches) == {"forward", "reverse"}
    launches.clear()
    with the_loop():
        plain_values, plain_gradients = run()
    assert not launches
    assert torch.equal(values[0], plain_values[0])
    for one, plain in zip([*values, *gradients], [*plain_values, *plain_gradients], strict=True):
        assert one.isfinite().all()
        assert (one - plain).norm() <= 1e-5 * plain.norm()


@pytest.mark.parametrize(("kind", "reset", "reset_gradient"), WITH_RESETS)
def test_kernels_are_the_loop(kind, reset, reset_gradient, launches):
    cell = firing(kind, 7, 5, reset=reset, reset_gradient=reset_gradient)
    x, first, state = spikes(5, 3, 7).requires_grad_(), spikes(3, 7).requires_grad_(), moving(cell, 3)
    settings = {"first": first, "lengths": torch.tensor([5, 2, 0], device=DEVICE)}
    assert_as_the_loop(lambda: outcome(cell, x, state, by=(x, first, *state), **settings), launches)


@pytest.mark.parametrize("batch", [1, 2, 17])
def test_across_tiles_of_samples_and_neurons(batch, launches, monkeypatch):
    monkeypatch.setattr(fused, "HELD", 8 * 32 * min(batch, 4))  # 8 of 20 rows at a time
    cell = firing(ALIFPlus, 7, 20, reset_gradient=True)
    x, state = spikes(3, batch, 7), moving(cell, batch)
    assert_as_the_loop(lambda: outcome(cell, x, state, by=state), launches)


@pytest.mark.parametrize("kind", [LIF, ALIFPlus])
@pytest.mark.parametrize("parts", ["spikes", "states"])
def test_when_only_spikes_or_states_matter(parts, kind, launches):
    cell, x = firing(kind, 7, 5), spikes(4, 3, 7)
    assert_as_the_loop(lambda: outcome(cell, x, cell.initial_state(3), parts=parts), launches)


def test_a_single_step(launches):
    cell, x = firing(ALIFPlus, 7, 5), spikes(1, 3, 7)
    state = moving(cell, 3)
    assert_as_the_loop(lambda: outcome(cell, x, state), launches)


@pytest.mark.parametrize(
    "name",
    ["MultiGaussian"]
    + [
        pytest.param(name, marks=pytest.mark.slow)
        for name in surrogate.__all__
        if name not in ("Surrogate", "MultiGaussian")
    ],
)
def test_with_every_surrogate_and_its_parameters(name, launches):
    spike = getattr(surrogate, name)(torch.linspace(0.2, 0.8, 5), 1.5, learnable=True)
    cell, x = firing(ALIFPlus, 7, 5, spike=spike), spikes(3, 3, 7)
    assert_as_the_loop(lambda: outcome(cell, x, cell.initial_state(3)), launches)


def test_a_threshold_that_is_a_parameter_has_its_gradient(launches):
    cell, x = firing(LIF, 7, 5, reset_gradient=True), spikes(4, 3, 7)
    cell.register_parameter("theta", nn.Parameter(cell._buffers.pop("theta")))
    assert_as_the_loop(lambda: outcome(cell, x, cell.initial_state(3)), launches)


def test_parameters_that_are_held_get_no_gradient_and_change_no_other(launches):
    cell, x = firing(ALIFPlus, 7, 5, spike=surrogate.Arctan(learnable=True)), spikes(4, 3, 7)
    _, free = outcome(cell, x, cell.initial_state(3))
    names = [name for name, _ in cell.named_parameters()]
    cell.requires_grad_(False)
    for held in ("w_rec", "adaptation"):
        cell.get_parameter(held).requires_grad_()
        _, (gradient,) = outcome(cell, x, cell.initial_state(3))
        torch.testing.assert_close(gradient, free[names.index(held)])
        cell.requires_grad_(False)


def test_a_network_with_masks_recomputation_and_sparse_input(launches):
    cells = [firing(ALIFPlus, 7, 5), firing(LIF, 5, 6)]
    network = Network(cells, 3).to(DEVICE)
    x, mask = spikes(4, 3, 7), (torch.arange(4).unsqueeze(1) < torch.tensor([4, 2, 3])).to(DEVICE)

    def run(x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        run = network.run(x, mask=mask)
        assert run.spikes[1].mean() > 0.03
        gradients = torch.autograd.grad(run.logits.square().sum(), list(network.parameters()))
        return [run.spikes[1], run.logits, run.states.layers[0].theta], list(gradients)

    assert_as_the_loop(lambda: run(x), launches)
    kept = run(x)
    launches.clear()
    network.recompute = True
    for again in (run(x), run(x.to_sparse())):
        torch.testing.assert_close(again, kept, rtol=0, atol=0)
    assert launches == 2 * ["forward", "forward", "reverse", "forward", "reverse", "forward"]
    with torch.no_grad():
        torch.testing.assert_close(network.run(x, mask=mask).logits, kept[0][1], rtol=0, atol=0)


def test_sums_of_rounded_weights_have_no_order(launches):
    cell, x = firing(ALIFPlus, 16, 32), spikes(12, 4, 16)
    with torch.no_grad():
        for weight in (cell.w_in, cell.w_rec, cell.b_v):
            weight.copy_(weight.mul(2**10).round() / 2**10)  # sums of which are exact
    with torch.no_grad():
        values = cell.run(x, cell.initial_state(4))
        assert launches == ["forward"]
        with the_loop():
            torch.testing.assert_close(cell.run(x, cell.initial_state(4)), values, rtol=0, atol=0)


@pytest.mark.skipif(DEVICE == "cuda", reason="about machines without a GPU")
def test_without_a_gpu_or_triton_the_loop_is_taken(monkeypatch):
    cell = firing(ALIFPlus, 7, 5)
    state = cell.initial_state(3)
    assert not fused.suits(cell.constants(), cell.output(state), *state)
    assert fused.kernels() is not None
    fused.kernels.cache_clear()
    with monkeypatch.context() as patch:
        patch.delattr(fast_room, "fused_kernels", raising=False)
        patch.setitem(sys.modules, "neurolsc.neurons.fast.fused_kernels", None)
        assert fused.kernels() is None
    fused.kernels.cache_clear()


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
def test_autocast_halves_the_weights_and_nothing_else(half, recompute, launches):
    cell, x = firing(ALIFPlus, 7, 5, reset_gradient=True), spikes(6, 3, 7)
    with torch.no_grad():
        cell.w_in.copy_((4 * cell.w_in).round() / 4)  # sums of which are exact in half precision
    state = moving(cell, 3)

    def run() -> tuple[list[Tensor], list[Tensor]]:
        return outcome(cell, x, state, by=state, recompute=recompute)

    launches.clear()
    with torch.autocast(DEVICE, half):
        values, gradients = run()
    assert set(launches) == {"forward", "reverse"}
    assert {tensor.dtype for tensor in (*values, *gradients)} == {torch.float32}
    whole = run()[1]
    with torch.no_grad():
        cell.w_rec.copy_(cell.w_rec.to(half))
    rounded_values, rounded_gradients = run()
    for one, rounded in zip([*values, *gradients], [*rounded_values, *rounded_gradients], strict=True):
        assert (one - rounded).norm() <= 1e-6 * rounded.norm()
    assert any((one - other).norm() > 1e-6 * other.norm() for one, other in zip(gradients, whole, strict=True))


def test_under_autocast_spikes_are_those_of_the_plain_step_where_its_sums_are_exact(launches):
    cell, x = firing(ALIFPlus, 7, 5), spikes(6, 3, 7)
    with torch.no_grad():
        for weight in (cell.w_in, cell.w_rec):
            weight.copy_((4 * weight).round() / 4)
    with torch.autocast(DEVICE, torch.bfloat16):
        z, after = cell.run(x, cell.initial_state(3))
        assert launches == ["forward"]
        with the_loop():
            plain_z, plain_after = cell.run(x, cell.initial_state(3))
    assert launches == ["forward"]
    assert 0.03 < z.mean() < 0.9
    assert torch.equal(z, plain_z)
    torch.testing.assert_close([*after], [*plain_after])
