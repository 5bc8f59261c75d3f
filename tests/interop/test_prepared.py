"""`prepare`: any library's module, and x as it takes it, become a network and what that reads; nothing changes."""

import copy
import random
from typing import Any

import numpy as np
import pytest
import snntorch as snn
import torch
from spikingjelly.activation_based import functional, neuron
from spikingjelly.activation_based import layer as jelly
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.testing import assert_close
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from neurolsc import (
    LIF,
    Embedding,
    Monitor,
    Network,
    diagnose,
    initialize,
    pretrain,
    radius_profile,
    try_cures,
    wrap,
)
from neurolsc.datasets import SpikeLatencyMNIST, collate
from neurolsc.interop.prepared import prepare, prepare_batches, some_batches
from tests.interop.modules import BATCH, CASES, CLASSES, N_IN, STEPS, N, Tutorial, frames, run_by_its_user, sequence

pytestmark = pytest.mark.filterwarnings("ignore::neurolsc.WrappedNeuronWarning")


def labels(count: int = BATCH) -> Tensor:
    return torch.arange(count) % CLASSES


# ---------------------------------------------------------------- layouts


@pytest.mark.parametrize("name", CASES)
def test_the_network_reads_and_sends_what_the_module_does_and_says_how_x_was_laid_out(name):
    case = CASES[name]
    net, x = case.make(), case.x()
    found = prepare(net, x, labels())
    assert found.layout == case.layout
    assert torch.equal(found.x, case.by_step(x))
    assert torch.equal(found.targets, labels())
    assert found.mask is None and found.turned == ""
    logits = found.network.eval()(found.x)
    theirs = run_by_its_user(net, x, "one step a call" in found.layout)
    if "batch first" in found.layout and theirs.shape[:2] == (BATCH, STEPS):
        theirs = theirs.transpose(0, 1)
    if theirs.ndim == 2:
        logits = logits.mean(0)
    assert logits.any()
    assert_close(logits, theirs.view_as(logits), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("steps", [5, 6, 7, 8])
@pytest.mark.parametrize("batch_first", [False, True])
def test_axes_are_told_by_what_layers_read_not_by_sizes_that_coincide(steps, batch_first):
    """Seven inputs and five samples: with as many steps time cannot be told by its length."""
    net = Tutorial(batch_first)
    x = 3 * torch.rand(steps, BATCH, N_IN)
    found = prepare(net, x.transpose(0, 1) if batch_first else x)
    assert torch.equal(found.x, x)
    assert found.network.n_in == N_IN


@pytest.mark.parametrize("channels", [1, 3, STEPS])
def test_an_image_with_as_many_channels_as_steps_is_an_image(channels):
    class Precomputed(nn.Module):
        """The current of the first layer is computed once, before the loop."""

        def __init__(self) -> None:
            super().__init__()
            self.conv, self.lif, self.fc = nn.Conv2d(channels, 2, 3), snn.Leaky(beta=0.9), nn.Linear(32, CLASSES)
            self.flatten = nn.Flatten()

        def forward(self, x: Tensor) -> Tensor:
            current, mem, out = self.conv(x), self.lif.reset_mem(), []
            for _ in range(STEPS):
                spk, mem = self.lif(current, mem)
                out.append(self.fc(self.flatten(spk)))
            return torch.stack(out)

    net, x = Precomputed(), 3 * torch.rand(BATCH, channels, 6, 6)
    found = prepare(net, x)
    assert found.layout == f"one image for all {STEPS} steps"
    assert_close(found.network(found.x), net(x))


def test_a_linear_over_all_steps_at_once_is_told_from_a_current_that_all_steps_share():
    class Net(Tutorial):
        def forward(self, x: Tensor) -> Tensor:
            mem, out = self.lif1.reset_mem(), []
            currents = self.fc1(x)
            for step in range(STEPS):
                spk, mem = self.lif1(currents if currents.ndim == 2 else currents[step], mem)
                out.append(spk)
            return torch.stack(out)

    assert prepare(Net(), 3 * torch.rand(N_IN, N_IN)).layout == f"one input for all {STEPS} steps"
    assert prepare(Net(), 3 * torch.rand(STEPS, STEPS, N_IN)).layout == f"time first (T, B, {N_IN})"


def test_layers_that_return_tuples_in_a_sequential_are_taken_in_its_order():
    net = nn.Sequential(nn.Linear(N_IN, N), snn.Leaky(beta=0.9), nn.Linear(N, CLASSES))
    x = sequence()
    found = prepare(net, x)
    assert found.layout == f"time first (T, B, {N_IN}), one step a call"
    assert [cell.layer for cell in found.network.cells] == [net[1]]
    assert torch.equal(found.x, x)
    assert prepare(list(net), x).layout == "as the network reads it"
    images = nn.Sequential(nn.Conv2d(1, 2, 3), snn.Leaky(beta=0.9), nn.Flatten(), nn.Linear(32, CLASSES))
    assert prepare(images, frames()).layout == "time first (T, B, 1, 6, 6), one step a call"
    assert prepare(net, sequence()[..., None]).x.shape == x.shape  # the loop flattens it


def test_the_labels_of_a_module_that_takes_one_step_tell_batch_first():
    net = nn.Sequential(nn.Linear(N_IN, N), snn.Leaky(beta=0.9, init_hidden=True))
    found = prepare(net, sequence().transpose(0, 1), labels())
    assert found.layout == f"batch first (B, T, {N_IN}), one step a call"
    assert found.x.shape == (STEPS, BATCH, N_IN)


# ---------------------------------------------------------------- kinds of x and y


def test_one_batch_may_come_as_a_tensor_a_tuple_a_list_and_in_a_list_or_loader_of_batches():
    net, x, y = Tutorial(batch_first=True), sequence().transpose(0, 1), labels()
    loader = DataLoader(TensorDataset(x, y), batch_size=BATCH)
    for given in ((x, y), [x, y], [(x, y)], [(x, y), (x[:2], y[:2])], loader):
        found = prepare(net, given)
        assert torch.equal(found.x, x.transpose(0, 1))
        assert torch.equal(found.targets, y)
    assert prepare(net, [x, x[:2]]).targets is None


def test_targets_for_every_step_and_a_mask_are_turned_as_the_input_is():
    net, x = Tutorial(batch_first=True), sequence().transpose(0, 1)
    targets, mask = torch.randint(CLASSES, (BATCH, STEPS)), torch.ones(BATCH, STEPS, dtype=torch.bool)
    found = prepare(net, (x, targets, mask))
    assert torch.equal(found.targets, targets.T)
    assert torch.equal(found.mask, mask.T)


@pytest.mark.parametrize("own", [True, False])
def test_a_shuffled_loader_is_as_it_was_and_its_batches_are_read_anew_in_every_round(own):
    net, x = Tutorial(batch_first=True), 3 * torch.rand(20, STEPS, N_IN)
    generator = torch.Generator().manual_seed(1)
    loader = DataLoader(TensorDataset(x, labels(20)), batch_size=5, shuffle=True, generator=generator if own else None)
    before = torch.get_rng_state(), generator.get_state()
    found = prepare_batches(net, loader)
    assert torch.equal(torch.get_rng_state(), before[0]) and torch.equal(generator.get_state(), before[1])
    rounds = [torch.cat([batch.x for batch in found.batches], 1) for _ in "ab"]
    assert rounds[0].shape == (STEPS, 20, N_IN)
    assert not torch.equal(*rounds)
    assert torch.equal(rounds[0].sort(1).values, rounds[1].sort(1).values)


def test_a_list_of_batches_is_read_as_the_first_of_them():
    net, first = Tutorial(batch_first=True), sequence().transpose(0, 1)
    found = prepare_batches(net, [first, (2 * first[:3], labels(3))])
    assert [batch.x.shape[1] for batch in found.batches] == [BATCH, 3]
    assert torch.equal(found.batches[1].x, 2 * first[:3].transpose(0, 1))
    assert found.layout == f"batch first (B, T, {N_IN})"


def test_a_network_reads_words_and_its_inputs_in_its_own_dtype():
    words = torch.randint(4, (STEPS, BATCH, 1))
    assert prepare(Network([LIF(6, 6)], embedding=Embedding(4, 6)), words).x.dtype == torch.int64
    spikes = torch.ones(STEPS, BATCH, N_IN, dtype=torch.bool)
    assert prepare(Network([LIF(N_IN, N)], CLASSES).double(), spikes).x.dtype == torch.float64


def test_half_precision_is_refused_where_nothing_makes_it_float32():
    net, x = Tutorial().bfloat16(), sequence()
    with pytest.raises(TypeError, match=r"float32 or float64.* got torch.bfloat16: give net.float\(\)"):
        prepare(net, x)


# ---------------------------------------------------------------- errors


class Holder(nn.Module):
    """A network in a module of one's own."""


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (np.zeros((3, 4, N_IN)), TypeError, r"got ndarray: torch.from_numpy makes it one"),
        ((np.zeros((3, 4, N_IN)), labels()), TypeError, r"got \(ndarray, Tensor\): torch.from_numpy makes it one"),
        (5, TypeError, "x must be a tensor, a batch .* got int"),
        (iter([torch.ones(3, 4, N_IN)]), TypeError, "a list of batches or a DataLoader, got list_iterator"),
        ({"x": torch.ones(3, 4, N_IN)}, TypeError, "got dict"),
        ((torch.ones(3, 4, N_IN), 1, 2, 3), TypeError, r"got \(Tensor, int, int, int\)"),
        (torch.ones(()), ValueError, r"must have axes for time and batch and not be empty, got shape \(\)"),
        (torch.ones(4), ValueError, r"got shape \(4,\)"),
        (torch.ones(3, 0, N_IN), ValueError, r"got shape \(3, 0, 7\)"),
        (torch.full((3, 4, N_IN), torch.nan), ValueError, "x must be finite, got NaN or infinity"),
        (torch.ones(3, 4, N_IN, dtype=torch.complex64), TypeError, "x must be real, got torch.complex64"),
        ([], ValueError, "at least one batch, got none"),
        ((torch.ones(3, 4, N_IN), [0, 1, 2, 0]), TypeError, "y must be a torch.Tensor, got list: torch.tensor makes"),
        ((torch.ones(3, 4, N_IN), labels(9)), ValueError, r"y must be of 4 samples, \(4,\) .* got \(9,\)"),
        ((torch.ones(3, 4, N_IN), labels(3)), ValueError, r"x \(3, 4, 7\) looks batch first, .* give x.transpose\(0, 1\)"),
        ((torch.ones(3, 4, N_IN), labels(4), torch.ones(3, 4)), ValueError, r"mask must be bool \(3, 4\), got torch.float32"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("ours", [True, False])
def test_an_input_of_another_kind_is_refused_with_what_came(x, error, message, ours):
    net = Network([LIF(N_IN, N)], CLASSES) if ours else Tutorial()
    with pytest.raises(error, match=message):
        prepare(net, x)


@pytest.mark.parametrize("over_time", [False, True])
def test_a_layer_that_cannot_be_wrapped_is_named_whatever_x_is(over_time):
    from spikingjelly.activation_based import functional, layer, neuron

    def lapicque() -> nn.Module:
        return snn.Lapicque(C=5, R=1, time_step=1, init_hidden=True)

    net, name = nn.Sequential(nn.Linear(N_IN, N), lapicque(), nn.Linear(N, CLASSES), lapicque()), "Lapicque"
    if over_time:
        net = nn.Sequential(layer.Linear(N_IN, N), neuron.KLIFNode(), layer.Linear(N, CLASSES), neuron.LIFNode())
        functional.set_step_mode(net, "m")
        name = "KLIFNode"
    with pytest.raises(TypeError, match=f"{name} cannot be wrapped: only"):
        prepare(net, sequence(), labels())


def test_of_a_module_that_reads_batch_first_an_x_that_is_time_first_is_refused_with_its_own_shape():
    net, x = Tutorial(batch_first=True), torch.ones(9, 4, N_IN)
    wanted = r"x \(9, 4, 7\) looks time first, as there are targets of 4 samples, but net reads \(B, T, \.\.\.\)"
    with pytest.raises(ValueError, match=wanted):
        prepare(net, x, labels(4))
    assert prepare(net, x, labels(4), turn=True).x.shape == (9, 4, N_IN)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_integers_into_a_module_of_floats_are_refused(dtype):
    with pytest.raises(TypeError, match=rf"x must be torch.float32, .*got {dtype}: give x.float\(\)"):
        prepare(Tutorial(), torch.full((3, 4, N_IN), 2, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool])
def test_spikes_are_taken_as_floats_and_bytes_of_a_loader_too(dtype):
    net = Tutorial()
    spikes = torch.rand(STEPS, BATCH, N_IN) < 0.3
    assert torch.equal(prepare(net, spikes.to(dtype)).x, spikes.float())
    counts = 3 * spikes.to(torch.uint8)

    def itself(items: list) -> tuple[Tensor, Tensor]:
        return counts, labels()

    loader = DataLoader(TensorDataset(torch.arange(BATCH)), batch_size=BATCH, collate_fn=itself)
    assert torch.equal(prepare(net, loader).x, counts.float())
    (batch,) = prepare_batches(net, loader).batches
    assert torch.equal(batch.x, counts.float())


def test_a_loader_of_our_own_spikes_goes_into_every_function():
    spikes = SpikeLatencyMNIST.embedded("train")[:8]
    loader = DataLoader(spikes, batch_size=8, collate_fn=collate)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(784, 16), snn.Leaky(0.9, init_hidden=True), nn.Linear(16, 10))
    net.append(snn.Leaky(0.9, init_hidden=True, output=True))
    assert radius_profile(net, loader, steps=2).time.isfinite().all()
    Monitor(net, next(iter(loader)), loss="count")
    diagnose(net, loader, loss="count", samples=1, steps=1)
    initialize(net, loader)
    pretrain(net, loader, max_steps=1, steps=2, samples=2, progress=False)


def test_what_is_no_batch_is_named_by_what_it_is_also_with_targets():
    x = sequence()
    for given, wanted in (({"x": x}, "got dict"), (x.numpy(), "got ndarray: torch.from_numpy makes it one")):
        with pytest.raises(TypeError, match=wanted):
            prepare(Tutorial(), given, labels())
    for function in (diagnose, initialize, radius_profile, pretrain, Monitor, try_cures):
        with pytest.raises(TypeError, match=r"net must be a torch.nn.Module or a list of modules, got 'net'"):
            function("net", x)


def test_missing_and_doubled_targets_and_what_is_no_module_are_refused():
    net, x = Tutorial(), sequence()
    with pytest.raises(ValueError, match="targets are needed"):
        prepare(net, x, needs_targets=True)
    with pytest.raises(ValueError, match="targets are given twice"):
        prepare(net, (x, labels()), labels())
    with pytest.raises(ValueError, match="y is for one batch x, but x is a list"):
        prepare(net, [x], labels())
    with pytest.raises(TypeError, match=r"net must be a torch.nn.Module or a list of modules"):
        prepare([torch.relu], x)


def test_an_input_of_one_step_is_no_sequence():
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, N), snn.Leaky(beta=0.9, init_hidden=True))
    for x in (torch.rand(BATCH, 36), torch.rand(BATCH, 1, 6, 6)):
        with pytest.raises(ValueError, match=r"a call of net is one step, and so is x .*x.expand\(25, \*x.shape\)"):
            prepare(net, x)


