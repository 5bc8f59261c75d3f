"""What is measured and set inside of autocast, of half precision, and under a scaler."""

import copy
from collections.abc import Callable

import pytest
import snntorch as snn
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from neurolsc import (
    Monitor,
    Network,
    diagnose,
    initialize,
    match_firing_rates,
    pretrain,
    radius_profile,
    scale_to_radius,
    spectral_radius,
    try_cures,
    wrap,
)
from neurolsc.init import LSUV, Chain, FiringRate, LSCSingular
from neurolsc.neurons.cell import CELLS
from neurolsc.stability import (
    active_surrogate_fraction,
    backward_norms,
    exponent_loss,
    lyapunov_exponents,
    neurons_below_threshold,
    parameter_gradients,
    singular_values,
    state_gradients,
    truncation_errors,
)
from tests.test_monitor import C, N, Norse, SnnTorch, SpikingJelly, batch, own, slow

EVERY_LIBRARY = [own, *slow(SnnTorch, Norse, SpikingJelly)]
HALF = [torch.bfloat16, torch.float16]


def autocast() -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16)


def close(found: object, wanted: object) -> None:
    """Equal to rounding; texts and words are equal."""
    if isinstance(wanted, Tensor | float):
        torch.testing.assert_close(found, wanted)
    elif isinstance(wanted, dict):
        assert found.keys() == wanted.keys()  # type: ignore[attr-defined]
        for name, value in wanted.items():
            close(found[name], value)  # type: ignore[index]
    elif isinstance(wanted, list | tuple):
        for one, other in zip(found, wanted, strict=True):  # type: ignore[call-overload]
            close(one, other)
    else:
        assert found == wanted


def rows(net: nn.Module) -> list[dict[str, float]]:
    """Of a monitor, before and after an update."""
    monitor = Monitor(net, *batch(0), every=1)
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(1.01)
    monitor.step(1.0)
    return monitor.rows


def diagnosed(net: nn.Module) -> dict[str, object]:
    return diagnose(net, *batch(0), lr=1e-3, samples=2, steps=3).to_dict()


def radii(net: nn.Module) -> list[Tensor]:
    profile = radius_profile(net, batch(0)[0], steps=3)
    return [profile.time, profile.depth]


@pytest.mark.parametrize("make", EVERY_LIBRARY)
@pytest.mark.parametrize("measure", [radii, diagnosed, rows])
def test_a_module_measured_inside_of_autocast_is_what_it_is_outside(make, measure):
    net = make()
    wanted = measure(copy.deepcopy(net))
    with autocast():
        found = measure(net)
    close(found, wanted)


SETTING: dict[str, Callable[[nn.Module, Tensor], object]] = {
    "initialize": initialize,
    "pretrain": lambda net, x: pretrain(net, x, max_steps=2, steps=2, samples=2, progress=False),
    "scale_to_radius": lambda net, x: scale_to_radius(net, x, progress=False),
    "match_firing_rates": lambda net, x: match_firing_rates(net, x, [0.1, 0.1, 0.1][: 2 + isinstance(net, SnnTorch)]),
    "LSUV": LSUV().apply,
    "chain": Chain((LSUV(), FiringRate(0.1))).apply,
    "LSCSingular": LSCSingular().apply,
}


@pytest.mark.parametrize("how", SETTING)
@pytest.mark.parametrize("make", [own, *slow(SnnTorch)])
def test_what_is_set_inside_of_autocast_is_what_is_set_outside(make, how):
    x, _ = batch(0)
    net = make()
    other = copy.deepcopy(net)
    SETTING[how](other, x)
    before = copy.deepcopy(net.state_dict())
    with autocast():
        SETTING[how](net, x)
    close(net.state_dict(), other.state_dict())
    assert not all(map(torch.equal, net.state_dict().values(), before.values()))


