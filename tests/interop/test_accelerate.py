"""A user's network, accelerated, does what it does: values, gradients, states, hooks, and in its own words."""

import copy
import inspect
import pickle
import random
import subprocess
import sys
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import norse.torch as norse
import numpy as np
import pytest
import snntorch as snn
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from norse.torch.functional.lif_box import LIFBoxParameters
from norse.torch.functional.lsnn import LSNNParameters
from norse.torch.functional.reset import reset_subtract, reset_value
from snntorch import surrogate, utils
from spikingjelly.activation_based import functional, layer, neuron
from spikingjelly.activation_based import surrogate as jelly
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from neurolsc import NotAcceleratedWarning, accelerate, initialize, radius_profile
from neurolsc.interop.accelerate import running_of
from neurolsc.interop.comparison import Outcome, difference
from neurolsc.interop.groups import successive_parts
from neurolsc.surrogate import Arctan, FastSigmoid, Surrogate

pytestmark = pytest.mark.filterwarnings("error::neurolsc.NotAcceleratedWarning")


class Loop(nn.Module):
    """A network as users write it: a loop over time around layers that are called one after the other."""

    def __init__(self, *layers: nn.Module, steps: int | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.steps = steps

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        states: list[Any] = [None] * len(self.layers)
        layers: list[Any] = list(self.layers)
        for i, each in enumerate(layers):
            if isinstance(each, snn.SpikingNeuron) and not each.init_hidden:
                states[i] = as_tuple(each.reset_mem())  # type: ignore[operator]
        sent = []
        voltages = []
        for t in range(self.steps or len(x)):
            z = x if self.steps else x[t]
            for i, each in enumerate(self.layers):
                if isinstance(each, snn.SpikingNeuron) and not each.init_hidden:
                    z, *after = each(z, *states[i])
                    states[i] = (z, *after) if hasattr(each, "recurrent") else after
                elif type(each).__module__.startswith("norse"):
                    z, states[i] = each(z, states[i])
                else:
                    z = each(z)
                z = z.to(x.dtype)  # snnTorch's spikes are float32
            sent.append(z)
            voltages.append(states[1][-1] if states[1] is not None else z)
        return torch.stack(sent), torch.stack(voltages)


def as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def longest(fast: Any) -> int:
    """The most steps that a layer has run at once in the last call."""
    return max(at_once for at_once, _ in running_of(fast).steps_of.values())


def at_rest(net: nn.Module) -> None:
    functional.reset_net(net)
    modules: list[Any] = list(net.modules())
    for each in modules:
        if isinstance(each, snn.SpikingNeuron):
            each.reset_mem()  # type: ignore[operator]


def outcome(net: nn.Module, call: Callable[[], Any]) -> tuple[list[Tensor], list[Tensor | None]]:
    """All tensors that a call returns, and the gradients of a random sum of them."""
    tensors = [t for t in tree_leaves(call()) if isinstance(t, Tensor)]
    random = torch.Generator().manual_seed(5)
    draws = [torch.randn(t.shape, generator=random) for t in tensors]  # the same with and without gradient
    weighted = [(t * draw).sum() for t, draw in zip(tensors, draws, strict=True) if t.requires_grad]
    parameters = [p for p in net.parameters() if p.requires_grad]
    gradients: Any = torch.autograd.grad(sum(weighted), parameters, allow_unused=True)  # type: ignore[arg-type]
    return [t.detach() for t in tensors], list(gradients)


def assert_same(net: nn.Module, x: Tensor, *, tolerance: float = 1e-10, fires: bool = True) -> Any:
    """The network and the accelerated one agree, from rest; the accelerated one."""
    fast = accelerate(net, x)
    at_rest(net)
    values, gradients = outcome(net, lambda: net(x))
    at_rest(net)
    others, other_gradients = outcome(net, lambda: fast(x))
    assert running_of(fast).runs_plainly is None
    for ours, theirs in zip(others, values, strict=True):
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
        assert ours.is_contiguous() == theirs.is_contiguous()
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    for ours, theirs in zip(other_gradients, gradients, strict=True):
        if theirs is None:  # of what has no influence on what is returned
            assert ours is None or not ours.any()
            continue
        assert ours is not None
        scale = theirs.abs().max().item() + 1e-30
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance * scale)
    if fires:
        assert values[0].abs().mean() > 0
    return fast


def names_of_nodes(out: Tensor) -> list[str]:
    """The functions that have made a tensor, each call once."""
    left: list[Any] = [out.grad_fn]
    found: dict[Any, str] = {}
    while left:
        node = left.pop()
        if node is not None and node not in found:
            found[node] = node.name()
            left += [parent for parent, _ in node.next_functions]
    return list(found.values())


@pytest.fixture
def x(float64: None) -> Tensor:
    return torch.rand(12, 4, 6)


# ---- the same numbers

OURS = st.sampled_from([Arctan(dampening=1.0, sharpness=2.0), FastSigmoid(dampening=0.7, sharpness=5.0)])
THEIRS = st.sampled_from(
    [surrogate.atan(2.0), surrogate.fast_sigmoid(10), surrogate.sigmoid(5), surrogate.triangular(2)]
)
RESETS = st.sampled_from(["subtract", "zero", "none"])
TENTHS = st.integers(1, 9).map(lambda n: n / 10)


@st.composite
def snntorch_layers(draw: Callable[[Any], Any]) -> tuple[nn.Module, float]:
    """A layer of snnTorch, and how near its gradients must be: with its own surrogates its spikes are float32."""
    kind = draw(st.sampled_from([snn.Leaky, snn.Synaptic, snn.Alpha, snn.RLeaky, snn.RSynaptic]))
    recurrent = kind in (snn.RLeaky, snn.RSynaptic)
    ours = recurrent or draw(st.booleans())  # recurrent weights in float64 do not take snnTorch's float32
    each = draw(st.booleans())
    beta = draw(TENTHS)
    options = {
        "beta": torch.full((5,), beta) if each else beta,
        "threshold": torch.tensor(draw(st.sampled_from([0.125, 0.25, 0.5]))),
        "spike_grad": draw(OURS) if ours else draw(THEIRS),
        "reset_mechanism": draw(RESETS),
        "learn_beta": draw(st.booleans()),
        "learn_threshold": draw(st.booleans()),
        "init_hidden": draw(st.booleans()),
    }
    if recurrent:
        options["learn_recurrent"] = draw(st.booleans())
        connection = draw(st.sampled_from(["all", "one factor", "factors"]))
        if connection == "all":
            options["linear_features"] = 5
        else:
            options["all_to_all"] = False
            options["V"] = 0.5 if connection == "one factor" else torch.linspace(-0.5, 0.5, 5)
    if kind is snn.Leaky:
        options["graded_spikes_factor"] = draw(st.sampled_from([1.0, 2.0, torch.tensor([1.0, 0.5, 2.0, 4.0, 1.0])]))
        options["learn_graded_spikes_factor"] = draw(st.booleans())
    elif kind is not snn.RLeaky:
        options["alpha"] = beta + 0.05 if kind is snn.Alpha else draw(TENTHS)
    if kind in (snn.Synaptic, snn.RSynaptic):
        options["learn_alpha"] = draw(st.booleans())
    if kind not in (snn.Alpha, snn.RSynaptic):
        options["reset_delay"] = draw(st.booleans())
    for name in ("learn_beta", "learn_threshold", "learn_graded_spikes_factor", "learn_alpha"):
        target = name.removeprefix("learn_")
        if options.get(name):
            options[target] = torch.as_tensor(options[target], dtype=torch.float64)
    return kind(**options), 1e-10 if ours else 1e-5


@pytest.mark.slow
@given(made=snntorch_layers(), output=st.sampled_from(["subtract", "none"]))
@settings(max_examples=50)
@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_a_network_of_snntorch_is_the_same(made: tuple[nn.Module, float], output: str):
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    each, tolerance = made
    last = snn.Leaky(beta=0.9, reset_mechanism=output, spike_grad=FastSigmoid())
    assert_same(
        Loop(nn.Linear(6, 5), each, nn.Linear(5, 3), last), torch.rand(12, 4, 6), tolerance=tolerance, fires=False
    )
    snn.SpikingNeuron.instances.clear()


@st.composite
def norse_layers(draw: Callable[[Any], Any]) -> nn.Module:
    numbers = {
        "v_th": torch.tensor(draw(st.sampled_from([0.0625, 0.25]))),
        "v_leak": torch.tensor(draw(st.sampled_from([0.0, 0.0625]))),  # norse starts from float32
        "v_reset": torch.tensor(draw(st.sampled_from([0.0, -0.25]))),
        "tau_mem_inv": torch.tensor(draw(st.sampled_from([100.0, 500.0, 1000.0]))),
        "method": draw(st.sampled_from(["super", "heaviside", "tanh", "circ", "heavi_erfc", "triangle"])),
    }
    if draw(st.booleans()):
        numbers["v_th"] = nn.Parameter(numbers["v_th"])
        numbers["tau_mem_inv"] = nn.Parameter(numbers["tau_mem_inv"])
    if draw(st.booleans()):
        reset = draw(st.sampled_from([reset_value, reset_subtract]))
        return norse.LIFBoxCell(LIFBoxParameters(reset_method=reset, **numbers), dt=draw(st.sampled_from([1e-3, 5e-4])))
    numbers["tau_syn_inv"] = torch.tensor(draw(st.sampled_from([200.0, 1000.0])))
    if draw(st.booleans()):
        return norse.LIFRecurrentCell(5, 5, norse.LIFParameters(**numbers), autapses=draw(st.booleans()))
    if draw(st.booleans()):
        numbers["tau_adapt_inv"] = torch.tensor(draw(st.sampled_from([100.0, 500.0])))
        numbers["beta"] = torch.tensor(draw(st.sampled_from([0.125, 0.5])))
        p = LSNNParameters(**numbers)
        return norse.LSNNRecurrentCell(5, 5, p, autapses=True) if draw(st.booleans()) else norse.LSNNCell(p)
    return norse.LIFCell(norse.LIFParameters(**numbers), dt=draw(st.sampled_from([1e-3, 5e-4])))