def test_what_the_module_itself_does_with_x_is_told_as_by_wrap():
    class Skips(Tutorial):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return super().forward(torch.relu(x - 1))

    with pytest.raises(ValueError, match=r"between the input and lif1 \(Leaky\) forward does something else"):
        prepare(Skips(), sequence())


def test_an_input_whose_axes_are_swapped_is_turned_where_that_is_asked_for():
    for net in (Tutorial(), Network([LIF(N_IN, N)], CLASSES)):
        found = prepare(net, sequence().transpose(0, 1), labels(), turn=True)
        assert found.x.shape == (STEPS, BATCH, N_IN)
        assert found.turned.startswith("x (5, 12, 7) looks batch first")


# ---------------------------------------------------------------- nothing changes


def everything(net: nn.Module) -> dict[str, object]:
    """All that a module holds, copied, and the states of all generators of random numbers."""
    held: dict[str, object] = {}

    def take(name: str, value: object) -> None:
        if isinstance(value, Tensor):
            grad = value.grad if value.is_leaf else value.grad_fn
            held[name] = (id(value), value.requires_grad, grad, value.detach().clone())
        elif isinstance(value, nn.Module | type) or callable(value):
            held[name] = id(value)
        elif isinstance(value, dict):
            held[f"{name} keys"] = list(value)
            for key, inner in value.items():
                take(f"{name}.{key}", inner)
        elif isinstance(value, list | tuple | set):
            held[f"{name} length"] = len(value)
            for i, inner in enumerate(value):
                take(f"{name}.{i}", inner)
        else:
            held[name] = copy.deepcopy(value)

    for name, part in net.named_modules():
        take(name, vars(part))
    take("numpy", np.random.get_state()[1].tolist())
    take("python", random.getstate())
    take("torch", torch.get_rng_state().tolist())
    return held


