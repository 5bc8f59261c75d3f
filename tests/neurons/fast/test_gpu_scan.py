"""A GPU's kernels for other libraries' neurons, against those of a CPU and the libraries' own steps: on a GPU where
there is one, else under Triton's interpreter."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import norse.torch as norse
import pytest
import snntorch as snn
import torch
from snntorch import surrogate, utils
from spikingjelly.activation_based import functional, layer, neuron
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from neurolsc import accelerate, wrap
from neurolsc.interop.accelerate import running_of
from neurolsc.interop.fused import current_lif, fused_layer, voltage_lif
from neurolsc.neurons.cell import Cell
from neurolsc.neurons.fast import scan as scans
from neurolsc.neurons.fast.kinds import (
    ALL,
    ATAN,
    BOX,
    FAST_SIGMOID,
    GIVEN,
    LEAK_OF_ALL,
    LEAK_OF_STATE,
    NO_LEAK,
    NONE,
    NOTHING,
    QUADRATIC,
    SIGMOID,
    SIGN,
    SUBTRACT,
    ZERO,
    Neuron,
    Slope,
)
from neurolsc.neurons.fast.scan import Scanned, recurrent_scan, scan
from neurolsc.neurons.fast.sequence import WIDEST

pytest.importorskip("triton", reason="Triton, of which the kernels are made, is not installed")
from neurolsc.neurons.fast import gpu_kernels, gpu_scan

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
STEPS, BATCH, N = 5, 3, 6


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs take the kernels, on a CPU too, and this list grows with each of them."""
    names: list[str] = []

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def launch(*args: Any) -> Any:
            names.append(name)
            return real(*args)

        return launch

    for name in ("forward", "reverse"):
        monkeypatch.setattr(gpu_scan, name, counted(name, getattr(gpu_scan, name)))
    if not GPU:
        monkeypatch.setattr(scans, "runs_triton", lambda device: True)
    return names


# ---- against the kernels of a CPU

DECAYS = torch.linspace(0.5, 0.9, N)  # one for each neuron; numbers are the same for all
LEAKY = Neuron("leaky", 1, 0, 1, (SUBTRACT, True), False)


def run(
    neuron: Neuron, params: Any, slope: Slope, device: str, *, rows: int, batch: int, dtype: torch.dtype, weight: Any
) -> tuple[list[Tensor], Any]:
    """What a run returns, and the gradients of a random sum of that."""
    generator = torch.Generator().manual_seed(1)

    def drawn(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64).to(device, dtype)

    x = 2 * drawn(rows, batch, N)
    start = [2 * drawn(batch, N) for _ in range(neuron.states)]
    values = [torch.as_tensor(p).to(device, dtype) for p in params]
    inputs = [x, *start, *values]
    if weight is not None:
        inputs += [(drawn(batch, N) < 0.5).to(dtype), weight.to(device, dtype)]
    inputs = [t.requires_grad_() for t in inputs]
    ran: Scanned
    if weight is None:
        ran = scan(neuron, x, STEPS, start, values, slope)
    else:
        ran = recurrent_scan(neuron, x, STEPS, start, values, slope, inputs[-2], inputs[-1], None)
    outputs = [ran.z, *ran.states, *ran.ends]
    total = sum((out * (drawn(*out.shape) - 0.5)).sum() for out in outputs)
    return [out.detach() for out in outputs], torch.autograd.grad(total, inputs)  # type: ignore[arg-type]


def assert_as_on_a_cpu(
    neuron: Neuron,
    params: Any,
    slope: Slope,
    launches: list[str],
    *,
    rows: int = STEPS,
    batch: int = BATCH,
    dtype: torch.dtype = torch.float64,
    weight: Tensor | None = None,
) -> None:
    settings: Any = {"rows": rows, "batch": batch, "dtype": dtype, "weight": weight}
    values, gradients = run(neuron, params, slope, DEVICE, **settings)
    assert launches == ["forward", "reverse"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scans, "runs_triton", lambda device: False)
        wanted_values, wanted_gradients = run(neuron, params, slope, "cpu", **settings)
    assert launches == ["forward", "reverse"]
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    if neuron.flags[1:2] != (False,):  # LI sends no spikes
        assert 0.1 < (wanted_values[0] != 0).double().mean() < 0.95
    assert torch.equal(values[0].cpu() != 0, wanted_values[0] != 0)
    for ours, theirs in zip([*values, *gradients], [*wanted_values, *wanted_gradients], strict=True):
        assert (ours.cpu() - theirs).norm() <= tolerance * (1 + theirs.norm())