@pytest.mark.slow
@given(each=norse_layers(), output=st.sampled_from(["LI", "LILinear"]))
@settings(max_examples=30)
def test_a_network_of_norse_is_the_same(each: nn.Module, output: str):
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    last = [nn.Linear(5, 3), norse.LICell()] if output == "LI" else [norse.LILinearCell(5, 3)]
    net = Loop(nn.Linear(6, 5), each, *last)
    for name in ("v_th", "tau_mem_inv"):  # norse registers none of them
        value = getattr(each.p, name)
        if isinstance(value, nn.Parameter):
            net.register_parameter(name, value)
    assert_same(net, torch.rand(12, 4, 6), fires=False)


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("kind", ["LIF", "LIFRecurrent", "LSNN", "LSNNRecurrent", "LSNNRecurrent of constants"])
def test_norses_layers_with_time_run_at_once(x: Tensor, recorded: bool, kind: str):
    kind, _, constants = kind.partition(" of ")
    p: Any = norse.LIFParameters(v_th=torch.tensor(0.25))
    if "LSNN" in kind:
        learnt = {"v_th": 0.25, "v_reset": -0.25, "v_leak": 0.0625, "tau_mem_inv": 250.0, "tau_syn_inv": 200.0}
        learnt |= {"tau_adapt_inv": 100.0, "beta": 0.25}
        made = torch.tensor if constants else lambda value: nn.Parameter(torch.tensor(value))
        p = LSNNParameters(**{name: made(value) for name, value in learnt.items()})
    sizes = (5, 5) if "Recurrent" in kind else ()
    hidden = getattr(norse, kind)(*sizes, p, record_states=recorded)
    net = norse.SequentialState(norse.Lift(nn.Linear(6, 5)), hidden, norse.Lift(nn.Linear(5, 3)), norse.LI())
    for name, value in p._asdict().items():
        if isinstance(value, nn.Parameter):
            net.register_parameter(name, value)
    fast = assert_same(net, x)
    assert longest(fast) == len(x)
    hidden.record_states = False
    _, state = net(x[:5])
    torch.testing.assert_close(fast(x[5:], copy.copy(state))[0], net(x[5:], state)[0])


@st.composite
def jelly_layers(draw: Callable[[Any], Any]) -> nn.Module:
    spike = draw(
        st.sampled_from([jelly.ATan(), jelly.Sigmoid(), jelly.PiecewiseQuadratic(), jelly.SoftSign(), FastSigmoid()])
    )
    if isinstance(spike, Surrogate):
        spike = jelly.PiecewiseExp()
    options = {
        "v_threshold": draw(st.sampled_from([0.25, 0.5])),
        "v_reset": draw(st.sampled_from([None, 0.0, -0.25])),
        "surrogate_function": spike,
        "detach_reset": draw(st.booleans()),
    }
    kind = draw(st.sampled_from([neuron.LIFNode, neuron.ParametricLIFNode, neuron.IFNode]))
    if kind is neuron.IFNode:
        return kind(**options)
    tau = draw(st.sampled_from([1.5, 2.0, 5.0]))
    return kind(tau, decay_input=draw(st.booleans()), **options)


@given(each=jelly_layers(), mode=st.sampled_from(["s", "m"]))
@settings(max_examples=30)
def test_a_network_of_spikingjelly_is_the_same(each: nn.Module, mode: str):
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    layers = [layer.Linear(6, 5), each, layer.Linear(5, 3), neuron.LIFNode(surrogate_function=jelly.ATan())]
    net: nn.Module = nn.Sequential(*layers)
    functional.set_step_mode(net, mode)
    if mode == "s":
        net = Loop(*layers)
    assert_same(net, 2 * torch.rand(12, 4, 6), fires=False)


def test_a_sequence_of_voltages_is_stored_as_spikingjelly_does(x: Tensor):
    net: Any = nn.Sequential(layer.Linear(6, 5), neuron.IFNode(store_v_seq=True))
    functional.set_step_mode(net, "m")
    fast = assert_same(net, x)
    wanted = net[1].v_seq
    at_rest(net)
    fast(x)
    torch.testing.assert_close(net[1].v_seq, wanted)


