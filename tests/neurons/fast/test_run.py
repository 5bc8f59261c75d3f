"""The loop of spiking layers, its reverse pass and its second derivative, against the plain
step."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from neurolsc import LIF, ALIFPlus, ALIFPlusMinus, Cell, Network, NetworkState, surrogate
from neurolsc.neurons.fast import chunks, entries, function, on_cpu
from neurolsc.neurons.spiking import ALIF, SpikingCell

pytestmark = pytest.mark.usefixtures("float64")

ROUTES = {
    "by events, few steps at once": (1, 1.0, 3, True),
    "by products, many": (10**12, 0.0, 1024, True),
    "by now the one, now the other": (1, 0.15, 12, True),
    "as on other devices": (10**12, 0.0, 12, False),
}
SURROGATES = [getattr(surrogate, name) for name in surrogate.__all__ if name != "Surrogate"]


@contextmanager
def plain_steps() -> Iterator[None]:
    """Spiking cells run as cells do that have no loop of their own."""
    with pytest.MonkeyPatch.context() as patch:
        for kind in (LIF, ALIF):
            patch.setattr(kind, "run_at_once", Cell.run_at_once)
        yield


@pytest.fixture(params=list(ROUTES))
def route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ways of making products, whatever the sizes, by a CPU's kernels and without."""
    smallest, density, rows, compiled = ROUTES[request.param]
    monkeypatch.setattr(on_cpu, "suits", lambda _: compiled)
    monkeypatch.setattr(entries, "SMALLEST", smallest)
    monkeypatch.setattr(entries, "DENSITY", density)
    monkeypatch.setattr(chunks, "ROWS", rows)
    monkeypatch.setattr(chunks, "SLOPES", 50)  # those of two steps


def small(kind: type[SpikingCell], *, layer_delay: int = 1, **settings: Any) -> Network:
    """Two layers that fire."""
    torch.manual_seed(0)
    cells = [kind(12, 8, tau_v=2.0, **settings), kind(8, 6, tau_v=1.0, **settings)]
    for cell in cells:
        cell.b_v.normal_(0, 0.1)
        with torch.no_grad():
            cell.w_in.mul_(5)
            cell.w_rec.mul_(2)
    return Network(cells, 3, layer_delay=layer_delay)