def assert_same(before: dict[str, object], now: dict[str, object]) -> None:
    assert now.keys() == before.keys()
    for name, value in before.items():
        if isinstance(value, tuple) and len(value) == 4 and isinstance(value[3], Tensor):
            assert now[name][:3] == value[:3], name
            assert torch.equal(now[name][3], value[3]), name
        else:
            assert now[name] == value, name


@pytest.mark.parametrize("name", CASES)
def test_nothing_in_the_module_changes(name):
    """Not its hidden states, which a run before has left, either."""
    case = CASES[name]
    net, x = case.make(), case.x()
    run_by_its_user(net, x, "one step a call" in case.layout)
    net.train()
    next(net.children(), net).eval()
    before = everything(net)
    prepare(net, DataLoader(TensorDataset(x), batch_size=len(x)))
    assert_same(before, everything(net))


def test_a_module_that_is_wrapped_again_is_as_it_was_wrapped_first():
    net, x = Tutorial(), sequence()
    first, second = prepare(net, x), prepare(net, x)
    assert first.network is not second.network
    assert first.network.cells[0].layer is second.network.cells[0].layer
    assert torch.equal(first.network.eval()(first.x), second.network.eval()(second.x))


@pytest.mark.parametrize("by_batch_sampler", [False, True])
def test_looking_at_a_loader_leaves_its_own_generator_where_it_was(by_batch_sampler: bool):
    def order(looks: bool) -> list[float]:
        draw = torch.Generator().manual_seed(3)
        data = TensorDataset(torch.arange(24.0)[:, None, None].expand(24, 5, 2), torch.zeros(24))
        if by_batch_sampler:
            sampler = BatchSampler(RandomSampler(data, generator=draw), 8, False)
            loader = DataLoader(data, batch_sampler=sampler)
        else:
            loader = DataLoader(data, batch_size=8, shuffle=True, generator=draw)
        if looks:
            some_batches(loader, 1)
        return next(iter(loader))[0][:, 0, 0].tolist()

    assert order(looks=True) == order(looks=False)