def test_convolutions_and_the_like_run_once_over_all_steps_and_samples(float64: None):
    class Images(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(1, 4, 3)
            self.norm = nn.BatchNorm2d(4)
            self.lif1 = snn.Leaky(beta=0.8, threshold=0.5, spike_grad=FastSigmoid())
            self.conv2 = nn.Conv2d(4, 3, 3)
            self.pool = nn.AvgPool2d(2)
            self.lif2 = snn.Leaky(beta=0.8, threshold=0.25, spike_grad=FastSigmoid())
            self.drop = nn.Dropout(0.5)
            self.out = nn.Linear(12, 5)
            self.lif3 = snn.Leaky(beta=0.8, spike_grad=FastSigmoid())

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            mem1 = self.lif1.init_leaky()
            mem2 = self.lif2.init_leaky()
            mem3 = self.lif3.init_leaky()
            batch_size = x.shape[1]
            spikes = []
            rates = []
            for t in range(x.size(0)):
                spk1, mem1 = self.lif1(F.max_pool2d(self.norm(self.conv1(x[t])), 2), mem1)
                spk2, mem2 = self.lif2(self.pool(self.conv2(spk1)), mem2)
                rates.append(spk2.detach().mean() + spk1.mean(dim=(1, 2, 3)).sum())
                spk3, mem3 = self.lif3(self.out(self.drop(spk2.view(batch_size, -1))), mem3)
                spikes.append(F.relu(mem3 - 0.1) + spk3)
            return torch.stack(spikes, dim=1), torch.stack(rates)

    net: Any = Images().eval()
    x = torch.rand(6, 3, 1, 14, 14)
    fast = assert_same(net, x)
    assert longest(fast) == 6
    at_rest(net)
    made_by = names_of_nodes(fast(x)[0])
    assert made_by.count("ConvolutionBackward0") == 2
    assert made_by.count("NativeBatchNormBackward0") == 1
    net.train()
    at_rest(net)
    torch.manual_seed(3)
    wanted = net(x)
    at_rest(net)
    statistics = net.norm.running_mean.clone()
    torch.manual_seed(3)
    came = fast(x)
    assert not torch.equal(net.norm.running_mean, statistics)
    assert came[0].shape == wanted[0].shape


def test_batch_norm_in_training_has_the_statistics_of_each_step(x: Tensor):
    net: Any = Loop(
        nn.Linear(6, 5),
        nn.BatchNorm1d(5),
        snn.Leaky(beta=0.9, threshold=0.3, init_hidden=True, spike_grad=FastSigmoid()),
    )
    twin = copy.deepcopy(net)
    fast = accelerate(twin, x)
    at_rest(twin)
    torch.testing.assert_close(fast(x)[0], net(x)[0])
    torch.testing.assert_close(twin.layers[1].running_var, net.layers[1].running_var)
    assert twin.layers[1].num_batches_tracked == net.layers[1].num_batches_tracked == len(x)
    assert longest(fast) == len(x)


def test_an_input_that_is_the_same_in_every_step_is_projected_once(x: Tensor):
    class Counting(nn.Linear):
        pass

    net = Loop(
        Counting(6, 5),
        snn.Leaky(beta=0.9, spike_grad=FastSigmoid()),
        nn.Linear(5, 3),
        snn.Leaky(beta=0.9, spike_grad=FastSigmoid()),
        steps=20,
    )
    fast = assert_same(net, 3 * x[0])
    at_rest(net)
    made_by = names_of_nodes(fast(x[0])[0])
    assert made_by.count("AddmmBackward0") == 2  # one for each Linear


# ---- loops of every kind


class Recurrent(nn.Module):
    """A connection back to the layer itself, written by hand: no layer can run ahead of it."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(6, 5)
        self.lif1 = snn.Leaky(beta=0.9, threshold=0.3, spike_grad=FastSigmoid())
        self.back = nn.Linear(5, 5)
        self.out = nn.Linear(5, 3)
        self.lif2 = snn.Leaky(beta=0.9, threshold=0.3, spike_grad=FastSigmoid())

    def forward(self, x: Tensor) -> Tensor:
        mem1 = self.lif1.init_leaky()
        mem2 = self.lif2.init_leaky()
        spk1: Any = 0.0
        total: Any = 0
        for x_t in x:
            spk1, mem1 = self.lif1(self.into(x_t) + (self.back(spk1) if isinstance(spk1, Tensor) or spk1 else 0), mem1)
            spk2, mem2 = self.lif2(self.out(spk1), mem2)
            total = total + spk2 * mem2
        return total


def test_what_reads_its_own_spikes_runs_step_by_step_and_the_layer_above_at_once(x: Tensor):
    fast = assert_same(Recurrent(), x)
    assert longest(fast) == len(x)


class Unusual(nn.Module):
    """Detached states, a time without gradients, a loop that ends by a value, and steps that are left out."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(6, 5)
        self.lif = snn.Leaky(beta=0.9, threshold=0.3, spike_grad=FastSigmoid())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mem = self.lif.init_leaky()
        with torch.no_grad():
            for t in range(3):
                _, mem = self.lif(self.into(x[t]), mem)
        seen = []
        for t in range(3, len(x), 2):
            spk, mem = self.lif(self.into(x[t]), mem)
            if t == 7:
                mem = mem.detach()
            seen.append(spk.sum(0))
            if spk.sum() > 18:
                break
        return torch.stack(seen), mem * 2


def test_unusual_loops_are_the_same(x: Tensor):
    assert_same(Unusual(), x)


class Annealed(nn.Module):
    """A threshold that rises in the middle of the sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.lif = snn.Leaky(beta=0.9, threshold=0.3, spike_grad=FastSigmoid())

    def forward(self, x: Tensor) -> Tensor:
        mem = self.lif.reset_mem()
        spikes = []
        for t in range(len(x)):
            if t in (0, 6):
                self.lif.threshold = torch.tensor(0.9 if t else 0.3)  # type: ignore[assignment]
            spk, mem = self.lif(x[t], mem)
            spikes.append(spk)
        return torch.stack(spikes)


def test_a_setting_that_changes_in_the_loop_holds_from_then_on(x: Tensor):
    net = Annealed().double()  # in float32 a spike may fall otherwise on another processor
    x = x.double()
    fast = accelerate(net, x)
    spikes = fast(x)
    at_rest(net)
    torch.testing.assert_close(spikes, net(x))
    assert running_of(fast).runs_plainly is None
    assert spikes[:6].sum() > spikes[6:].sum() > 0


class Branches(nn.Module):
    """Two layers side by side, time in the last axis, and a shape that is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.left = snn.Leaky(beta=0.9, threshold=0.3, spike_grad=FastSigmoid())
        self.right = snn.Synaptic(alpha=0.5, beta=0.7, threshold=0.3, spike_grad=FastSigmoid())
        self.out = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> list[Tensor]:
        mem1 = self.left.reset_mem()
        syn, mem2 = self.right.reset_mem()
        found = []
        for t in range(x.shape[-1]):
            frame = x[..., t]
            spk1, mem1 = self.left(frame, mem1)
            spk2, syn, mem2 = self.right(frame, syn, mem2)
            both = torch.cat([spk1, spk2], dim=1)
            found.append(self.out(both) + both.sum(1, keepdim=True) / both.shape[1])
        assert isinstance(found[0], Tensor) and f"{found[0].sum().detach():.1f}"
        return found


def test_branches_and_lists_of_steps(x: Tensor):
    fast = assert_same(Branches(), x.permute(1, 2, 0))
    assert longest(fast) == len(x)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_evaluation_is_as_fast(x: Tensor, context: Callable[[], Any]):
    net = Loop(nn.Linear(6, 5), snn.Leaky(beta=0.9, threshold=0.3, spike_grad=FastSigmoid()))
    fast = accelerate(net, x)
    constant = accelerate(Loop(nn.Linear(6, 5), snn.Leaky(beta=0.9, spike_grad=FastSigmoid()), steps=7), x[0])
    with context():
        read = x + 0
        torch.testing.assert_close(fast(read), net(read))
        constant(read[0])
    assert longest(fast) == len(x) and running_of(fast).runs_plainly is None
    assert longest(constant) == 7 and running_of(constant).runs_plainly is None


def test_half_precision_takes_plain_steps():
    net = nn.Sequential(nn.Linear(6, 5), snn.Leaky(beta=0.9, init_hidden=True, spike_grad=FastSigmoid())).bfloat16()
    x = torch.rand(4, 6, dtype=torch.bfloat16)
    fast = accelerate(net, x)
    at_rest(net)
    wanted = net(x)
    at_rest(net)
    assert type(fast(x)) is Tensor
    at_rest(net)
    assert torch.equal(fast(x), wanted)


def test_states_stay_in_the_layers_between_calls(x: Tensor):
    net: Any = Loop(
        nn.Linear(6, 5), snn.Synaptic(alpha=0.9, beta=0.8, threshold=0.5, init_hidden=True, spike_grad=FastSigmoid())
    )
    fast = accelerate(net, x)
    at_rest(net)
    wanted = torch.cat([net(x)[0], net(x)[0]])
    state = net.layers[1].mem
    at_rest(net)
    came = torch.cat([fast(x)[0], fast(x)[0]])
    torch.testing.assert_close(came, wanted)
    torch.testing.assert_close(net.layers[1].mem, state)
    assert type(net.layers[1].mem) is Tensor
    net.layers[1].mem.detach_()  # as snnTorch does between batches
    snn.Synaptic.detach_hidden()


def test_a_state_of_another_batch_starts_from_rest_as_in_snntorch(x: Tensor):
    net = Loop(nn.Linear(6, 5), snn.Leaky(beta=0.9, init_hidden=True, spike_grad=FastSigmoid()))
    fast = accelerate(net, x)
    wanted = net(x)[0][:, :2]
    at_rest(net)
    fast(x)
    torch.testing.assert_close(fast(x[:, :2])[0], wanted)


# ---- a loop around the network


@pytest.mark.parametrize("constant", [True, False])
def test_a_network_that_takes_one_step_a_call_runs_when_a_value_is_asked_for(x: Tensor, constant: bool):
    net = nn.Sequential(
        nn.Linear(6, 5),
        snn.Leaky(beta=0.9, threshold=0.3, init_hidden=True, spike_grad=FastSigmoid()),
        nn.Linear(5, 3),
        snn.Leaky(beta=0.9, threshold=0.2, init_hidden=True, output=True, spike_grad=FastSigmoid()),
    )
    fast = accelerate(net, x[0])
    assert running_of(fast).loop_outside

    def loop(model: nn.Module) -> tuple[Tensor, Tensor]:
        utils.reset(net)
        spk_rec = []
        mem_rec = []
        for t in range(len(x)):
            spk, mem = model(x[0] if constant else x[t])
            spk_rec.append(spk)
            mem_rec.append(mem)
        return torch.stack(spk_rec), torch.stack(mem_rec)

    values, gradients = outcome(net, lambda: loop(net))
    assert values[0].sum() > 0
    for _ in range(2):
        others, other_gradients = outcome(net, lambda: loop(fast))
        torch.testing.assert_close(others, values)
        torch.testing.assert_close(other_gradients, gradients)
        assert all(type(t) is Tensor for t in others)
    made_by = names_of_nodes(loop(fast)[0])
    assert made_by.count("_ScanBackward") == made_by.count("AddmmBackward0") == 2  # one for each layer
    utils.reset(net)
    with torch.no_grad():
        first, voltage = fast(x[0])
        assert voltage.shape == (4, 3)
        assert isinstance(first, Tensor)
        assert float(first.sum()) == first.sum().item() == net_sum(net, x[0])


def net_sum(net: nn.Module, x: Tensor) -> float:
    at_rest(net)
    return net(x)[0].sum().item()


def test_a_frame_that_changes_after_its_step_is_what_it_was(x: Tensor):
    net = nn.Sequential(nn.Linear(6, 5), snn.Leaky(beta=0.9, init_hidden=True, spike_grad=FastSigmoid())).double()
    x = 3 * x.double()
    fast = accelerate(net, x[0])
    at_rest(net)
    wanted = torch.stack([net(frame) for frame in x])
    at_rest(net)
    spikes = []
    with torch.no_grad():
        for t in range(len(x)):
            spikes.append(fast(x[t]))
            x[t] = 0
    assert 0 < wanted.mean() < 1
    torch.testing.assert_close(torch.stack(spikes), wanted)


# ---- what is not run at once


class MyLeaky(snn.Leaky):
    pass


def plainly(kind: str) -> nn.Module:
    each: Any = (
        MyLeaky(beta=0.9) if kind == "subclass" else snn.Leaky(beta=0.9, threshold=0.3, inhibition=kind == "inhibition")
    )
    if kind == "hook":
        each.register_forward_hook(lambda module, args, out: (out[0] * 2, out[1]))
    elif kind == "method":
        each.fire = lambda mem: (mem > 0.2).float()  # type: ignore[method-assign]
    elif kind == "surrogate":
        each.spike_grad = lambda distance: torch.sigmoid(5 * distance)
    elif kind == "class":
        each = snn.Lapicque(beta=0.9)  # type: ignore[arg-type]
    return Loop(nn.Linear(6, 5), each, nn.Linear(5, 3), snn.Leaky(beta=0.9))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("subclass", r"layers.1 \(MyLeaky is a class of its own, which may step otherwise\)"),
        ("hook", r"layers.1 \(it has a hook"),
        ("method", r"layers.1 \(its method fire has been changed"),
        ("surrogate", r"layers.1 \(its surrogate .* has no known derivative"),
        ("inhibition", r"layers.1 \(inhibition lets its neurons depend on each other"),
        ("class", r"layers.1 \(there is no kernel for Lapicque of snntorch"),
    ],
)
@pytest.mark.filterwarnings("ignore:Inhibition is an unstable feature", "ignore:.*Lapicque.*")
def test_what_cannot_be_run_at_once_is_named_once_and_runs_as_ever(kind: str, reason: str):
    net = plainly(kind)
    x = torch.rand(12, 4, 6)
    with pytest.warns(NotAcceleratedWarning, match=reason):
        fast = accelerate(net, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        at_rest(net)
        wanted = outcome(net, lambda: net(x))
        at_rest(net)
        came = outcome(net, lambda: fast(x))
    torch.testing.assert_close(came, wanted)
    assert longest(fast) == len(x)  # the last layer runs at once


def test_a_hook_that_comes_later_sees_every_step_and_then_no_longer(x: Tensor):
    net = Loop(nn.Linear(6, 5), snn.Leaky(beta=0.9, init_hidden=True, spike_grad=FastSigmoid()), nn.Linear(5, 3))
    fast = accelerate(net, x)
    seen: list[Any] = []
    handles = [
        net.layers[1].register_forward_hook(lambda module, args, out: seen.append(out)),
        net.layers[2].register_forward_hook(lambda module, args, out: seen.append(args[0])),
    ]
    with pytest.warns(NotAcceleratedWarning, match="layers.1 .it has a hook.*layers.2 .it has a hook"):
        fast(x)
    assert len(seen) == 2 * len(x) and all(type(t) is Tensor for t in seen)
    for handle in handles:
        handle.remove()
    fast(x)
    assert len(seen) == 2 * len(x)


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(6, 5)
        self.lif = snn.Leaky(beta=0.9, spike_grad=FastSigmoid())

    def forward(self, x: Tensor) -> Tensor:
        mem = self.lif.init_leaky()
        spk = mem
        for t in range(len(x)):
            spk, mem = self.lif(self.into(x[t]), mem)
            spk.mul_(2.0)
        return spk


def test_a_step_that_is_multiplied_in_place_is_seen_changed_by_all_that_hold_it(x: Tensor):
    net = InPlace()
    plain = copy.deepcopy(net)
    fast = accelerate(net, x)
    assert running_of(fast).runs_plainly is None
    torch.testing.assert_close(fast(x), plain(x))


class SumOfEachStep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(6, 5)
        self.lif = snn.Leaky(beta=0.9, spike_grad=FastSigmoid())

    def forward(self, x: Tensor) -> Tensor:
        mem = self.lif.init_leaky()
        sums = []
        for t in range(len(x)):
            _, mem = self.lif(self.into(x[t]), mem)
            sums.append(mem.sum(dim=()))
        return torch.stack(sums)


class OneNumberEachStep(SumOfEachStep):
    """What it returns has been through functions of tensors without axes."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        mem = self.lif.init_leaky()
        sums = []
        for t in range(len(x)):
            _, mem = self.lif(self.into(x[t]), mem)
            sums.append(self.function(mem.sum()))
        return torch.stack(sums)


@pytest.mark.parametrize(
    "function",
    [
        lambda total: total.reshape(1), lambda total: total.view(1), lambda total: total.reshape(-1),
        lambda total: total.flatten(), lambda total: (total > 0).sum() * total, lambda total: (total > 0).mean(dtype=total.dtype),
        lambda total: total.mean(-1), lambda total: total.sum(dim=0, keepdim=True), lambda total: total.softmax(-1) * total,
    ],
)  # fmt: skip
def test_one_number_in_each_step_may_be_reshaped_and_summed(function: Callable[[Tensor], Tensor], x: Tensor):
    net = OneNumberEachStep(function)
    fast = accelerate(net, x)
    torch.testing.assert_close(fast(x), net(x))
    assert running_of(fast).runs_plainly is None


def test_a_sum_over_no_axes_is_that_over_all_axes_of_a_step(x: Tensor):
    net = SumOfEachStep()
    fast = accelerate(net, x)
    torch.testing.assert_close(fast(x), net(x))
    assert longest(fast) == len(x) and running_of(fast).runs_plainly is None


class InPlaceActivation(nn.Module):
    """Reads the current before and after an activation has changed it in place."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.into = nn.Linear(6, 5)
        self.activation = activation
        self.lif = snn.Leaky(beta=0.9, spike_grad=FastSigmoid())

    def forward(self, x: Tensor) -> Tensor:
        mem = self.lif.init_leaky()
        spk = mem
        for t in range(len(x)):
            current = self.into(x[t])
            before = current * 3
            self.activation(current)
            spk, mem = self.lif(before + current, mem)
        return spk


@pytest.mark.parametrize("activation", [nn.ReLU(True), nn.LeakyReLU(0.1, True), nn.ELU(1.0, True), nn.SiLU(True)])
def test_an_activation_in_place_changes_what_others_hold(activation: nn.Module, x: Tensor):
    net = InPlaceActivation(activation)
    fast = accelerate(net, x)
    torch.testing.assert_close(fast(x), net(x))
    assert longest(fast) == len(x)


def test_errors_of_the_users_network_are_its_own(x: Tensor):
    net = Loop(nn.Linear(6, 5), snn.Leaky(beta=0.9, spike_grad=FastSigmoid()))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        accelerate(net, torch.rand(12, 4, 7))
    fast = accelerate(net, x)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        fast(torch.rand(12, 4, 7))
    assert running_of(fast).runs_plainly is None
    assert fast(x)[0].shape == (12, 4, 5)


def test_compilers_and_transforms_take_plain_steps(x: Tensor):
    net = Loop(nn.Linear(6, 5), norse.LIFCell(norse.LIFParameters(v_th=torch.tensor(0.25))))
    fast = accelerate(net, x)
    parameters = dict(net.named_parameters())

    def loss(parameters: Mapping[str, Tensor]) -> Tensor:
        return torch.func.functional_call(fast, dict(parameters), (x,))[0].sum()

    gradients = torch.func.grad(loss)(parameters)
    wanted = torch.autograd.grad(net(x)[0].sum(), list(net.parameters()))
    torch.testing.assert_close(list(gradients.values()), list(wanted))


# ---- the same module


def test_it_is_the_users_module_in_all_but_speed(x: Tensor):
    net: Any = Loop(nn.Linear(6, 5), snn.Leaky(beta=0.9, spike_grad=FastSigmoid()))
    fast = accelerate(net, x)
    assert isinstance(fast, Loop) and accelerate(fast, x) is fast
    assert list(fast.state_dict()) == list(net.state_dict())
    assert all(a is b for a, b in zip(fast.parameters(), net.parameters(), strict=True))
    assert repr(fast).replace("Accelerated", "") == repr(net)
    fast.eval()
    assert not net.training and not net.layers[1].training
    net.train()
    assert fast.training
    net.steps = 3
    assert fast.steps == 3
    net.steps = None
    seen: list[Any] = []
    net.register_forward_hook(lambda module, args, out: seen.append(out))
    fast(x)
    assert len(seen) == 1 and type(seen[0][0]) is Tensor
    with torch.no_grad():
        net.layers[0].weight.mul_(3)
    torch.testing.assert_close(fast(x)[0], net(x)[0])


@pytest.mark.parametrize("again", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies_are_accelerated_too_and_share_nothing(x: Tensor, again: Callable[[Any], Any]):
    net: Any = Loop(nn.Linear(6, 5), snn.Leaky(beta=0.9, spike_grad=FastSigmoid()))
    if again is not copy.deepcopy:
        net = Loop(nn.Linear(6, 5), neuron.LIFNode())  # snnTorch's surrogates are closures
    fast = accelerate(net, x)
    other = again(fast)
    assert type(other).__name__ == "AcceleratedLoop"
    torch.testing.assert_close(other(x)[0], net(x)[0])
    with torch.no_grad():
        other.layers[0].weight.zero_()
    assert net.layers[0].weight.abs().sum() > 0


def test_a_signature_stays(x: Tensor):
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lif = snn.Leaky(beta=0.9, spike_grad=FastSigmoid())

        def forward(self, x: Tensor, *, gain: float = 1.0) -> dict[str, Tensor]:
            """Spikes by name."""
            mem = self.lif.init_leaky()
            spikes = []
            for frame in x.unbind(0):
                spk, mem = self.lif(gain * frame, mem)
                spikes.append(spk)
            return {"spikes": torch.stack(spikes), "mem": mem}

    net = Named()
    fast = accelerate(net, x)
    assert inspect.signature(fast.forward) == inspect.signature(net.forward)
    torch.testing.assert_close(fast(x, gain=2.0), net(x, gain=2.0))


def test_radii_diagnosis_and_initialisation_take_it_as_they_take_the_users_module(x: Tensor):
    net: Any = Loop(nn.Linear(6, 5), snn.RLeaky(beta=0.9, linear_features=5, spike_grad=FastSigmoid()), nn.Linear(5, 3))
    fast = accelerate(net, x)
    profile = radius_profile(fast, x, steps=4)
    assert str(profile) == str(radius_profile(net, x, steps=4))
    before = net.layers[1].recurrent.weight.clone()
    initialize(fast, x)
    assert not torch.equal(net.layers[1].recurrent.weight, before)
    at_rest(net)
    wanted = net(x)
    at_rest(net)
    torch.testing.assert_close(fast(x), wanted)


def test_the_comparison_leaves_no_trace(x: Tensor):
    net: Any = Loop(nn.Linear(6, 5), snn.Leaky(beta=0.9, init_hidden=True, spike_grad=FastSigmoid()), nn.Dropout(0.5))
    net(x)
    before = net.layers[1].mem.clone()
    random = torch.random.get_rng_state()
    accelerate(net, x)
    assert torch.equal(net.layers[1].mem, before)
    assert torch.equal(torch.random.get_rng_state(), random)
    assert net.training and net.layers[0].weight.grad is None


def test_a_second_derivative_is_refused(x: Tensor):
    net = Loop(nn.Linear(6, 5), snn.Leaky(beta=0.9, threshold=0.2, spike_grad=FastSigmoid()))
    fast = accelerate(net, x)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(fast(x)[0].sum(), list(net.parameters()), create_graph=True)


def test_what_cannot_be_accelerated_at_all_is_an_error(x: Tensor):
    with pytest.raises(TypeError, match="net must be a module, got int"):
        accelerate(3, x)  # type: ignore[arg-type]
    with pytest.raises(
        TypeError, match="x must be a tensor, an example of what net takes, or a tuple of its arguments, got list"
    ):
        accelerate(nn.Linear(3, 2), [1.0])  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"net has no layer of neurons that the kernels know: layers.1 .there is no kernel"
    ):
        accelerate(Loop(nn.Linear(6, 5), norse.LIFRefracCell()), x)


def test_a_state_that_is_not_computed_yet_can_be_pickled(x: Tensor):
    net = nn.Sequential(nn.Linear(6, 5), neuron.LIFNode(), nn.Linear(5, 3), neuron.LIFNode())
    fast = accelerate(net, x[0])
    with torch.no_grad():
        for frame in x:
            fast(3 * frame)
    again = pickle.loads(pickle.dumps(net[1].v))
    assert type(again) is Tensor
    assert torch.equal(again, net[1].v + 0)


# ---- what an outside tester found


class Between(nn.Module):
    """Two layers of snnTorch in a loop; `between` works on the spikes of the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.below, self.first = nn.Linear(8, 10), snn.Leaky(beta=0.9)
        self.above, self.second = nn.Linear(10, 4), snn.Leaky(beta=0.8)
        self.register_buffer("trace", torch.zeros(10))

    def between(self, z: Tensor) -> Tensor:
        return z

    def forward(self, x: Tensor) -> Tensor:
        low, high, sent = self.first.reset_mem(), self.second.reset_mem(), []
        for frame in x:
            z, low = self.first(self.below(frame), low)
            _, high = self.second(self.above(self.between(z)), high)
            sent.append(high)
        return torch.stack(sent)


class OwnSurrogate(Between):
    def between(self, z: Tensor) -> Tensor:
        return surrogate.atan()(z - 0.5)  # an autograd function, whose C code cannot read a lazy tensor


class Noisy(Between):
    def between(self, z: Tensor) -> Tensor:
        return z + self.trace.normal_() if self.training else z  # one buffer for all steps


class Traced(Between):
    def between(self, z: Tensor) -> Tensor:
        self.trace.mul_(0.9).add_(z.detach().mean(0))
        return z


class Plastic(Between):
    def between(self, z: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.above.weight.add_(0.02 * z.mean(0))
        return z


class Centred(Between):
    def between(self, z: Tensor) -> Tensor:
        return z - z.mean(0)  # takes away what the bias above adds: its gradient is rounding


def built(kind: type[nn.Module]) -> tuple[Any, Any, Tensor]:
    torch.manual_seed(0)
    net = kind()
    return net, copy.deepcopy(net), 2 * torch.rand(12, 3, 8)


@pytest.mark.parametrize("kind", [OwnSurrogate, Centred])
def test_autograd_functions_and_gradients_that_cancel_are_no_obstacle(kind):
    net, plain, x = built(kind)
    fast = accelerate(net, x)
    assert running_of(fast).runs_plainly is None
    torch.testing.assert_close(fast(x), plain(x))
    step_net, _, _ = built(lambda: step_by_step(nn.Identity()))
    step = accelerate(step_net, x[0])
    step(x[0])
    step_net(x[1])  # the user's own module goes on from the states, which are not computed yet


def test_a_buffer_that_changes_in_every_step_has_its_value_of_each_step():
    net, plain, x = built(Noisy)
    with pytest.warns(NotAcceleratedWarning, match="has been changed"):
        fast = accelerate(net, x)
    torch.manual_seed(1)
    wanted = plain(x)
    torch.manual_seed(1)
    torch.testing.assert_close(fast(x), wanted)


def test_a_forward_that_changes_weights_is_refused_and_the_comparison_changes_nothing():
    net, _, x = built(Plastic)
    fast = accelerate(net, x)
    with pytest.raises(RuntimeError, match="changes parameters in place"):
        fast(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotAcceleratedWarning)
        net, _, x = built(Traced)
        accelerate(net, x)
    assert not net.trace.any()


def step_by_step(*between: nn.Module) -> nn.Sequential:
    first = snn.Leaky(beta=0.9, init_hidden=True)
    return nn.Sequential(
        nn.Linear(8, 10), *between, first, nn.Linear(10, 4), snn.Leaky(beta=0.8, init_hidden=True, output=True)
    )


def test_a_weight_that_changes_before_a_value_is_read_is_an_error():
    net, _, x = built(lambda: step_by_step(nn.Identity()))
    fast = accelerate(net, x[0])
    utils.reset(net)
    voltages = [fast(frame)[1] for frame in x]
    with torch.no_grad():
        net[0].weight.mul_(2)
    with pytest.raises(RuntimeError, match="ask for the values first"):
        torch.stack(voltages)


@pytest.mark.parametrize("cell", [norse.LIFCell, norse.LIFBoxCell, norse.LSNNCell])
def test_a_parameter_of_norse_that_changes_before_a_value_is_read_is_an_error(cell: Any):
    first = cell()
    first.p = first.p._replace(v_leak=torch.zeros(()))  # its own: norse's layers share their default tensors
    fast = accelerate(norse.SequentialState(nn.Linear(6, 8), first), torch.rand(3, 6))
    state = None
    spikes = []
    for frame in torch.rand(12, 3, 6):
        z, state = fast(frame, state)
        spikes.append(z)
    first.p.v_leak.add_(1.0)
    with pytest.raises(RuntimeError, match="ask for the values first"):
        torch.stack(spikes)


def test_a_batch_norm_has_collected_its_statistics_when_the_mode_changes():
    net, plain, x = built(lambda: step_by_step(nn.BatchNorm1d(10)))
    fast = accelerate(net, x[0])
    for model in (plain, fast):
        model[2].reset_mem()
        model[4].reset_mem()
        with torch.no_grad():
            for frame in x:
                model(frame)  # no value is asked for
        model.eval()
    torch.testing.assert_close(net[1].running_mean, plain[1].running_mean)
    assert net[1].running_mean.any()


@pytest.mark.parametrize("node", [neuron.LIFNode, neuron.IFNode])
def test_batches_of_other_sizes_follow_each_other_before_a_value_is_read(node):
    net, plain, _ = built(lambda: nn.Sequential(nn.Linear(8, 10), node()).double())
    fast = accelerate(net, torch.rand(3, 8, dtype=torch.float64))
    batches = [20 * torch.rand(size, 8, dtype=torch.float64) for size in (3, 2, 3)]
    sums = []
    for model in (fast, plain):
        with torch.no_grad():
            each = []
            for x in batches:
                functional.reset_net(model)
                each.append(sum(model(x) for _ in range(5)))
            sums.append(torch.cat(each))
    torch.testing.assert_close(*sums)  # whole numbers, of voltages in float64
    assert sums[0].any()


# ---- lazy tensors outside of forward


def stepped(net: nn.Module, x: Tensor) -> list[Any]:
    utils.reset(net)
    return [net(frame)[1] for frame in x]


def changed(v: Tensor) -> Tensor:
    y = v * 1
    y[0] = 0
    y.add_(1)
    return y


def written(v: Tensor) -> Tensor:
    out = torch.empty(2, 3, 4)
    torch.add(v.detach(), 1, out=out[0])
    torch.stack([v.detach()], out=out[1:])
    return torch.full_like(out, v.detach().sum()) + out


def read_in_inference_mode(v: Tensor) -> Tensor:
    with torch.inference_mode():
        assert v.sum() != 0
    return v * 2


def read_under_autocast(v: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (v @ torch.ones(4, 2)).float()


USES: dict[str, Any] = {
    "torch.tensor": lambda v: torch.tensor(v),
    "torch.asarray": lambda v: torch.asarray(v, requires_grad=True) * 1,
    "legacy constructor": lambda v: torch.Tensor(v.detach()),
    "numbers": lambda v: torch.tensor([v.detach().sum(), v.detach().mean()]),
    "numpy": lambda v: torch.from_numpy(np.asarray(v.detach()) * 2),
    "operators": lambda v: 3 % (v.detach() + 9) + ((v > 0) ^ (v > 1)).float() + (+v),
    "pickle": lambda v: pickle.loads(pickle.dumps(v.detach())),
    "changed in place": changed,
    "written": written,
    "inference mode": read_in_inference_mode,
    "autocast": read_under_autocast,
    "checkpoint": lambda v: checkpoint(torch.tanh, v, use_reentrant=False),
    "compiled": lambda v: torch.compile(torch.tanh, backend="eager")(v),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("use", USES)
def test_a_lazy_tensor_is_a_tensor_to_everything_that_reads_it(use):
    net, plain, x = built(lambda: step_by_step(nn.Identity()))
    fast = accelerate(net, x[0])
    wanted = USES[use](stepped(plain, x)[-1])
    voltage = stepped(fast, x)[-1]
    assert isinstance(voltage, Tensor)
    assert type(voltage) is not Tensor
    came = USES[use](voltage)
    torch.testing.assert_close(came, wanted)
    if wanted.requires_grad and wanted.grad_fn is not None and use != "torch.asarray":
        wanted.sum().backward()
        came.sum().backward()
        torch.testing.assert_close(net[0].weight.grad, plain[0].weight.grad)


@pytest.mark.parametrize("new", [torch.zeros_like, Tensor.numel, lambda v: v.new_zeros(2), len, Tensor.dim])
def test_what_reads_no_value_computes_none(new):
    net, _, x = built(lambda: step_by_step(nn.Identity()))
    fast = accelerate(net, x[0])
    voltage = stepped(fast, x)[-1]
    wanted = new(torch.zeros(3, 4))
    came = new(voltage)
    assert not running_of(fast).recording.flushed
    if isinstance(wanted, Tensor):
        assert (came.shape, came.dtype, came.device) == (wanted.shape, wanted.dtype, wanted.device)
    else:
        assert came == wanted


@torch.jit.script
def scripted(v: Tensor) -> Tensor:
    return torch.sigmoid(v) * v


class Scripted(Between):
    def between(self, z: Tensor) -> Tensor:
        return scripted(z)


class PartlyAutocast(Between):
    def between(self, z: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.linear(z, torch.ones(10, 10)).float()


class Checkpointed(Between):
    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


class WrittenTo(Between):
    def between(self, z: Tensor) -> Tensor:
        z[0] = 0
        return z


@pytest.mark.parametrize("kind", [Scripted, PartlyAutocast, Checkpointed, WrittenTo])
def test_what_cannot_be_put_off_leads_to_plain_steps_and_a_warning_at_the_users_line(kind):
    net, plain, x = built(kind)
    with pytest.warns(NotAcceleratedWarning) as warned:
        fast = accelerate(net, x)
    assert {Path(w.filename).name for w in warned} == {Path(__file__).name}
    assert all(len(str(w.message).splitlines()) == 1 for w in warned)
    came, wanted = fast(x), plain(x)
    torch.testing.assert_close(came, wanted)
    came.sum().backward()
    wanted.sum().backward()
    for parameter, other in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad)


def test_c_code_refuses_a_lazy_tensor_whose_gradient_it_would_lose():
    net, _, x = built(lambda: step_by_step(nn.Identity()))
    voltage = stepped(accelerate(net, x[0]), x)[-1]
    with pytest.raises(RuntimeError):  # of TorchScript, which leaves our words out
        scripted(voltage)
    with pytest.raises(RuntimeError, match=r"give it what torch\.stack returns"):
        torch.vmap(torch.square)(voltage)
    with pytest.raises(RuntimeError, match="data pointer"):
        torch.utils.dlpack.to_dlpack(voltage)


class NormedTwice(Between):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(10)

    def between(self, z: Tensor) -> Tensor:
        return self.norm(2 * self.norm(self.uneven(z)) - 3)

    def uneven(self, z: Tensor) -> Tensor:
        return z.to(self.norm.weight.dtype) + torch.arange(10.0, dtype=self.norm.weight.dtype)


class NormedByAverage(NormedTwice):
    def __init__(self) -> None:
        super().__init__()
        self.norm.momentum = None

    def between(self, z: Tensor) -> Tensor:
        return self.norm(self.uneven(z))


@pytest.mark.parametrize("kind", [NormedTwice, NormedByAverage])
def test_a_batch_norm_collects_in_the_order_of_the_loop(kind):
    net, plain, x = built(kind)
    net, plain, x = net.double(), plain.double(), x.double()
    fast = accelerate(net, x)
    for model in (fast, plain):
        model.train()
    torch.testing.assert_close(fast(x), plain(x))
    torch.testing.assert_close(dict(net.named_buffers()), dict(plain.named_buffers()))


def test_one_tensor_may_be_filled_anew_for_each_step():
    net, plain, x = built(lambda: step_by_step(nn.Identity()))
    fast = accelerate(net, x[0])
    came = []
    for model in (fast, plain):
        utils.reset(model)
        frame, voltages = torch.empty(3, 8), []
        for each in x:
            frame.copy_(each)
            voltages.append(model(frame)[1])
        came.append(torch.stack(voltages))
    torch.testing.assert_close(*came)


def test_after_an_error_a_reset_starts_anew():
    net, plain, x = built(lambda: step_by_step(nn.Identity()))
    fast = accelerate(net, x[0])
    voltages = stepped(fast, x)
    with torch.no_grad():
        net[0].weight.add_(0)
    with pytest.raises(RuntimeError, match="ask for the values first"):
        torch.stack(voltages)
    torch.testing.assert_close(torch.stack(stepped(fast, x)), torch.stack(stepped(plain, x)))


def test_an_example_of_one_step_says_nothing_of_the_loop():
    net, plain, x = built(Between)
    fast = accelerate(net, x[:1])
    came = fast(x)
    assert type(came) is Tensor
    torch.testing.assert_close(came, plain(x))
    fast(x)
    assert longest(fast) == len(x)


def test_threads_wait_for_each_other_and_a_checkpoint_may_lie_around_a_network():
    net, plain, x = built(Between)
    fast = accelerate(net, x)
    wanted = plain(x)
    with ThreadPoolExecutor(4) as pool:
        for came in pool.map(lambda _: fast(x), range(8)):
            torch.testing.assert_close(came, wanted)
    wanted.sum().backward()
    checkpoint(fast, x, use_reentrant=False).sum().backward()
    torch.testing.assert_close(net.below.weight.grad, plain.below.weight.grad)


def test_several_gradients_at_once_are_refused_by_name():
    net, _, x = built(Between)
    fast = accelerate(net, x)
    with pytest.raises(RuntimeError, match="vectorize"):
        torch.autograd.functional.jacobian(lambda v: fast(v).sum(0).flatten(), x, vectorize=True)


def test_an_infinite_value_does_not_hide_others_that_differ():
    infinite = Outcome([torch.tensor([torch.inf, 1.0])], {})
    assert difference(infinite, infinite) is None
    assert "50%" in str(difference(infinite, Outcome([torch.tensor([torch.inf, 2.0])], {})))


# ---- what a second outside tester found


def both_ways(use: Callable[[nn.Module, Tensor], Any]) -> None:
    """Compare what `use` returns for an accelerated network with a loop outside, and the gradients, with plain ones."""
    net, plain, x = built(lambda: step_by_step(nn.Identity()))
    fast = accelerate(net, x[0])
    came = []
    for model in (plain, fast):
        utils.reset(model)
        torch.manual_seed(1)
        came.append(use(model, x))
    torch.testing.assert_close(came[1], came[0])
    for parameter, other in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad)


def read_without_gradients_first(model: nn.Module, x: Tensor) -> Any:
    voltages = [model(frame)[1] for frame in x]
    with torch.no_grad():
        mean = torch.stack([v.mean() for v in voltages])
        again = torch.stack(voltages)
    assert not again.requires_grad
    sum(v.square().sum() for v in voltages).backward()
    return mean, again


def two_stacks(model: nn.Module, x: Tensor) -> Any:
    spikes = [model(frame)[0] for frame in x]
    first = torch.stack(spikes)
    with torch.no_grad():
        second = torch.stack(spikes)
        second[:5] = 0
    third = torch.stack(spikes, axis=1)
    third[:, :3] = 0
    (first.sum() + third.sum()).backward()
    return first, second, third


def steps_changed_after_the_loop(model: nn.Module, x: Tensor) -> Any:
    with torch.no_grad():
        voltages = [model(frame)[1] for frame in x]
        for v in voltages[2:]:
            v.clamp_(min=0)
        return torch.stack(voltages), voltages[3]


def written_into(model: nn.Module, x: Tensor) -> Any:
    voltages = [model(frame)[1].detach() for frame in x]
    out = torch.zeros(len(x), 3, 4)
    torch.stack(voltages, out=out)
    joined = torch.zeros(3, 4 * len(x))
    torch.cat(voltages, 1, out=joined)
    return out, joined


def accumulated(model: nn.Module, x: Tensor) -> Any:
    total: Any = 0.0
    held = []
    for frame in x:
        total += model(frame)[1]
        held.append(total)
    total /= len(x)
    total.sum().backward()
    return total, held[0], held[-1]


def accumulated_and_read_on_the_way(model: nn.Module, x: Tensor) -> Any:
    total: Any = 0.0
    read = []
    for t, frame in enumerate(x):
        voltage = model(frame)[1]
        total += voltage
        if t % 5 == 4:
            read.append(total.sum().item())
            voltage = total - voltage * total
    mixed = voltage + total
    (total.square().sum() + mixed.sum()).backward()
    return torch.tensor(read), total, mixed


def accumulated_in_one_tensor(model: nn.Module, x: Tensor) -> Any:
    total = model(x[0])[1] * 1
    held = total
    for frame in x[1:]:
        total.add_(model(frame)[1])
    total.sum().backward()
    return total, held


def detached_in_place(model: nn.Module, x: Tensor) -> Any:
    held, voltages = [], []
    for t, frame in enumerate(x):
        voltage = model(frame)[1]
        held.append(voltage + 0)
        voltages.append(voltage)
        if t in (3, 7):
            model[2].mem.detach_()
            model[4].mem.detach_()
        if t == 9:
            model[4].mem.mul_(0.5)
            with torch.no_grad():
                model[2].mem[0] = 0.2
    out = torch.stack(held)
    out.square().sum().backward()
    return out, voltages[0], voltages[-1]


def frozen_before_the_stack(model: nn.Module, x: Tensor) -> Any:
    voltages = [model(frame)[1] for frame in x]
    torch.stack(voltages).sum().backward()
    return voltages[0]


def in_inference_mode(model: nn.Module, x: Tensor) -> Any:
    with torch.inference_mode():
        base = torch.empty(3, 8)
        voltages = []
        for frame in x:
            base.copy_(frame)
            voltages.append(model(base)[1])
        return torch.stack(voltages).clone()


@pytest.mark.parametrize(
    "use",
    [
        read_without_gradients_first, two_stacks, steps_changed_after_the_loop, written_into, accumulated,
        accumulated_and_read_on_the_way, detached_in_place, accumulated_in_one_tensor, frozen_before_the_stack, in_inference_mode,
    ],
)  # fmt: skip
def test_steps_of_a_loop_outside_are_what_plain_ones_are(use):
    both_ways(use)


def test_weights_that_are_frozen_before_the_steps_are_computed_are_an_error():
    net, _, x = built(lambda: step_by_step(nn.Identity()))
    fast = accelerate(net, x[0])
    voltages = stepped(fast, x)
    net[0].weight.requires_grad_(False)
    with pytest.raises(RuntimeError, match="has been changed before"):
        torch.stack(voltages)


class OneCurrentForAll(Between):
    """Its first layer reads a tensor that the loop fills anew for each step."""

    def forward(self, x: Tensor) -> Tensor:
        low, high, sent = self.first.reset_mem(), self.second.reset_mem(), []
        current = torch.zeros(3, 10)
        for t in range(len(x)):
            current.zero_()
            current[:, t % 10] = 1.5
            z, low = self.first(current, low)
            _, high = self.second(self.above(z), high)
            sent.append(high)
        return torch.stack(sent)


class Shifted(Between):
    """It reads a window of the last inputs, which it shifts in place."""

    def forward(self, x: Tensor) -> Tensor:
        low, high, sent = self.first.reset_mem(), self.second.reset_mem(), []
        window = x[:2] * 1
        for frame in x:
            with torch.no_grad():
                window[0] = window[1].clone()
                window[1] = frame
            z, low = self.first(self.below(window[0] + window[1]), low)
            _, high = self.second(self.above(z), high)
            sent.append(high)
        return torch.stack(sent)


class TwoCopies(Between):
    def forward(self, x: Tensor) -> Tensor:
        still = x[0] * 1
        first, second = still * 2, still * 2
        first[:, 0] = 0
        low, sent = self.first.reset_mem(), []
        for _ in range(len(x)):
            z, low = self.first(self.below(first) - self.below(second), low)
            sent.append(self.above(z))
        return torch.stack(sent)


class CurrentSilenced(Between):
    """Changes the current that all steps share without a gradient: the weights keep theirs."""

    def forward(self, x: Tensor) -> Tensor:
        current = self.below(x.mean(0))
        with torch.no_grad():
            current[:, 0] = 2.0
        low, sent = self.first.reset_mem(), []
        for _ in range(len(x)):
            z, low = self.first(current, low)
            sent.append(self.above(z))
        return torch.stack(sent)


class Masked(Between):
    """New masks of the weights in every step, handed on by keyword."""

    def forward(self, x: Tensor) -> Tensor:
        low, sent = self.first.reset_mem(), []
        for _ in range(len(x)):
            mask = (torch.rand_like(self.below.weight) < 0.5).float()
            current = F.linear(x[0], weight=self.below.weight * mask, bias=self.below.bias)
            z, low = self.first(current, low)
            sent.append(self.above(z))
        return torch.stack(sent)


class ChangedInPlace(Between):
    def between(self, z: Tensor) -> Tensor:
        y = self.trace + z
        doubled = y * 2
        return F.relu(y - 0.5, inplace=True) + F.relu(y, inplace=True) + doubled


class LastStep(Between):
    def forward(self, x: Tensor) -> Tensor:
        low = self.first.reset_mem()
        for frame in x:
            z, low = self.first(self.below(frame), low)
        return self.above(z)


@pytest.mark.filterwarnings("ignore::neurolsc.NotAcceleratedWarning")
@pytest.mark.parametrize(
    "kind", [OneCurrentForAll, Shifted, TwoCopies, CurrentSilenced, Masked, ChangedInPlace, LastStep]
)
@pytest.mark.parametrize("gradients", [True, False])
def test_tensors_that_forward_reuses_have_their_value_of_each_step(kind, gradients):
    net, plain, x = built(kind)
    fast = accelerate(net, x)
    with torch.set_grad_enabled(gradients):
        torch.manual_seed(1)
        wanted = plain(x)
        torch.manual_seed(1)
        came = fast(x)
        torch.testing.assert_close(came, wanted)
    if kind is CurrentSilenced and gradients:
        assert running_of(fast).runs_plainly is None
        came.sum().backward()
        wanted.sum().backward()
        torch.testing.assert_close(net.below.weight.grad, plain.below.weight.grad)


class ThenInPlace(Between):
    def __init__(self) -> None:
        super().__init__()
        self.activation: nn.Module = nn.ReLU(inplace=True)
        self.above = nn.Sequential(self.above, nn.BatchNorm1d(4))

    def forward(self, x: Tensor) -> Tensor:
        low, high, sent = self.first.reset_mem(), self.second.reset_mem(), []
        for frame in x:
            z, low = self.first(self.activation(self.below(frame)), low)
            _, high = self.second(self.activation(self.above(z)), high)
            sent.append(high)
        return torch.stack(sent)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.ELU, nn.Hardtanh, nn.LeakyReLU])
def test_activations_in_place_run_at_once(activation):
    net, plain, x = built(ThenInPlace)
    for model in (net, plain):
        model.activation = activation(inplace=True)
        model.eval()
    fast = accelerate(net, x)
    outputs = [model(x) for model in (fast, plain)]
    torch.testing.assert_close(*outputs)
    assert longest(fast) == len(x)
    for output in outputs:
        output.square().sum().backward()
    torch.testing.assert_close(net.below.weight.grad, plain.below.weight.grad)


def test_a_result_of_one_step_does_not_keep_the_others():
    net, _, x = built(LastStep)
    out = accelerate(net, x)(x)
    assert out.untyped_storage().nbytes() == out.nbytes


class Remembering(Between):
    """It keeps a state of its own, a log and a batch norm, and asks for what cannot be put off in training alone."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(10)
        self.own: Any = None
        self.log: list[float] = []
        self.by_name: dict[str, int] = {}

    def between(self, z: Tensor) -> Tensor:
        own = self.norm(z + torch.rand(10))
        self.own = own if self.own is None else 0.5 * self.own + own
        self.log.append(random.random() * np.random.rand() if not self.training else 1.0)
        self.by_name["calls"] = self.by_name.get("calls", 0) + 1
        if self.training and len(self.log) % 24 == 0:  # in the second call
            z[0] = 0
        return z + self.own


def test_forward_that_runs_again_begins_where_it_began():
    net, plain, x = built(Remembering)
    drawn = random.getstate()
    fast = accelerate(net, x)
    assert net.log == []
    assert net.by_name == {}
    assert net.own is None
    assert random.getstate() == drawn
    for model in (fast, plain):
        model.train()
    torch.manual_seed(3)
    fast(x)
    with pytest.warns(NotAcceleratedWarning, match="changed in place by __setitem__"):
        came = fast(x)
    torch.manual_seed(3)
    plain(x)
    torch.testing.assert_close(came, plain(x))
    assert net.log == plain.log
    assert net.by_name == plain.by_name
    torch.testing.assert_close(net.own, plain.own)
    torch.testing.assert_close(dict(net.named_buffers()), dict(plain.named_buffers()))


def test_a_loop_outside_that_asks_in_every_step_runs_plainly_after_some_time():
    net, plain, x = built(lambda: step_by_step(nn.Identity()))
    fast = accelerate(net, x[0])
    with pytest.warns(NotAcceleratedWarning, match="asked for every few steps"):
        for _ in range(10):
            for frame in x:
                torch.testing.assert_close(fast(frame)[1].sum().item(), plain(frame)[1].sum().item())
    assert type(fast(x[0])[1]) is Tensor


def test_a_loop_outside_that_asks_in_every_third_step_runs_plainly_after_some_time():
    net, plain, x = built(lambda: step_by_step(nn.Identity()))
    fast = accelerate(net, x[0])
    with pytest.warns(NotAcceleratedWarning, match="asked for every few steps"):
        for step in range(160):
            frame = x[step % len(x)]
            wanted = plain(frame)[1]
            came = fast(frame)[1]
            if step % 3 == 2:
                torch.testing.assert_close(came.sum().item(), wanted.sum().item())
    assert type(fast(x[0])[1]) is Tensor


@pytest.mark.parametrize("between", [nn.Identity, lambda: nn.BatchNorm1d(10)])
def test_steps_that_nobody_asks_for_are_not_computed_with_those_of_the_next_sequence(between: Any):
    net, plain, x = built(lambda: step_by_step(between()))
    fast = accelerate(net, x[0])
    for sequence in range(3):
        for model in (plain, fast):
            model[2].reset_mem()
            model[4].reset_mem()
            loss: Any = 0.0
            for step, frame in enumerate(x[:8] * (1 + sequence)):  # steps 6 and 7 are not in the loss
                _, mem = model(frame)
                if step % 3 == 2:
                    loss = loss + nn.functional.cross_entropy(mem, torch.zeros(len(mem), dtype=torch.long))
            model.zero_grad()
            loss.backward()
            if model is plain:
                wanted = [p.grad.clone() for p in plain.parameters()]
        torch.testing.assert_close([p.grad for p in net.parameters()], wanted)
    torch.testing.assert_close(fast.state_dict(), plain.state_dict())


def read_every_fourth(model: Any, x: Tensor, y: Tensor) -> list[float]:
    """Losses of three sequences of ten steps, of which the last two are not read before the weights change."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for _ in range(3):
        at_rest(model)
        loss: Any = 0.0
        for step, frame in enumerate(x[:10]):
            mem = model(frame)[1]
            if step % 4 == 3:
                loss = loss + F.cross_entropy(mem, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_weights_that_change_before_a_batch_norm_has_collected_lead_to_plain_steps_with_a_warning():
    net, plain, x = built(lambda: step_by_step(nn.BatchNorm1d(10)))
    fast = accelerate(net, x[0])
    y = torch.tensor([0, 1, 2])
    with pytest.warns(NotAcceleratedWarning, match="statistics of steps whose values nothing asked for"):
        came = read_every_fourth(fast, x, y)
    torch.testing.assert_close(came, read_every_fourth(plain, x, y))


def filled(model: Any, x: Tensor) -> Tensor:
    frames = torch.zeros(x.shape)
    sent = []
    for step, frame in enumerate(x):
        frames[step] = frame
        sent.append(model(frames[step])[1])
    return torch.stack(sent)


def refilled(model: Any, x: Tensor) -> Tensor:
    frame = torch.zeros(x[0].numel()).view(x[0].shape)
    return torch.stack([model(frame.copy_(each))[1] for each in x])


def a_norm_that_stops(model: Any, x: Tensor) -> Tensor:
    sent = [model(frame)[1] for frame in x[:5]]
    model[1].eval()
    sent += [model(frame)[1] for frame in x[5:]]
    model[1].train()
    return torch.stack(sent)


def halved_without_gradients(model: Any, x: Tensor) -> Tensor:
    sent = []
    for step, frame in enumerate(x):
        sent.append(model(frame)[1])
        if step == 4:
            with torch.no_grad():
                model[4].mem.mul_(0.5)
    return torch.stack(sent)


def a_head_that_reads_later(model: Any, x: Tensor) -> Tensor:
    head = nn.BatchNorm1d(4)
    sums = []
    for scale in (1, 2):
        at_rest(model)
        sums.append(sum(model(scale * frame)[1] for frame in x))
    first, second = (head(each) for each in sums)
    return torch.cat([second.detach(), first, head.running_mean[None]])


@pytest.mark.parametrize("use", [filled, refilled])
def test_frames_in_memory_that_the_loop_fills_are_what_they_were(use: Callable[[Any, Tensor], Tensor]):
    net, plain, x = built(lambda: step_by_step(nn.Identity()))
    fast = accelerate(net, x[0])
    at_rest(net)
    at_rest(plain)
    with torch.no_grad():  # with gradients PyTorch refuses such a loop
        torch.testing.assert_close(use(fast, x), use(plain, x))


@pytest.mark.parametrize("use", [a_norm_that_stops, halved_without_gradients, a_head_that_reads_later])
def test_a_loop_outside_is_what_it_is_with_the_users_module(use: Callable[[Any, Tensor], Tensor]):
    net, plain, x = built(lambda: step_by_step(nn.BatchNorm1d(10)))
    fast = accelerate(net, x[0])
    at_rest(plain)
    wanted = use(plain, x)
    wanted.square().sum().backward()
    at_rest(net)
    came = use(fast, x)
    came.square().sum().backward()
    torch.testing.assert_close(came, wanted)
    for ours, theirs in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-3)


class SkipOfFlat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.below = nn.Linear(8, 4)
        self.first = snn.Leaky(beta=0.9, init_hidden=True)
        self.skip = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        flat = x.flatten(1)
        return self.first(self.below(flat)), self.skip(flat)


def test_frames_that_change_between_two_reads_are_what_they_were():
    net, plain, x = built(SkipOfFlat)
    fast = accelerate(net, x[0])
    at_rest(plain)
    wanted = torch.stack([plain(frame)[1] for frame in x])
    at_rest(net)
    with torch.no_grad():
        sent = [fast(frame) for frame in x]
        torch.stack([spikes for spikes, _ in sent])
        x.zero_()
        came = torch.stack([skipped for _, skipped in sent])
    torch.testing.assert_close(came, wanted)


def test_a_dropout_that_does_nothing_is_its_argument():
    net, _, x = built(lambda: step_by_step(nn.Identity()))
    fast = accelerate(net, x[0])
    mem = fast(x[0])[1]
    dropped = F.dropout(mem, training=False)
    with pytest.raises(RuntimeError, match="Change a clone"):
        F.relu(dropped, inplace=True)


def test_short_sequences_and_outputs_that_nobody_reads():
    net, _plain, x = built(lambda: step_by_step(nn.Identity()))
    fast = accelerate(net, x[0])
    for _ in range(60):  # of four steps each, and stacked: nothing is asked for too often
        at_rest(net)
        torch.stack([fast(frame)[1] for frame in x[:4]])
    assert running_of(fast).runs_plainly is None
    at_rest(net)
    with pytest.warns(NotAcceleratedWarning, match="asked for every few steps"):
        for step in range(60):
            spikes, mem = fast(x[step % len(x)])
            del spikes
            mem.sum().item()


class OwnNames(Between):
    """Its parts and methods have names that could be those of an accelerated network."""

    def __init__(self) -> None:
        super().__init__()
        self.running, self.recording, self.layers = nn.Linear(4, 4), nn.Tanh(), nn.ModuleList([nn.Linear(10, 4)])
        self.named, self.lock, self.steps_of, self.plain_class = nn.Identity(), nn.Identity(), nn.ReLU(), nn.Sigmoid()

    def call(self, z: Tensor) -> Tensor:
        return self.steps_of(self.recording(self.running(z)))

    def forward(self, x: Tensor) -> Tensor:
        low, high, sent = self.first.reset_mem(), self.second.reset_mem(), []
        for frame in x:
            z, low = self.first(self.below(frame), low)
            current = self.plain_class(self.call(self.lock(self.named(self.layers[0](z)))))
            _, high = self.second(current, high)
            sent.append(high)
        return torch.stack(sent)


@pytest.mark.long
def test_a_reset_of_lazy_states_does_not_import_sympy():
    code = """
import sys, torch, snntorch as snn
from snntorch import utils
from neurolsc import accelerate
net = torch.nn.Sequential(torch.nn.Linear(8, 4), snn.Leaky(beta=0.9, init_hidden=True))
fast = accelerate(net, torch.rand(2, 8))
for _ in range(2):
    utils.reset(net)
    torch.stack([fast(x) for x in torch.rand(5, 2, 8)])
assert "sympy" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names_of_an_accelerated_network_hide_none_of_the_users():
    net, plain, x = built(OwnNames)
    fast = accelerate(net, x)
    torch.testing.assert_close(fast(x), plain(x))
    assert longest(fast) == len(x)


def test_a_change_of_the_network_within_a_loop_outside_is_seen():
    net, plain, x = built(lambda: step_by_step(nn.Identity()))
    fast = accelerate(net, x[0])
    changes: list[Callable[[Any], Any]] = [
        lambda model: setattr(model[2], "reset_mechanism", "zero"),
        lambda model: setattr(model[2], "threshold", torch.tensor(0.3)),
        lambda model: setattr(model, "3", nn.Sequential(model[3], nn.Tanh())),
        lambda model: setattr(model[0], "bias", nn.Parameter(torch.ones_like(model[0].bias))),
        lambda model: setattr(model[4], "forward", partial(type(model[4]).forward, model[4])),
    ]
    for change in changes:
        rows: dict[bool, list[Tensor]] = {True: [], False: []}
        for model in (plain, fast):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NotAcceleratedWarning)
                rows[model is fast] += [model(frame)[1] for frame in x[:3]]
                change(model)
                rows[model is fast] += [model(frame)[1] for frame in x[3:]]
        torch.testing.assert_close(torch.stack(rows[True]), torch.stack(rows[False]))