def inputs(steps: int = 7, batch: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    amplitude = torch.rand(steps, batch, 12, generator=generator) + 0.5
    return amplitude * (torch.rand(steps, batch, 12, generator=generator) < 0.4)


def started(network: Network) -> NetworkState:
    """A state in the middle of a run, to be differentiated by."""
    states = network.run(inputs(5)).states.detach()
    for leaf in leaves_of(states):
        leaf.requires_grad_()
    return states


def leaves_of(states: NetworkState) -> list[Tensor]:
    return [*(leaf for layer in states.layers for leaf in layer), *([] if states.x is None else [states.x])]


def outcome(
    network: Network, x: Tensor, states: NetworkState | None = None, mask: Tensor | None = None, *, twice: bool = False
) -> tuple[list[Tensor], list[Tensor | None]]:
    """Spikes, logits and last states, and the gradients by all that has one of a loss that sees all
    of them."""
    run = network.run(x, states, mask=mask)
    ends = [leaf for layer in run.states.layers for leaf in layer]
    weights = (torch.linspace(-1, 1, z.numel()).view_as(z) for z in run.spikes)
    loss = (
        run.logits.square().sum()
        + sum((z * w).sum() for z, w in zip(run.spikes, weights, strict=True))
        + sum((e**3).sum() for e in ends)
    )
    by = [t for t in (*network.parameters(), x, *(leaves_of(states) if states else [])) if t.requires_grad]
    gradients = torch.autograd.grad(loss, by, create_graph=twice, allow_unused=True)
    if twice:
        again = sum(g.square().sum() for g in gradients if g is not None and g.requires_grad)
        gradients += torch.autograd.grad(again, by, allow_unused=True)
    return [*run.spikes, run.logits, *leaves_of(run.states)], list(gradients)


def assert_equal_to_plain_steps(
    run: Callable[[], tuple[list[Tensor], list[Tensor | None]]], rtol: float = 1e-10
) -> None:
    values, gradients = run()
    with plain_steps():
        plain_values, plain_gradients = run()
    for layer, plain in zip(values[:2], plain_values[:2], strict=True):
        assert torch.equal(layer, plain)
        assert 0.01 < layer.mean() < 0.9
    for one, plain in zip([*values, *gradients], [*plain_values, *plain_gradients], strict=True):
        zero = [t is None or not t.any() for t in (one, plain)]
        assert zero[0] == zero[1]
        if one is not None and plain is not None:
            assert (one - plain).norm() <= rtol * plain.norm()


@pytest.mark.parametrize("layer_delay", [0, 1])
@pytest.mark.parametrize("reset_gradient", [False, True])
@pytest.mark.parametrize("reset", ["subtract", "static", "zero"])
@pytest.mark.parametrize("kind", [LIF, ALIFPlus, ALIFPlusMinus])
def test_a_run_is_its_plain_steps(kind, reset, reset_gradient, layer_delay, route):
    network = small(kind, layer_delay=layer_delay, reset=reset, reset_gradient=reset_gradient)
    x, states = inputs().requires_grad_(), started(network)
    assert_equal_to_plain_steps(lambda: outcome(network, x, states))


@pytest.mark.parametrize("learnable", [False, True])
@pytest.mark.parametrize("spike", SURROGATES)
def test_with_every_surrogate(spike, learnable, route):
    network = small(ALIFPlus, spike=spike(torch.linspace(0.2, 0.8, 8), 1.5, learnable=learnable))
    network.cells[1].spike = spike(0.7, learnable=learnable)
    x = inputs().requires_grad_()
    assert_equal_to_plain_steps(lambda: outcome(network, x))


@pytest.mark.parametrize("kind", [LIF, ALIFPlus])
def test_with_masks_of_any_length(kind, route):
    network = small(kind)
    for lengths in ([7, 4, 0], [5, 3, 5]):
        mask = torch.arange(7).unsqueeze(1) < torch.tensor(lengths)
        x, states = inputs().requires_grad_(), started(network)
        values, _ = outcome(network, x, states, mask)
        assert not values[0][~mask].any()
        with plain_steps():
            moments = [m.after for m in network.records(x, states, mask=mask)]
        torch.testing.assert_close(values[3:], leaves_of(moments[-1]), rtol=1e-10, atol=0)
        assert_equal_to_plain_steps(lambda x=x, s=states, m=mask: outcome(network, x, s, m))


@pytest.mark.parametrize("reset", ["subtract", "zero"])
@pytest.mark.parametrize("kind", [LIF, ALIFPlus])
def test_second_derivatives(kind, reset):
    network = small(kind, reset=reset, reset_gradient=True, spike=surrogate.Logistic(learnable=True))
    x, states = inputs().requires_grad_(), started(network)
    assert_equal_to_plain_steps(lambda: outcome(network, x, states, twice=True))


def test_in_single_precision(route):
    network, x = small(ALIFPlus).float(), inputs().float()
    assert_equal_to_plain_steps(lambda: outcome(network, x), rtol=1e-5)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("layer_delay", [0, 1])
def test_two_parts_have_the_gradients_of_the_whole(layer_delay, recompute, route):
    network, x = small(ALIFPlus, layer_delay=layer_delay), inputs(11)
    network.recompute = recompute
    whole = network.run(x)
    first = network.run(x[:4])
    second = network.run(x[4:], first.states)
    assert whole.spikes[1].any()
    gradients = []
    for parts, last in (([whole], whole), ([first, second], second)):
        assert torch.equal(torch.cat([run.spikes[1] for run in parts]), whole.spikes[1])
        loss = sum(run.logits.square().sum() for run in parts) + last.states.layers[0].theta.square().sum()
        gradients.append(torch.autograd.grad(loss, list(network.parameters())))
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


def test_parameters_that_are_held_get_no_gradient_and_change_no_other(route):
    network = small(ALIFPlus)
    _, free = outcome(network, inputs())
    names = [name for name, _ in network.named_parameters()]
    for name, parameter in network.named_parameters():
        parameter.requires_grad_("w_in" in name or "adaptation" in name)
    _, held = outcome(network, inputs())
    wanted = [g for name, g in zip(names, free, strict=True) if "w_in" in name or "adaptation" in name]
    torch.testing.assert_close(held, wanted)
    assert len(held) == 4


def test_a_threshold_that_is_a_parameter_has_its_gradient(route):
    network = small(LIF, reset_gradient=True)
    for cell in network.cells:
        theta = nn.Parameter(cell._buffers.pop("theta"))
        cell.register_parameter("theta", theta)
    assert_equal_to_plain_steps(lambda: outcome(network, inputs()))


def scans(run: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> int:
    """How often a run takes the loop."""
    calls, real = [], function.forward
    with monkeypatch.context() as patch:
        patch.setattr(function, "forward", lambda *args: (calls.append(1), real(*args))[1])
        run()
    return len(calls)


class Slower(LIF):
    def update(self, x, z, state):
        return super().update(x / 2, z, state)


class Softer(surrogate.FastSigmoid):
    def forward(self, v: Tensor) -> Tensor:
        return super().forward(v) / 2


def hooked() -> surrogate.Surrogate:
    spike = surrogate.FastSigmoid()
    spike.register_forward_hook(lambda module, args, z: z / 2)
    return spike


def test_what_the_loop_does_not_know_takes_plain_steps(monkeypatch):
    x = inputs()
    assert scans(lambda: small(LIF)(x), monkeypatch) == 2
    for cell, settings in (
        (Slower, {}),
        (LIF, {"spike": Softer()}),
        (LIF, {"spike": hooked()}),
        (LIF, {"spike": torch.sigmoid}),
    ):
        network = small(cell, **settings)
        assert scans(lambda n=network: n(x), monkeypatch) == 0
    network = small(ALIFPlus)
    with torch.autocast("cpu"):
        assert scans(lambda: network(x), monkeypatch) == 0


@pytest.mark.slow  # the first transformed function of a process takes torch ten seconds
def test_functions_of_torch_func_take_plain_steps(monkeypatch):
    network, x = small(ALIFPlus), inputs()
    parameters = dict(network.named_parameters())

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(network, parameters, (x,)).square().sum()

    loss(parameters).backward()
    monkeypatch.setattr(function, "forward", None)
    slope = 0.0
    for name, gradient in torch.func.grad(loss)(parameters).items():
        torch.testing.assert_close(gradient, parameters[name].grad, rtol=1e-10, atol=0)
        slope += (gradient * parameters[name]).sum()
    _, forward = torch.func.jvp(loss, (parameters,), (parameters,))
    torch.testing.assert_close(forward, slope, rtol=1e-10, atol=0)


def test_what_is_not_finite_is_seen_in_the_spikes_as_in_plain_steps():
    network = small(ALIFPlus)
    with torch.no_grad():
        network.cells[0].w_in[2, 3] = torch.nan
    z = network.run(inputs()).spikes[0]
    assert z[-1, :, 2].isnan().all()
    assert not z[..., 3].isnan().all()


def test_without_a_gradient_the_spikes_are_the_same(route):
    network, x = small(ALIFPlus), inputs()
    with torch.no_grad():
        run = network.run(x)
    torch.testing.assert_close(run.spikes, network.run(x).spikes, rtol=0, atol=0)
    assert run.spikes[1].any()
    assert not run.logits.requires_grad


@pytest.mark.parametrize("recompute", [False, True])
def test_spikes_can_be_changed_in_place_as_those_of_plain_steps(recompute):
    cell, x = small(ALIFPlus).cells[0], inputs()
    z, _ = cell.run(x, cell.initial_state(3), recompute=recompute)
    kept = z.detach().clone()
    assert not z._is_view()
    z.mul_(2)
    assert torch.equal(z, 2 * kept)