class Skip(nn.Module):
    """A layer with a skip around it."""

    def __init__(self, linear: nn.Module, neuron: nn.Module) -> None:
        super().__init__()
        self.linear = linear
        self.neuron = neuron

    def forward(self, x: Tensor) -> Tensor:
        return x + self.neuron(self.linear(x))


def of_snntorch(kind: str) -> nn.Sequential:
    first, second = (snn.Leaky(0.9, init_hidden=True) for _ in range(2))
    if kind == "hook":
        second.register_forward_hook(lambda module, args, out: 2 * out)
    upper: nn.Module = nn.Sequential(nn.Linear(24, 24), first if kind == "twice" else second)
    if kind == "skip":
        upper = Skip(*upper)
    return nn.Sequential(nn.Linear(20, 24), first, upper, nn.Linear(24, 10))


def of_spikingjelly(kind: str) -> nn.Sequential:
    net = nn.Sequential(jelly.Linear(20, 24), neuron.LIFNode(), Skip(jelly.Linear(24, 24), neuron.LIFNode()))
    functional.set_step_mode(net, kind)
    return net


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (of_snntorch, "skip"),
        (of_snntorch, "twice"),
        (of_snntorch, "hook"),
        (of_spikingjelly, "s"),
        (of_spikingjelly, "m"),
    ],
)
@pytest.mark.parametrize("call", [initialize, diagnose, radius_profile])
def test_a_sequential_that_would_be_another_network_is_refused(make: Any, kind: str, call: Any):
    net = make(kind)
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(ValueError, match=r"forward|used twice|hook"):
        call(net, (torch.rand(15, 16, 20) < 0.2).float())
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