def test_frames_that_are_rows_of_one_tensor_are_not_copied_and_must_not_change():
    frames = torch.rand(6, 2, 3)
    block = successive_parts([frames[step] for step in (1, 2, 3)])
    assert block is not None
    assert block.data_ptr() == frames[1].data_ptr()
    torch.testing.assert_close(block, frames[1:4])
    other_axis = successive_parts([frames[:, step] for step in range(2)])
    torch.testing.assert_close(other_axis, frames.transpose(0, 1))
    backwards = successive_parts([frames[step] for step in (4, 2, 0)])
    assert backwards is None or torch.equal(backwards, frames[[4, 2, 0]])
    assert successive_parts([frames[0], frames[1], frames[3]]) is None
    assert successive_parts([frames[0], torch.rand(2, 3)]) is None
    assert successive_parts([*frames.clone().requires_grad_()]) is None
    net, _, x = built(lambda: step_by_step(nn.Identity()))
    fast = accelerate(net, x[0])
    steps = [fast(frame)[1] for frame in x]
    x.zero_()
    with pytest.raises(RuntimeError, match="has been changed"):
        torch.stack(steps)


def test_a_saved_batch_norm_has_collected_all_steps():
    net, plain, x = built(lambda: step_by_step(nn.BatchNorm1d(10)))
    fast = accelerate(net, x[0])
    for model in (plain, fast):
        model[2].reset_mem()
        model[4].reset_mem()
        for frame in x:
            model(frame)
    torch.testing.assert_close(fast.state_dict()["1.running_mean"], plain.state_dict()["1.running_mean"])


