"""The kernels of a layer's time loop at the sizes of real layers, on a GPU; and that they can be
made for GPUs, without one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from neurolsc import LIF, ALIFPlus
from neurolsc.neurons.fast import fused

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here")
both = pytest.mark.parametrize("kind", [LIF, ALIFPlus])


def outcomes(kind, monkeypatch, *, batch: int, rounded: bool) -> list:
    """Spikes and gradients of the kernels and of the loop: 256 neurons, 100 steps."""
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
                patch.setattr(fused, "suits", lambda *_: False)
            state = cell.initial_state(batch)
            assert fused.suits(cell.constants(), cell.output(state), *state) == kernels
            z, _ = cell.run(x, state)
            loss = (z * torch.linspace(-1, 1, z.numel(), device="cuda").view_as(z)).sum()
            found.append((z, torch.autograd.grad(loss, list(cell.parameters()))))
    assert 0.02 < found[0][0].mean() < 0.5
    return found


@on_a_gpu
@both
@pytest.mark.parametrize("batch", [100, 1000])  # a program has one sample, or four
def test_kernels_are_the_loop_where_sums_are_exact(batch, kind, monkeypatch):
    (z, gradients), (plain_z, plain_gradients) = outcomes(kind, monkeypatch, batch=batch, rounded=True)
    assert torch.equal(z, plain_z)
    for one, plain in zip(gradients, plain_gradients, strict=True):
        assert (one - plain).norm() <= 1e-5 * plain.norm()


@on_a_gpu
@both
def test_few_spikes_differ_from_those_of_the_loop(kind, monkeypatch):
    (z, _), (plain_z, _) = outcomes(kind, monkeypatch, batch=100, rounded=False)
    assert (z != plain_z).float().mean() < 1e-4


COMPILE = """
import importlib.util, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

spec = importlib.util.spec_from_file_location("fused_kernels", sys.argv[1])
kernels = importlib.util.module_from_spec(spec)
sys.modules["fused_kernels"] = kernels
spec.loader.exec_module(kernels)
flags = dict.fromkeys(("SPIKES", "ENDS", "THROUGH", "PASSES", "CONSTANT"), True) | {"ZERO": False}
integers = ("steps", "batch", "n", "step", "v_step", "theta_step")
for capability, weights in ((80, "fp32"), (80, "bf16"), (86, "fp16"), (89, "fp32"), (90, "fp32"), (90, "bf16")):
    for tile in ({"R": 1, "C": 256, "K": 32}, {"R": 4, "C": 512, "K": 4}):
        for kernel in (kernels.forward, kernels.reverse):
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
    pytest.importorskip("triton", reason="Triton, of which the kernels are made, is not installed")
    kernels = Path(fused.__file__).with_name("fused_kernels.py")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COMPILE, str(kernels)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 24