@pytest.mark.filterwarnings("error")
def test_a_hidden_state_of_half_precision_stays_in_the_graph_of_its_caller():
    def gradients(measure: Callable[[nn.Module], object]) -> list[Tensor | None]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(N, 8), snn.Leaky(0.9, init_hidden=True, reset_mechanism="none"), nn.Linear(8, C))
        with autocast():
            loss = torch.stack([net(x) for x in batch(0)[0]]).square().mean()
            state = net[1].mem
            assert state.dtype == torch.bfloat16 and not state.is_leaf
            before = state.detach().clone()
            measure(net)
        assert net[1].mem is state and torch.equal(state, before)
        loss.backward()
        return [p.grad for p in net.parameters()]

    wanted = gradients(lambda net: None)
    for measure in (radii, lambda net: Monitor(net, *batch(0), every=1).step(1.0)):
        close(gradients(measure), wanted)


def test_autocast_goes_on_with_the_weights_that_were_set_in_it():
    net = SnnTorch()
    x, _ = batch(0)
    with autocast():
        net(x)  # it keeps the weights in bfloat16 from here on
        initialize(net, x)
        inside = net(x)
        assert torch.is_autocast_enabled("cpu")
    with autocast():
        assert torch.equal(net(x), inside)


def test_functions_of_networks_and_tensors_leave_autocast_too():
    net = own()
    x, y = batch(0)

    def loss(out: Tensor) -> Tensor:
        return cross_entropy(out.float().mean(0), y)

    def measured() -> list[object]:
        gradients = parameter_gradients(net, x, loss)
        losses.append(exponent_loss(net, x))
        return [
            *(lyapunov_exponents(net, x), *singular_values(net, x, steps=3), state_gradients(net, x, loss)),
            *(active_surrogate_fraction(net, x), gradients, spectral_radius(net.cells[0].w_rec)),
            *(backward_norms(net, x), [part.radius for part in neurons_below_threshold(net).values()]),
            str(truncation_errors(net, x, loss)),
            str(try_cures(net, x, y, lr=1e-2, updates=2)),
        ]

    losses: list[Tensor] = []
    wanted = measured()
    with autocast():
        close(measured(), wanted)
    close(*(torch.autograd.grad(flossed, net.cells[1].w_rec) for flossed in losses))


# ---- half precision


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("make", EVERY_LIBRARY)
def test_a_network_of_half_precision_is_measured_as_in_float32_and_stays(make, dtype):
    half = make().to(dtype)
    full = copy.deepcopy(half).float()
    before = {name: (value.data_ptr(), value.clone()) for name, value in half.state_dict().items()}
    for p in half.parameters():
        p.grad = torch.ones_like(p)
    close(radii(half), radii(full))
    close(diagnosed(half), diagnosed(full))
    for name, value in half.state_dict().items():
        at, content = before[name]
        assert value.data_ptr() == at, name
        assert value.dtype == content.dtype
        assert torch.equal(value, content)
    assert all(p.grad.dtype == dtype and p.grad.all() for p in half.parameters())


@pytest.mark.parametrize("how", SETTING)
@pytest.mark.parametrize("make", [own, *slow(SnnTorch)])
def test_a_network_of_half_precision_is_set_in_its_own_dtype(make, how):
    x, _ = batch(0)
    half = make().bfloat16()
    full = copy.deepcopy(half).float()
    SETTING[how](half, x)
    SETTING[how](full, x)
    for name, value in full.state_dict().items():
        found = half.state_dict()[name]
        assert found.dtype == (torch.bfloat16 if value.is_floating_point() else value.dtype), name
        assert torch.equal(found, value.to(found.dtype)), name


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("make", [SnnTorch, Norse, SpikingJelly])
def test_wrap_takes_half_precision(make, dtype):
    x = batch(0)[0]
    half = make().to(dtype)
    for given in (x, x.to(dtype)):
        network = wrap(half, given)
        close(radii(network), radii(copy.deepcopy(half).float()))
    with pytest.raises(TypeError, match=r"cannot read an x of torch.float64 .*: its weights are torch.float32"):
        wrap(make(), x.double())


def test_a_monitor_of_half_precision_has_rows_of_float32():
    half = own().bfloat16()
    full = copy.deepcopy(half).float()
    monitors = [Monitor(net, *batch(0), every=1) for net in (half, full)]
    for net, monitor in zip((half, full), monitors, strict=True):
        with torch.no_grad():
            for p in net.parameters():
                p.mul_(2)
        monitor.step(1.0)
    close(monitors[0].rows, monitors[1].rows)
    assert "gradient_2" in monitors[0].rows[1]
    assert half.cells[0].w_in.dtype == torch.bfloat16