def test_a_forward_of_the_object_is_not_accelerated_and_named():
    net, _, x = built(Between)
    net.forward = partial(Between.forward, net)
    with pytest.warns(NotAcceleratedWarning, match="an attribute of the object"):
        accelerate(net, x)


def test_modes_that_see_every_operation_see_plain_steps():
    net, plain, x = built(Between)
    fast = accelerate(net, x)
    counts = []
    for model in (fast, plain):
        with FlopCounterMode(display=False) as counter:
            model(x)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0
    traced = make_fx(fast)(x)
    torch.testing.assert_close(traced(x + 1), plain(x + 1))


def test_threads_may_read_one_recording():
    net, plain, x = built(lambda: step_by_step(nn.Identity()))
    wanted = torch.stack(stepped(plain, x))
    fast = accelerate(net, x[0])
    with ThreadPoolExecutor(4) as pool:
        for _ in range(10):
            voltages = stepped(fast, x)
            for came in pool.map(torch.stack, [voltages] * 4):
                torch.testing.assert_close(came, wanted)


def test_a_dict_of_its_own_class_comes_back():
    class Named(Between):
        def forward(self, x: Tensor) -> Any:
            out = defaultdict(list)
            low = self.first.reset_mem()
            for frame in x:
                z, low = self.first(self.below(frame), low)
                out["z"].append(z)
            return out

    net, plain, x = built(Named)
    came = accelerate(net, x)(x)
    assert type(came) is defaultdict
    torch.testing.assert_close(came["z"], plain(x)["z"])


