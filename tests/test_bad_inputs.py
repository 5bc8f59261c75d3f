"""Public functions x inputs: each works, or one error of ours says what came; measuring changes nothing."""

import random
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import snntorch as snn
import torch
from spikingjelly.activation_based import neuron
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

import neurolsc
from neurolsc import LIF, Network, init
from neurolsc.export import refusals, to_netx, to_nir
from tests.interop.modules import CASES, norse
from tests.interop.test_prepared import assert_same, everything, run_by_its_user

pytestmark = pytest.mark.filterwarnings("ignore")  # what libraries warn of is not looked at here
PACKAGE = Path(neurolsc.__file__).parent
T, B, N = 5, 6, 8


def leaky(**first: Any) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(N, 16), snn.Leaky(0.9, init_hidden=True, **first), nn.Linear(16, 16)]
    return nn.Sequential(*layers, snn.Leaky(0.9, init_hidden=True), nn.Linear(16, 4))


def recurrent() -> nn.Sequential:
    net = leaky()
    for i in (1, 3):
        net[i] = snn.RLeaky(0.9, linear_features=16, init_hidden=True)
    return net


def nodes(v_threshold: Any = 1.0) -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(N, 16), neuron.LIFNode(), nn.Linear(16, 16), neuron.LIFNode(), nn.Linear(16, 4))
    net[1].v_threshold = v_threshold
    return net


def cells() -> nn.Module:
    torch.manual_seed(0)
    return norse.SequentialState(
        nn.Linear(N, 16), norse.LIFCell(), nn.Linear(16, 16), norse.LIFCell(), nn.Linear(16, 4)
    )


def ours() -> Network:
    torch.manual_seed(0)
    return Network([LIF(N, 16), LIF(16, 16)], n_out=4)


def x() -> Tensor:
    return (torch.rand(T, B, N, generator=torch.Generator().manual_seed(0)) < 0.3).float()


def y() -> Tensor:
    return torch.arange(B) % 4


def first_step(x: Any) -> Any:
    """The first of several steps; what has none stays."""
    sequence = isinstance(x, Tensor) and not x.is_nested and x.ndim == 3 and len(x) > 0
    return x[0] if sequence else x


FUNCTIONS: dict[str, Callable[[Any, Any, Path], object]] = {
    "diagnose": lambda net, x, _: neurolsc.diagnose(net, x, steps=2, samples=2),
    "radius_profile": lambda net, x, _: neurolsc.radius_profile(net, x, steps=1),
    "initialize": lambda net, x, _: neurolsc.initialize(net, x),
    "pretrain": lambda net, x, _: neurolsc.pretrain(net, x, max_steps=1, steps=1, samples=1, progress=False),
    "scale_to_radius": lambda net, x, _: neurolsc.scale_to_radius(net, x, samples=1, steps=1, progress=False),
    "match_firing_rates": lambda net, x, _: neurolsc.match_firing_rates(net, x, [0.1, 0.1], tolerance=float("inf")),
    "to_nir": lambda net, x, _: to_nir(net, x, dt=1e-3),
    "to_netx": lambda net, x, folder: to_netx(net, folder / "a.net", x, force=True),
    "refusals": lambda net, x, _: refusals(net, x),
    "FiringRate": lambda net, x, _: init.FiringRate(0.1).apply(net, x),
    "Glorot": lambda net, x, _: init.Glorot().apply(net, x),
    "LSUV": lambda net, x, _: init.LSUV().apply(net, x),
    "LSCLyapunov": lambda net, x, _: init.LSCLyapunov(samples=1).apply(net, x),
    "LSCSingular": lambda net, x, _: init.LSCSingular(samples=1, steps=1).apply(net, x),
    "wrap": lambda net, x, _: neurolsc.wrap(net, first_step(x)),
}


def bare(call: Callable[[], object]) -> str:
    """The error of a call, if it is another than one that this package raises itself; else empty."""
    try:
        call()
    except (TypeError, ValueError, FloatingPointError) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raised_here = Path(last.filename).is_relative_to(PACKAGE) and "raise" in (last.line or "")
        return "" if raised_here else f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"
    except Exception as error:  # of torch, or a fault of ours
        return f"{type(error).__name__}: {error}"
    return ""