# ---- training under autocast


@pytest.mark.parametrize("name", sorted(CELLS))
@pytest.mark.parametrize("cut", [False, True], ids=["whole", "lengths"])
def test_cells_train_under_autocast_with_their_state_in_float32(name, cut):
    net = Network([CELLS[name](12, 8), CELLS[name](8, 8)], 4)
    x, y = batch(0)
    x = 300 * x  # all of them fire
    mask = torch.arange(len(x))[:, None] < 5 + y if cut else None
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(3):
        with autocast():
            run = net.run(x, mask=mask)
            *_, record = net.records(x[:2])
            loss = cross_entropy(run.logits.mean(0), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    at_rest = net.initial_states(1)
    for states in (run.states, record.after):
        for layer, rest in zip(states.layers, at_rest.layers, strict=True):
            assert [leaf.dtype for leaf in layer] == [leaf.dtype for leaf in rest]
    assert run.spikes[0].any()
    for p in net.cells[0].parameters():
        assert p.grad is not None
        assert p.grad.isfinite().all()
        assert p.grad.any() or p.ndim < 2


@pytest.mark.parametrize("name", ["LIF", "ALIFPlus"])
def test_layers_over_all_steps_spike_under_autocast_as_outside(name):
    torch.manual_seed(2)
    cell = CELLS[name](12, 16)
    x = batch(0)[0]
    before = nn.Linear(12, 12)
    wanted, _ = cell.run(before(x).bfloat16(), cell.initial_state(x.shape[1]))
    with autocast():
        found, _ = cell.run(before(x).bfloat16(), cell.initial_state(x.shape[1]))
        grad = torch.autograd.grad(found.sum(), cell.w_in)[0]
    assert wanted.any()
    assert found.dtype == grad.dtype == torch.float32
    assert (found != wanted).float().mean() < 0.01  # by the linear layer, not by the cell


# ---- a scaler


def scaled(net: Network, scaler: torch.amp.GradScaler, updates: int, *, bad: tuple[int, ...] = (), every: int = 5):
    """A training under a scaler; some updates have a gradient, and a loss, that is infinite."""
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)
    monitor = Monitor(net, *batch(100), loss="membrane", every=every)
    for update in range(1, updates + 1):
        x, y = batch(update)
        loss = cross_entropy(net(x).mean(0), y)
        if update in bad:
            loss = loss * torch.inf
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        monitor.step(loss, scaler=scaler)
    return monitor


def test_rows_under_a_scaler_have_no_scale():
    torch.manual_seed(0)
    net = own()
    watched = scaled(copy.deepcopy(net), torch.amp.GradScaler("cpu", init_scale=2.0**20), 10)
    plain = scaled(copy.deepcopy(net), torch.amp.GradScaler("cpu", enabled=False), 10)
    for found, wanted in zip(watched.rows, plain.rows, strict=True):
        named = {"scale", "skipped"}
        close({k: v for k, v in found.items() if k not in named}, {k: v for k, v in wanted.items() if k not in named})
    assert watched.rows[-1]["scale"] == 2.0**20
    assert watched.rows[-1]["skipped"] == 0


def test_an_update_that_the_scaler_skipped_is_no_finding():
    monitor = scaled(own(), torch.amp.GradScaler("cpu"), 20, bad=(1, 8, 10))
    assert [row.get("skipped", 0) for row in monitor.rows] == [0, 1, 2, 0, 0]
    assert all("loss" in row for row in monitor.rows[1:])
    assert "change_1" not in monitor.rows[2]  # the last update before that row was skipped
    assert "change_1" in monitor.rows[3]
    assert monitor.findings == []


def test_a_scaler_that_skips_everything_is_said_once():
    monitor = scaled(own(), torch.amp.GradScaler("cpu"), 30, bad=tuple(range(3, 31)))
    assert [event.update for event in monitor.findings] == [20]
    assert "the scaler has skipped all 5 updates since the last row, at a scale of 2.5e-01" in monitor.findings[0].text