@pytest.mark.parametrize("between", [[], [nn.LazyBatchNorm1d]], ids=["parameters alone", "buffers, too"])
def test_a_lazy_layer_is_built_as_by_its_own_first_call(between):
    def network() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(
            nn.LazyLinear(N),
            *[module() for module in between],
            snn.Leaky(0.9, init_hidden=True),
            nn.LazyLinear(CLASSES),
            snn.Leaky(0.9, init_hidden=True),
        )

    net = network()
    own = network()
    prepare(net, torch.rand(STEPS, BATCH, N_IN), labels())
    own(torch.rand(BATCH, N_IN))
    assert str(net) == str(own)
    assert [p.shape for p in net.parameters()] == [p.shape for p in own.parameters()]


def test_an_error_leaves_lazy_layers_as_they_were():
    net = nn.Sequential(nn.LazyLinear(N), nn.ReLU(), nn.Linear(N, CLASSES))  # no neurons
    before = str(net)
    for call in (
        lambda: prepare(net, torch.rand(STEPS, BATCH, N_IN)),
        lambda: wrap(net, torch.rand(STEPS, BATCH, N_IN)),
    ):
        with pytest.raises(ValueError, match="no recurrent layer"):
            call()
        assert str(net) == before and is_lazy(next(net.parameters()))