INPUTS: dict[str, Callable[[], Any]] = {
    "numpy": lambda: x().numpy(),
    "None": lambda: None,
    "text": lambda: "x",
    "number": lambda: 3,
    "0-d": lambda: torch.tensor(1.0),
    "1-d": lambda: torch.rand(N),
    "2-d": lambda: torch.rand(B, N),
    "4-d": lambda: torch.rand(T, B, 1, N),
    "no step": lambda: torch.rand(0, B, N),
    "no sample": lambda: torch.rand(T, 0, N),
    "no input": lambda: torch.rand(T, B, 0),
    "one step": lambda: x()[:1],
    "one sample": lambda: x()[:, :1],
    "other width": lambda: torch.rand(T, B, 5),
    "complex": lambda: x().cfloat(),
    "NaN": lambda: x() * float("nan"),
    "infinity": lambda: x() / 0,
    "int64": lambda: x().long(),
    "bool": lambda: x().bool(),
    "uint8": lambda: x().byte(),
    "half": lambda: x().half(),
    "bfloat16": lambda: x().bfloat16(),
    "float64": lambda: x().double(),
    "zeros": lambda: 0 * x(),
    "sparse": lambda: x().to_sparse(),
    "nested": lambda: torch.nested.nested_tensor([x()[:5, 0], x()[:3, 0]]),
    "meta": lambda: x().to("meta"),
    "with a gradient": lambda: x().requires_grad_(),
    "list of numpy": lambda: [x().numpy()],
    "dict": lambda: {"x": x()},
    "generator": lambda: (each for each in [x()]),
    "empty list": lambda: [],
    "empty tuple": lambda: (),
    "numbers": lambda: [[1.0, 2.0]],
    "targets of numpy": lambda: (x(), y().numpy()),
    "few targets": lambda: (x(), y()[:3]),
    "targets out of range": lambda: (x(), y() + 4),
    "float targets": lambda: (x(), y().float()),
}


@pytest.mark.slow
@pytest.mark.parametrize("make", [leaky, ours], ids=["snnTorch", "ours"])
@pytest.mark.parametrize("given", INPUTS)
def test_an_input_of_another_kind_works_or_is_refused_by_what_came(given, make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # `to_nir` takes a text in the place of x for a path, and writes there
    found = {}
    for name, function in FUNCTIONS.items():
        if name != "wrap" or make is not ours:
            found[name] = bare(lambda function=function: function(make(), INPUTS[given](), tmp_path))
    assert not {name: error for name, error in found.items() if error}


def changed(make: Callable[[], Any], change: Callable[[Any], object]) -> Callable[[], Any]:
    def made() -> Any:
        net = make()
        change(net)
        return net

    return made


class LowRank(nn.Module):
    """A frozen weight plus a product of two learnt ones, as adapters have it."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.a = nn.Parameter(0.1 * torch.randn(rows, 2))
        self.b = nn.Parameter(0.1 * torch.randn(2, columns))

    def forward(self, weight: Tensor) -> Tensor:
        return weight.detach() + self.a @ self.b


def adapt(net: Any) -> None:
    parametrize.register_parametrization(net[0], "weight", LowRank(16, N))


def normalise(net: Any) -> None:
    for linear in (net[0], net[1].recurrent, net[2], net[3].recurrent):
        parametrizations.weight_norm(linear)


def put(value: float) -> Callable[[Any], object]:
    return lambda net: net[0].weight.data[0].fill_(value)


NETWORKS: dict[str, Callable[[], Any]] = {
    "a class": lambda: nn.Sequential,
    "None": lambda: None,
    "text": lambda: "net",
    "function": lambda: leaky,
    "state_dict": lambda: leaky().state_dict(),
    "parameters": lambda: list(leaky().parameters()),
    "empty": nn.Sequential,
    "no layer": lambda: nn.Sequential(nn.Linear(N, 4)),
    "bfloat16": lambda: leaky().bfloat16(),
    "half": lambda: cells().half(),
    "float64": lambda: leaky().double(),
    "complex": lambda: leaky().to(torch.complex64),
    "weight norm": changed(recurrent, normalise),
    "spectral norm": changed(leaky, lambda net: parametrizations.spectral_norm(net[0])),
    "low rank": changed(leaky, adapt),
    "frozen": lambda: recurrent().requires_grad_(False),
    "frozen, ours": lambda: ours().requires_grad_(False),
    "no parameters": lambda: nn.Sequential(snn.Leaky(0.9, init_hidden=True)),
    "no parameters, spikingjelly": lambda: nn.Sequential(neuron.IFNode()),
    "no neurons": lambda: nn.Sequential(nn.Linear(N, 0), snn.Leaky(0.9, init_hidden=True), nn.Linear(0, 4)),
    "v_threshold int": lambda: nodes(1),
    "v_threshold float": lambda: nodes(0.5),
    "v_threshold numpy": lambda: nodes(np.float32(0.5)),
    "v_threshold tensor": lambda: nodes(torch.tensor(0.5)),
    "v_threshold parameter": lambda: nodes(nn.Parameter(torch.tensor(0.5))),
    "v_threshold 0": lambda: nodes(0.0),
    "v_threshold NaN": lambda: nodes(float("nan")),
    "v_threshold None": lambda: nodes(None),
    "NaN": changed(leaky, put(float("nan"))),
    "infinity": changed(cells, put(float("inf"))),
    "meta": lambda: leaky().to("meta"),
    "lazy": lambda: nn.Sequential(nn.LazyLinear(16), *leaky()[1:]),
    "DataParallel": lambda: nn.DataParallel(leaky()),
}


@pytest.mark.slow
@pytest.mark.parametrize("given", NETWORKS)
def test_a_network_of_another_kind_works_or_is_refused_by_what_came(given, tmp_path):
    functions = FUNCTIONS | {"save": lambda net, _, folder: neurolsc.save(net, folder / "a.safetensors")}
    if given == "frozen, ours":
        del functions["wrap"]
    found = {}
    for name, function in functions.items():
        found[name] = bare(lambda function=function: function(NETWORKS[given](), x(), tmp_path))
    assert not {name: error for name, error in found.items() if error}


def test_a_weight_norm_takes_a_matrix_of_zeros_and_rows_of_zeros():
    for zeros in (slice(None), slice(0, 3)):
        linear = parametrizations.weight_norm(nn.Linear(6, 6))
        value = torch.randn(6, 6)
        value[zeros] = 0
        neurolsc.neurons.parameters.set_value(linear, "weight", value)
        torch.testing.assert_close(linear.weight, value, atol=1e-5, rtol=1e-4)


MEASURES: dict[str, Callable[[nn.Module, Any, Path], object]] = {
    "diagnose": lambda net, x, _: neurolsc.diagnose(net, x, steps=2, samples=2),
    "radius_profile": lambda net, x, _: neurolsc.radius_profile(net, x, steps=2),
    "wrap": lambda net, x, _: isinstance(net, Network) or neurolsc.interop.prepared.prepare(net, x),
    "refusals": lambda net, x, _: refusals(net, x),
    "to_nir": lambda net, x, _: to_nir(net, x, dt=1e-3),
    "to_netx": lambda net, x, folder: to_netx(net, folder / "a.net", (x > 1).float(), force=True),
    "save": lambda net, x, folder: neurolsc.save(net, folder / "a"),
}


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("name", CASES)
def test_a_call_that_only_measures_leaves_everything_as_it_was(name, measure, tmp_path):
    """Parameters, gradients, buffers, hidden states, modes, hooks, and all random numbers, in training mode as well."""
    case = CASES[name]
    net, given = case.make(), case.x()
    run_by_its_user(net, given, "one step a call" in case.layout)
    net.train()
    next(net.children(), net).eval()
    before = everything(net)
    numbers = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    try:
        MEASURES[measure](net, given, tmp_path)
    except (TypeError, ValueError):  # what an export refuses
        assert measure in ("to_nir", "to_netx", "save")
    assert_same(before, everything(net))
    assert torch.equal(numbers[0], torch.get_rng_state())
    assert numbers[1:] == (random.getstate(), np.random.get_state()[1].tolist())


class InTraining(nn.Module):
    """A batch norm, a dropout, and an output whose weights may be parametrised."""

    def __init__(self, parametrised: Callable[[nn.Module], nn.Module]) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(N, 16), nn.BatchNorm1d(16))
        self.neurons = snn.Leaky(0.9)
        self.second = nn.Sequential(nn.Dropout(0.2), parametrised(nn.Linear(16, 4)))
        self.output = snn.Leaky(0.9)

    def forward(self, x: Tensor) -> Tensor:
        below, above = self.neurons.reset_mem(), self.output.reset_mem()
        sent = []
        for step in x:
            z, below = self.neurons(self.first(step), below)
            z, above = self.output(self.second(z), above)
            sent.append(z)
        return torch.stack(sent)


class Gated(nn.Module):
    """Two layers with a dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.GRU(N, 16, num_layers=2, dropout=0.2)
        self.output = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.layers(x)[0])


