"""The kernels of a GPU against the other ways of a run: on a GPU where there is one, else under
Triton's interpreter."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from neurolsc import LIF, ALIFPlus, Cell, Network, surrogate
from neurolsc.neurons.fast import sequence
from tests.neurons.fast import both
from tests.neurons.fast.both import moving

pytest.importorskip("triton", reason="Triton, of which the kernels are made, is not installed")
from neurolsc.neurons.fast import gpu_kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
on_a_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="torch finds no CUDA device here")


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs take the kernels, on a CPU too, and this list grows with each of them."""
    names: list[str] = []
    for name in ("forward", "reverse"):
        real = getattr(gpu_kernels, name)
        monkeypatch.setattr(gpu_kernels, name, lambda *args, name=name, real=real: (names.append(name), real(*args))[1])
    if DEVICE == "cpu":
        monkeypatch.setattr(sequence, "suits_gpu", lambda *_: True)
    return names


def firing(kind: Any, n_in: int = 7, n_hidden: int = 5, **settings: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:  # an interpreted kernel takes seconds
        patch.setattr(sequence, "suits_gpu", lambda *_: False)
        return both.firing(kind, n_in, n_hidden, **settings).to(DEVICE)


def spikes(*shape: int) -> Tensor:
    return (torch.rand(shape) < 0.4).float().to(DEVICE)


def outcome(
    cell: Cell, x: Tensor, state: Any, *, by: tuple[Tensor, ...] = (), parts: str = "spikes, states", **settings: Any
) -> tuple[list[Tensor], list[Tensor]]:
    """Spikes and the last state, and the gradients of a loss that sees parts of them."""
    z, after = both.own(cell, x, state, **settings)
    if (lengths := settings.get("lengths")) is not None:  # spikes after a sample's end mean nothing
        z = z * (torch.arange(len(x), device=DEVICE)[:, None, None] < lengths[:, None])
    assert 0.03 < z.mean() < 0.9
    loss = torch.zeros(())
    if "spikes" in parts:
        loss = loss + (z * torch.linspace(-1, 1, z.numel(), device=DEVICE).view_as(z)).sum()
    if "states" in parts:
        loss = loss + sum((leaf**2).sum() for leaf in after)
    wanted = [*(p for p in cell.parameters() if p.requires_grad), *by]
    return [z, *after], list(torch.autograd.grad(loss, wanted))


def assert_as_without(run: Callable[[], tuple[list[Tensor], list[Tensor]]], launches: list[str]) -> None:
    launches.clear()
    values, gradients = run()
    assert set(launches) == {"forward", "reverse"}
    launches.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cell, "_defined_with_its_step", lambda *_: False)  # plain steps
        plain_values, plain_gradients = run()
    assert not launches
    assert torch.equal(values[0], plain_values[0])
    for one, plain in zip([*values, *gradients], [*plain_values, *plain_gradients], strict=True):
        assert one.isfinite().all()
        assert (one - plain).norm() <= 1e-5 * plain.norm()


@pytest.mark.parametrize("reset_gradient", [False, True])
@pytest.mark.parametrize("reset", ["subtract", "static", "zero"])
@pytest.mark.parametrize("kind", [LIF, ALIFPlus])
def test_kernels_equal_the_other_ways(kind, reset, reset_gradient, launches):
    cell = firing(kind, reset=reset, reset_gradient=reset_gradient)
    x, late, state = spikes(7, 4, 7).requires_grad_(), spikes(4, 7).requires_grad_(), moving(cell, 4)
    settings = {"late": late, "lengths": torch.tensor([7, 6, 2, 0], device=DEVICE)}
    assert_as_without(lambda: outcome(cell, x, state, by=(x, late, *state), **settings), launches)


@pytest.mark.parametrize("batch", [2, 17])
def test_across_tiles_of_samples_and_neurons(batch, launches, monkeypatch):
    monkeypatch.setattr(gpu_kernels, "PRODUCTS", 8 * 32 * min(batch, 4))  # 8 of 20 rows at a time
    cell = firing(ALIFPlus, 7, 20, reset_gradient=True)
    x, state = spikes(3, batch, 7), moving(cell, batch)
    assert_as_without(lambda: outcome(cell, x, state, by=state), launches)


@pytest.mark.parametrize(("kind", "parts"), [(LIF, "spikes"), (ALIFPlus, "states")])
def test_when_only_spikes_or_states_matter_and_a_surrogate_learns(kind, parts, launches):
    spike = surrogate.MultiGaussian(torch.linspace(0.2, 0.8, 5), 1.5, learnable=parts == "spikes")
    cell, x = firing(kind, spike=spike), spikes(2, 3, 7)
    state = moving(cell, 3)
    assert_as_without(lambda: outcome(cell, x, state, parts=parts, by=state), launches)