@pytest.mark.parametrize("delayed", [True, False])
@pytest.mark.parametrize("reset", [SUBTRACT, ZERO, NONE, ALL])
def test_leaky(reset: int, delayed: bool, launches: list[str]):
    kind = Neuron("leaky", 1, 0, 1, (reset, delayed), not delayed)
    assert_as_on_a_cpu(kind, [DECAYS, 1.5, 1.5], Slope(FAST_SIGMOID, 2.3), launches)


@pytest.mark.parametrize("delayed", [True, False])
@pytest.mark.parametrize("reset", [SUBTRACT, ZERO, NONE])
def test_synaptic(reset: int, delayed: bool, launches: list[str]):
    kind = Neuron("synaptic", 2, 1, 2, (reset, delayed), not delayed)
    assert_as_on_a_cpu(kind, [0.3, DECAYS, 3.0, 1.5], Slope(ATAN, 2.3), launches)


@pytest.mark.parametrize("reset", [SUBTRACT, ZERO, NONE])
def test_alpha_function(reset: int, launches: list[str]):
    kind = Neuron("alpha_function", 3, 2, 2, (reset,), False)
    assert_as_on_a_cpu(kind, [0.8, 0.9 * DECAYS, 2.0, 1.5, 2.0], Slope(SIGMOID, 2.3), launches)


@pytest.mark.slow
@pytest.mark.parametrize("passes", [True, False])
@pytest.mark.parametrize("reset", [SUBTRACT, ZERO, NONE])
def test_current_lif(reset: int, passes: bool, launches: list[str]):
    kind = Neuron("current_lif", 2, 0, 3, (reset, True, passes), True)
    assert_as_on_a_cpu(kind, [0.75, -DECAYS, 0.1, 1.2, -0.2], Slope(SIGN, 0.7), launches)


def test_an_integrator_of_currents(launches: list[str]):
    assert_as_on_a_cpu(
        current_lif(sends=False, passes=True), [0.75, -DECAYS, 0.1, 1.2, -0.2], Slope(GIVEN), launches, rows=1
    )


@pytest.mark.parametrize("form", [BOX, LEAK_OF_ALL, LEAK_OF_STATE, NO_LEAK])
@pytest.mark.parametrize(("reset", "passes", "at"), [(SUBTRACT, True, False), (ZERO, True, True), (ZERO, False, True)])
def test_voltage_lif(form: int, reset: int, passes: bool, at: bool, launches: list[str]):
    kind = voltage_lif(form, reset=reset, passes=passes, at=at)
    assert_as_on_a_cpu(kind, [DECAYS, 0.1, 1.0, -0.2], Slope(QUADRATIC, 0.7), launches)


@pytest.mark.parametrize("form", [LEAK_OF_ALL, LEAK_OF_STATE])
def test_a_tau_that_divides(form: int, launches: list[str]):
    kind = voltage_lif(form, divides=True, reset=SUBTRACT)
    assert_as_on_a_cpu(kind, [1.7, 0.1, 1.0, -0.2], Slope(ATAN, 2.0), launches)


@pytest.mark.slow
@pytest.mark.parametrize("passes", [True, False])
def test_adaptive_lif(passes: bool, launches: list[str]):
    kind = Neuron("adaptive_lif", 3, 0, 7, (passes,), True)
    assert_as_on_a_cpu(kind, [0.75, -DECAYS, 0.1, 0.3, -0.2, 0.4, 0.5, 0.0], Slope(ATAN, 2.0), launches)


def derivative(distance: Tensor) -> Tensor:
    return 1 / (1 + distance**2)


@pytest.mark.parametrize(
    "slope",
    [Slope(kind, 2.3) for kind in (NOTHING, ATAN, FAST_SIGMOID, SIGMOID, SIGN, QUADRATIC)]
    + [Slope(GIVEN, 1.0, derivative)],
)
def test_derivatives_of_spikes(slope: Slope, launches: list[str]):
    assert_as_on_a_cpu(LEAKY, [DECAYS, 1.5, 1.5], slope, launches)


def test_currents_that_are_the_same_in_all_steps(launches: list[str]):
    assert_as_on_a_cpu(LEAKY, [DECAYS, 1.5, 1.5], Slope(ATAN, 2.0), launches, rows=1)


def test_several_programs(launches: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu_scan, "ENTRIES", 32)
    assert_as_on_a_cpu(LEAKY, [DECAYS, 1.5, 1.5], Slope(ATAN, 2.0), launches, batch=8)