class InTraining(Between):
    """It does in training alone what cannot be put off."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.norm = nn.BatchNorm1d(10)
        self.trace = torch.zeros(10)
        self.last: deque[Tensor] = deque(maxlen=3)
        self.logs: dict[str, list[float]] = {"rate": []}
        self.pair = (torch.zeros(10), torch.zeros(10))

    def between(self, z: Tensor) -> Tensor:
        self.trace += z.detach().mean(0)
        self.pair[0].add_(z.detach().mean(0))
        self.last.append(z.detach())
        self.logs["rate"].append(1.0)
        if not self.training:
            return z
        match self.kind:
            case "statistics are read":
                return self.norm(z) - self.norm.running_mean
            case "used twice":
                return self.norm(z) + self.norm(z.sort(1)[0]).detach()
            case "a view":
                part = z[:, :3] * 1.0
                whole = z * 1.0
                view = whole.diagonal()
                whole.mul_(0.5)
                return z + part.sum() + view.sum()
            case "a hook":
                gradient_of = z * 1.0
                if gradient_of.requires_grad:
                    gradient_of.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
                return gradient_of
        return z


@pytest.mark.parametrize("kind", ["statistics are read", "used twice", "a view", "a hook"])
def test_what_forward_does_in_training_alone_is_compared_and_the_example_leaves_nothing(kind):
    net, plain, x = built(lambda: InTraining(kind))
    given = x.clone()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotAcceleratedWarning)
        fast = accelerate(net, x)
    assert torch.equal(x, given) and not net.trace.any() and not net.last and net.logs == {"rate": []}
    assert not net.pair[0].any()
    for model in (fast, plain):
        model.train()
        model(x).square().sum().backward()
    torch.testing.assert_close([p.grad for p in net.parameters()], [p.grad for p in plain.parameters()])
    torch.testing.assert_close(dict(net.named_buffers()), dict(plain.named_buffers()))
    torch.testing.assert_close(net.trace, plain.trace)


@pytest.mark.parametrize("view", [lambda s: s[:, :2], Tensor.t, Tensor.contiguous, lambda s: s.view(-1), Tensor.detach])
def test_a_step_with_a_view_in_use_is_not_changed_in_place(view):
    net, _, x = built(lambda: step_by_step(nn.Identity()))
    fast = accelerate(net, x[0])
    (_, voltage) = fast(x[0])
    kept = view(voltage)
    with pytest.raises(RuntimeError, match="while views of it"):
        voltage.mul_(0.5)
    del kept
    fast(x[1])[1].mul_(0.5)  # no view of this one


OF_STEPS: dict[str, Callable[[Tensor, nn.Module], Tensor]] = {
    "slice": lambda z, _: torch.cat([z[:, 5:], z[:, :5]], 1),
    "index": lambda z, _: z + z[0],
    "chunk": lambda z, _: torch.cat(z.chunk(3, dim=1), 1),
    "split": lambda z, _: torch.split(z, [4, 6], 1)[1].sum(1, keepdim=True) * z,
    "softmax": lambda z, _: z.softmax(1) + torch.softmax(z, dim=-1),
    "transpose": lambda z, _: z.transpose(0, 1).contiguous().transpose(0, 1),
    "unsqueeze": lambda z, _: z.unsqueeze(1).squeeze(1),
    "where": lambda z, _: torch.where(z > 0.5, z, 0.1),
    "power": lambda z, _: z**2 + z.to("cpu"),
    "product": lambda z, net: z @ net.above.weight.T @ net.above.weight,  # type: ignore[operator]
    "product of steps": lambda z, _: z @ z.transpose(0, 1) @ z,
    "weight of a step": lambda z, net: F.linear(z, net.above.weight, z.mean(0)[:4]) @ net.above.weight,  # type: ignore[operator]
    "bound": lambda z, _: z + z.mean().clamp(min=torch.linspace(0, 0.1, 12)).sum(),
    "group norm": lambda z, _: F.group_norm(z, 2),
    "softplus": lambda z, _: F.softplus(z) + F.hardtanh(z),
    "memory format": lambda z, _: z[..., None, None].contiguous(memory_format=torch.channels_last).flatten(1),
    "axis of NumPy": lambda z, _: z + z.sum(dim=np.int64(0)),  # type: ignore[call-overload]
}


@pytest.mark.parametrize("kind", OF_STEPS)
def test_functions_between_layers_are_those_of_each_step(kind):
    class Function(Between):
        def between(self, z: Tensor) -> Tensor:
            return OF_STEPS[kind](z, self)

    net, plain, x = built(Function)
    fast = accelerate(net, x)
    assert running_of(fast).runs_plainly is None
    for model in (fast, plain):
        model(x).square().sum().backward()
    torch.testing.assert_close(fast(x), plain(x))
    gradients = [p.grad for p in plain.parameters()]
    torch.testing.assert_close([p.grad for p in net.parameters()], gradients, rtol=1e-4, atol=1e-4)


def test_a_network_of_two_inputs_takes_a_tuple_as_its_example():
    class Two(Between):
        def forward(self, x: Tensor, gain: Tensor) -> Tensor:
            return super().forward(x * gain)

    net, plain, x = built(Two)
    gain = torch.tensor(0.9)
    torch.testing.assert_close(accelerate(net, (x, gain))(x, gain), plain(x, gain))