def test_a_threshold_that_is_a_parameter_and_others_that_are_frozen(launches):
    cell, x = firing(LIF, reset_gradient=True), spikes(4, 3, 7)
    cell.register_parameter("theta", nn.Parameter(cell._buffers.pop("theta")))
    assert_as_without(lambda: outcome(cell, x, cell.initial_state(3)), launches)
    cell.requires_grad_(False)
    cell.theta.requires_grad_()
    assert_as_without(lambda: outcome(cell, x, cell.initial_state(3)), launches)


def test_a_network_with_a_mask(launches):
    network = Network([firing(ALIFPlus, 7, 20), firing(LIF, 20, 12)], 3).to(DEVICE)
    x, mask = spikes(4, 3, 7), (torch.arange(4).unsqueeze(1) < torch.tensor([4, 2, 3])).to(DEVICE)

    def run(x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        run = network.run(x, mask=mask)
        assert run.spikes[1].mean() > 0.03
        gradients = torch.autograd.grad(run.logits.square().sum(), list(network.parameters()))
        return [run.spikes[1] * mask.unsqueeze(2), run.logits, run.states.layers[0].theta], list(gradients)

    assert_as_without(lambda: run(x), launches)


def test_autocast_halves_the_weights_and_nothing_else(launches, half=torch.bfloat16):
    cell, x = firing(ALIFPlus, reset_gradient=True), spikes(6, 3, 7)
    with torch.no_grad():
        cell.w_in.copy_((4 * cell.w_in).round() / 4)  # sums of which are exact in half precision
    state = moving(cell, 3)

    def run() -> tuple[list[Tensor], list[Tensor]]:
        return outcome(cell, x, state, by=state)

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


@on_a_gpu
@pytest.mark.parametrize("rounded", [True, False])
@pytest.mark.parametrize("batch", [100, 1000])  # a program has one sample, or four
@pytest.mark.parametrize("kind", [LIF, ALIFPlus])
def test_at_the_size_of_real_layers(kind, batch, rounded, monkeypatch):
    cell = kind(700, 256, tau_v=5.0)
    with torch.no_grad():
        cell.w_in.mul_(4)
        for weight in (cell.w_in, cell.w_rec) if rounded else ():
            weight.copy_(weight.mul(2**10).round() / 2**10)  # sums of which are exact
    cell, x = cell.cuda(), (torch.rand(100, batch, 700) < 0.02).float().cuda()
    found = []
    for kernels in (True, False):
        with monkeypatch.context() as patch:
            if not kernels:
                patch.setattr(sequence, "suits_gpu", lambda *_: False)
            state = cell.initial_state(batch)
            assert sequence.suits_gpu(state.v, [*state]) == kernels
            z, _ = cell.run(x, state)
            loss = (z * torch.linspace(-1, 1, z.numel(), device="cuda").view_as(z)).sum()
            found.append((z, torch.autograd.grad(loss, list(cell.parameters()))))
    assert 0.02 < found[0][0].mean() < 0.5
    assert (found[0][0] != found[1][0]).float().mean() <= (0 if rounded else 1e-4)
    for one, plain in zip(found[0][1], found[1][1], strict=True) if rounded else ():
        assert (one - plain).norm() <= 1e-5 * plain.norm()


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from neurolsc.neurons.fast import gpu_kernels

flags = dict.fromkeys(("SPIKES", "ENDS", "THROUGH", "PASSES", "CONSTANT"), True) | {"ZERO": False}
integers = ("steps", "batch", "n", "step", "v_step", "theta_step")
for capability, weights in ((80, "fp32"), (90, "bf16")):
    for tile in ({"R": 1, "C": 256, "K": 32}, {"R": 4, "C": 512, "K": 4}):
        for kernel in (gpu_kernels.forward_kernel, gpu_kernels.reverse_kernel):
            types, values = {}, {}
            for i, parameter in enumerate(kernel.params):
                name = parameter.name
                types[name] = "*i32" if name == "lengths" else "i32" if name in integers else "*fp32"
                if name.startswith("w_rec"):
                    types[name] = "*" + weights
                if parameter.is_constexpr:
                    types[name], values[(i,)] = "constexpr", (flags | tile)[name]
            options = {"num_warps": 8, "num_stages": 1, "enable_fp_fusion": False}
            made = triton.compile(ASTSource(kernel, types, values), target=GPUTarget("cuda", capability, 32), options=options)
            assert made.asm["cubin"] and made.metadata.shared <= 48 * 1024
            print(kernel.__name__, capability, weights)
"""


@pytest.mark.slow
def test_kernels_compile_for_gpus():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(Path(sequence.__file__).parents[3])
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 8