def test_single_precision(launches: list[str]):
    assert_as_on_a_cpu(LEAKY, [DECAYS, 1.5, 1.5], Slope(ATAN, 2.0), launches, dtype=torch.float32)


def test_a_batch_of_no_samples(launches: list[str]):
    x = torch.zeros(STEPS, 0, N, device=DEVICE, requires_grad=True)
    ones = torch.ones((), device=DEVICE)
    ran = scan(LEAKY, x, STEPS, [ones], [ones, ones, ones], Slope(ATAN, 2.0))
    assert ran.z.shape == x.shape
    assert torch.autograd.grad(ran.z.sum(), x)[0].shape == x.shape


RECURRENT = {
    "leaky": (Neuron("leaky", 1, 0, 1, (ALL, False), True), [DECAYS, 1.5, 1.5]),
    "synaptic": (Neuron("synaptic", 2, 1, 2, (SUBTRACT, True), False), [0.3, DECAYS, 3.0, 1.5]),
    "current_lif": (current_lif(sends=True, passes=False), [0.75, -DECAYS, 0.1, 1.2, -0.2]),
    "adaptive_lif": (
        Neuron("adaptive_lif", 3, 0, 7, (False,), True),
        [0.75, -DECAYS, 0.1, 0.3, -0.2, 0.4, 0.5, 0.0],
    ),
}


@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.slow
def test_recurrent_neurons(kind: str, launches: list[str]):
    weight = torch.randn(N, N) / 2
    assert_as_on_a_cpu(*RECURRENT[kind], Slope(FAST_SIGMOID, 2.0), launches, weight=weight)


@pytest.mark.parametrize("weight", [torch.tensor(0.5), torch.tensor([0.5]), DECAYS])
def test_neurons_that_read_their_own_spike(weight: Tensor, launches: list[str]):
    assert_as_on_a_cpu(LEAKY, [DECAYS, 1.5, 1.5], Slope(ATAN, 2.0), launches, rows=1, weight=weight)