def watched(net: nn.Module) -> None:
    monitor = neurolsc.Monitor(net, x(), y(), loss="step", every=1)
    for _ in range(3):
        monitor.step(torch.tensor(1.0))


IN_TRAINING: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: InTraining(lambda layer: layer),
    "weight norm": lambda: InTraining(parametrizations.weight_norm),
    "spectral norm": lambda: InTraining(parametrizations.spectral_norm),
    "orthogonal": lambda: InTraining(parametrizations.orthogonal),
    "GRU": Gated,
}


@pytest.mark.parametrize(
    "look",
    [
        lambda net: neurolsc.diagnose(net, x(), y(), loss="step", lr=1e-2),
        lambda net: neurolsc.try_cures(net, x(), y(), loss="step", lr=1e-2),
        watched,
    ],
    ids=["diagnose", "try_cures", "Monitor"],
)
@pytest.mark.parametrize("name", IN_TRAINING)
def test_a_training_goes_on_as_if_nobody_had_looked(name, look):
    """Norms, dropouts and parametrisations change what they keep when they are used in training mode."""
    torch.manual_seed(0)
    net = IN_TRAINING[name]().train()
    net(x())
    before = everything(net)
    numbers = torch.get_rng_state()
    look(net)
    assert_same(before, everything(net))
    assert torch.equal(numbers, torch.get_rng_state())


@pytest.mark.parametrize(
    "computed", [torch.nn.utils.weight_norm, lambda layer: prune.random_unstructured(layer, "weight", 0.3)]
)
@pytest.mark.parametrize("look", [lambda net: neurolsc.diagnose(net, x(), y(), loss="step", lr=1e-2), watched])
def test_weights_that_a_hook_computes_are_measured_too(look, computed):
    net = InTraining(computed).train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    look(net)
    after = net.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