@pytest.mark.parametrize("batch", [5, N])
def test_tiles_of_recurrent_neurons_in_single_precision(
    batch: int, launches: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(gpu_kernels, "PRODUCTS", 4 * 16 * 2)  # two rows of weights at a time
    # Sums of such weights are exact in any order: equal spikes are no matter of rounding.
    weight = (8 * torch.randn(N, N)).round() / 16
    assert_as_on_a_cpu(
        LEAKY, [DECAYS, 1.5, 1.5], Slope(ATAN, 2.0), launches, batch=batch, dtype=torch.float32, weight=weight
    )


# ---- against the libraries' own steps


class Loop(nn.Module):
    """Layers of snnTorch in the loop of their user, who adds up what they send."""

    def __init__(self, hidden: nn.Module) -> None:
        super().__init__()
        self.fc1 = nn.Linear(7, N)
        self.hidden = hidden
        self.fc2 = nn.Linear(N, 3)
        self.out = snn.Leaky(beta=0.9, reset_mechanism="none", spike_grad=surrogate.fast_sigmoid(5))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        layers: Any = self
        state = layers.hidden.reset_mem()
        if not isinstance(state, tuple):
            state = (state,)
        mem = layers.out.reset_mem()
        voltages = []
        sent = []
        for t in range(len(x)):
            spk, *state = layers.hidden(self.fc1(x[t]), *state)
            if hasattr(layers.hidden, "recurrent"):
                state = [spk, *state]
            _, mem = layers.out(self.fc2(spk), mem)
            voltages.append(mem)
            sent.append(spk)
        assert voltages[0].device.type == DEVICE
        return torch.stack(voltages), torch.stack(sent)


def snntorch_network(kind: type[Any], **settings: Any) -> nn.Module:
    return Loop(kind(beta=0.75, threshold=0.5, learn_beta=True, spike_grad=surrogate.atan(2.0), **settings))


def norse_network(*, recurrent: bool) -> nn.Module:
    p = norse.LIFParameters(v_th=torch.tensor(0.125))
    layers: list[nn.Module] = [norse.Lift(nn.Linear(7, N)), norse.LIF(p)]
    if recurrent:
        layers = [norse.LIFRecurrent(7, N, p)]
    return norse.SequentialState(*layers, norse.Lift(nn.Linear(N, 3)), norse.LI())


def jelly_network(node: nn.Module) -> nn.Module:
    net = nn.Sequential(layer.Linear(7, N), node, layer.Linear(N, 3), neuron.LIFNode(v_threshold=0.0625))
    functional.set_step_mode(net, "m")
    return net


NETWORKS = {
    "Leaky": lambda: snntorch_network(snn.Leaky),
    "Leaky reset at once": lambda: snntorch_network(snn.Leaky, reset_mechanism="zero", reset_delay=False),
    "Synaptic": lambda: snntorch_network(snn.Synaptic, alpha=0.5),
    "Alpha": lambda: snntorch_network(snn.Alpha, alpha=0.875),
    "RLeaky": lambda: snntorch_network(snn.RLeaky, linear_features=N),
    "norse LIF": lambda: norse_network(recurrent=False),
    "norse LIFRecurrent": lambda: norse_network(recurrent=True),
    "LIFNode": lambda: jelly_network(neuron.LIFNode(2.0, v_threshold=0.25)),
    "ParametricLIFNode": lambda: jelly_network(neuron.ParametricLIFNode(2.0, v_threshold=0.25, decay_input=False)),
    "IFNode": lambda: jelly_network(neuron.IFNode(v_threshold=0.25, v_reset=None, detach_reset=True)),
}


def outcome(net: nn.Module, call: Callable[[], Any]) -> tuple[list[Tensor], list[Tensor]]:
    """What a call returns, and the gradients of a weighted sum of that."""
    functional.reset_net(net)
    tensors = [t for t in tree_leaves(call()) if isinstance(t, Tensor) and t.requires_grad]
    weighted = [(t * torch.linspace(-1, 1, t.numel(), device=DEVICE).view_as(t)).sum() for t in tensors]
    gradients = torch.autograd.grad(sum(weighted), list(net.parameters()), allow_unused=True)  # type: ignore[arg-type]
    found = [g if g is not None else torch.zeros(()) for g in gradients]
    return [t.detach() for t in tensors], found


def assert_near(ours: tuple[list[Tensor], list[Tensor]], theirs: tuple[list[Tensor], list[Tensor]]) -> None:
    for one, other in zip([*ours[0], *ours[1]], [*theirs[0], *theirs[1]], strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype and one.device == other.device
        assert (one - other).norm() <= 1e-4 * (1e-3 + other.norm())


QUICK = ("Leaky", "norse LIF", "ParametricLIFNode")
EACH = [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in NETWORKS]


@pytest.mark.parametrize("name", EACH)
def test_an_accelerated_network_is_the_users(name: str, launches: list[str]):
    net = NETWORKS[name]().to(DEVICE)
    x = (4 * torch.rand(STEPS, BATCH, 7)).to(DEVICE)
    fast = accelerate(net, x)
    assert running_of(fast).runs_plainly is None
    assert all(steps == (STEPS, STEPS) for steps in running_of(fast).steps_of.values())
    theirs = outcome(net, lambda: net(x))
    launches.clear()
    ours = outcome(net, lambda: fast(x))
    assert launches.count("forward") == launches.count("reverse") == 2  # one for each layer
    assert (theirs[0][0] != 0).any()
    assert_near(ours, theirs)


def test_a_loop_around_the_network(launches: list[str]):
    spike = surrogate.atan(2.0)
    net = nn.Sequential(
        nn.Linear(7, N),
        snn.Leaky(beta=0.75, threshold=0.5, spike_grad=spike, init_hidden=True),
        nn.Linear(N, 3),
        snn.Leaky(beta=0.75, threshold=0.5, spike_grad=spike, init_hidden=True, output=True),
    ).to(DEVICE)
    x = (4 * torch.rand(STEPS, BATCH, 7)).to(DEVICE)
    fast = accelerate(net, x[0])

    def over_time(model: Any) -> tuple[Tensor, Tensor]:
        utils.reset(net)
        spikes, voltages = zip(*(model(x_t) for x_t in x), strict=True)
        return torch.stack(spikes), torch.stack(voltages)

    theirs = outcome(net, lambda: over_time(net))
    launches.clear()
    ours = outcome(net, lambda: over_time(fast))
    assert launches.count("forward") == launches.count("reverse") == 2
    assert_near(ours, theirs)


@pytest.mark.parametrize("name", ["Synaptic", "norse LIF", "LIFNode"])
def test_a_wrapped_network(name: str, launches: list[str], monkeypatch: pytest.MonkeyPatch):
    x = 4 * torch.rand(STEPS, BATCH, 7)
    wrapped = wrap(NETWORKS[name](), x).to(DEVICE)
    x = x.to(DEVICE)
    mask = torch.arange(STEPS).unsqueeze(1) < torch.tensor([STEPS, 4, 2])

    def ran() -> tuple[Tensor, Tensor]:
        run = wrapped.run(x, mask=mask.to(DEVICE))
        return run.logits, run.states.layers[0][0]

    launches.clear()
    ours = outcome(wrapped, ran)
    assert launches
    launches.clear()
    monkeypatch.setattr(Cell, "_defined_with_its_step", lambda *_: False)  # plain steps
    theirs = outcome(wrapped, ran)
    assert not launches
    assert_near(ours, theirs)


# ---- where there are kernels


def test_there_are_kernels_for_one_device_of_each_kind(monkeypatch: pytest.MonkeyPatch):
    on_cpu = torch.zeros(3)
    elsewhere = torch.zeros(3, device="meta")
    assert not scans.can_scan([elsewhere])
    monkeypatch.setattr(scans, "runs_triton", lambda device: device.type == "meta")
    assert scans.can_scan([elsewhere, elsewhere])
    assert not scans.can_scan([elsewhere.bfloat16()])
    assert not scans.can_scan([on_cpu, elsewhere])
    assert not scans.can_scan([elsewhere, on_cpu])


def test_wide_recurrent_layers_run_plainly_on_a_gpu():
    width = WIDEST + 1
    for recurrent in (snn.RLeaky(0.9, linear_features=width), norse.LIFRecurrentCell(3, width)):
        assert not isinstance(fused_layer(recurrent), str)
        reason = fused_layer(recurrent.to("meta"))
        assert reason == f"a GPU's kernel runs up to {WIDEST} recurrent neurons, and it has {width}"


WITHOUT = """
import sys
import snntorch, torch
from neurolsc import accelerate
net = torch.nn.Sequential(torch.nn.Linear(3, 4), snntorch.Leaky(0.9, init_hidden=True))
assert "numba" not in sys.modules
accelerate(net, torch.rand(2, 3))
assert "neurolsc.neurons.fast.snntorch_kernels" in sys.modules
assert "triton" not in sys.modules
"""


@pytest.mark.slow
def test_a_run_on_a_cpu_imports_no_triton():
    environment = os.environ | {"PYTHONPATH": str(Path(scans.__file__).parents[3])}
    subprocess.run([sys.executable, "-c", WITHOUT], env=environment, check=True)


COMPILE = """
import re
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from neurolsc.neurons.fast import gpu_scan

switches = {"DELAYED": 0, "SPIKING": 1, "PASSES": 1, "FORM": 0, "AT_THRESHOLD": 0, "SAVES": 1, "LEARNT": 1, "A": 2.0}
kinds = {"leaky": (1, 3), "synaptic": (2, 4), "alpha_function": (3, 5), "current_lif": (2, 5), "voltage_lif": (1, 4)}
kinds["adaptive_lif"] = (3, 8)
numbers = gpu_scan.NUMBERS + gpu_scan.REVERSE_NUMBERS
for number, (kind, (states, params)) in enumerate(kinds.items()):
    switches |= {"RESET": number % 3, "FORMULA": number + 1}
    for capability, dtype, reads, tile in (
        (80, "fp32", 0, {"R": 128, "C": 1, "K": 1}),
        (90, "fp64", 1, {"R": 128, "C": 1, "K": 1}),
        (90, "fp32", 2, {"R": 4, "C": 512, "K": 4}),
    ):
        constants = switches | tile | {"KIND": kind, "STATES": states, "PARAMS": params, "READS": reads}
        for kernel in (gpu_scan.forward_kernel, gpu_scan.reverse_kernel):
            types, values = {}, {}
            for i, parameter in enumerate(kernel.params):
                name = parameter.name
                types[name] = "i32" if name in numbers else "*" + dtype
                if parameter.is_constexpr:
                    types[name], values[(i,)] = "constexpr", constants[name]
            forward = kernel is gpu_scan.forward_kernel
            options = {"num_warps": 8 if reads == 2 else 4, "num_stages": 1, "enable_fp_fusion": not forward}
            made = triton.compile(ASTSource(kernel, types, values), target=GPUTarget("cuda", capability, 32), options=options)
            assert made.asm["cubin"] and made.metadata.shared <= 48 * 1024
            assert not (forward and re.search("fma", made.asm["ptx"]))  # rounds as plain steps do
            print(kind, capability, dtype, kernel.__name__)
"""


@pytest.mark.slow
def test_kernels_compile_for_gpus():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(Path(scans.__file__).parents[3])
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 6 * 3 * 2
