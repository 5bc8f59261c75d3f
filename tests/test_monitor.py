"""The monitor: faults that are planted while small networks are trained, and what it leaves as it was."""

import copy
import json
import math
from collections.abc import Callable
from itertools import pairwise

import norse.torch as norse
import pytest
import snntorch as snn
import torch
from click.testing import CliRunner
from snntorch import surrogate
from spikingjelly.activation_based import functional, neuron
from spikingjelly.activation_based import surrogate as sj_surrogate
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from neurolsc import LIF, Cell, Monitor, Network, train
from neurolsc.cli import app
from neurolsc.monitor import Event
from neurolsc.monitor.rules import Course, loss_rises
from neurolsc.neurons import HiddenState
from neurolsc.surrogate import FastSigmoid
from neurolsc.tasks import Classification
from tests.patterns import Patterns, small_network, stopped, succeed

T, B, N, C = 16, 24, 12, 4
EVERY, PLANTED, UPDATES = 10, 60, 120


def batch(seed: int) -> tuple[Tensor, Tensor]:
    """Class c spikes more in channels 3c to 3c + 2."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(B) % C
    rate = torch.full((B, N), 0.1)
    for k in range(3):
        rate[torch.arange(B), 3 * y + k] = 0.6
    return (torch.rand(T, B, N, generator=generator) < rate).float(), y


class SnnTorch(nn.Module):
    """Two Leaky, or two RLeaky, and an output Leaky whose spikes are counted."""

    def __init__(self, recurrent: bool = False) -> None:
        super().__init__()
        grad = surrogate.atan()
        widths = [N, 16, 16, C]
        self.fc = nn.ModuleList([nn.Linear(a, b) for a, b in pairwise(widths)])
        if recurrent:
            hidden = [snn.RLeaky(0.9, linear_features=16, spike_grad=grad) for _ in "ab"]
        else:
            hidden = [snn.Leaky(0.9, spike_grad=grad) for _ in "ab"]
        self.lif = nn.ModuleList([*hidden, snn.Leaky(0.9, spike_grad=grad)])

    def forward(self, x: Tensor) -> Tensor:
        states = [layer.init_rleaky() if isinstance(layer, snn.RLeaky) else (layer.init_leaky(),) for layer in self.lif]
        sent = []
        for z in x:
            for i, (fc, layer) in enumerate(zip(self.fc, self.lif, strict=True)):
                z, *rest = layer(fc(z), *states[i])
                states[i] = (z, *rest) if isinstance(layer, snn.RLeaky) else tuple(rest)
            sent.append(z)
        return torch.stack(sent)


class Norse(nn.Module):
    """Two LIFCell and an LICell."""

    def __init__(self) -> None:
        super().__init__()
        p = norse.LIFParameters(method="super", alpha=torch.tensor(10.0))
        self.layers = norse.SequentialState(
            nn.Linear(N, 16), norse.LIFCell(p), nn.Linear(16, 16), norse.LIFCell(p), nn.Linear(16, C), norse.LICell()
        )
        with torch.no_grad():
            for layer in (self.layers[0], self.layers[2]):
                layer.weight.mul_(8)

    def forward(self, x: Tensor) -> Tensor:
        state, sent = None, []
        for z in x:
            out, state = self.layers(z, state)
            sent.append(out)
        return torch.stack(sent)


class SpikingJelly(nn.Module):
    """Three LIFNode."""

    def __init__(self) -> None:
        super().__init__()

        def lif() -> neuron.LIFNode:
            return neuron.LIFNode(tau=2.0, surrogate_function=sj_surrogate.ATan(), detach_reset=True)

        self.layers = nn.Sequential(nn.Linear(N, 16), lif(), nn.Linear(16, 16), lif(), nn.Linear(16, C), lif())
        with torch.no_grad():
            for layer in self.layers[::2]:
                layer.weight.mul_(5)

    def forward(self, x: Tensor) -> Tensor:
        functional.reset_net(self)
        return torch.stack([self.layers(z) for z in x])


def own() -> Network:
    """Two LIF and a linear readout."""
    return Network([LIF(N, 16), LIF(16, 16, threshold=0.5)], C)


def recurrent() -> SnnTorch:
    return SnnTorch(recurrent=True)


def slow(*libraries: Callable[[], nn.Module]) -> list:
    """Networks of libraries, whose loops take seconds."""
    return [pytest.param(make, marks=pytest.mark.long) for make in libraries]


NETWORKS = [own, *slow(SnnTorch, Norse, SpikingJelly)]
LOSSES = {SnnTorch: "count", recurrent: "count", SpikingJelly: "count", Norse: "membrane", own: "membrane"}
Plant = Callable[[nn.Module, torch.optim.Optimizer], None]
Feed = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def trained(
    make: Callable[[], nn.Module],
    *,
    plant: Plant | None = None,
    feed: Feed | None = None,
    lr: float = 1e-2,
    updates: int = UPDATES,
    **settings,
) -> Monitor:
    """A plain loop; at an update a fault is planted, or from it on other batches are fed."""
    net = make()
    loss_word = LOSSES[make]
    monitor = Monitor(net, *batch(10_000), loss=loss_word, every=EVERY, **settings)
    optimizer = torch.optim.Adam(net.parameters(), lr)
    for update in range(1, updates + 1):
        x, y = batch(update)
        if update == PLANTED + 1 and plant is not None:
            plant(net, optimizer)
        if update > PLANTED and feed is not None:
            x, y = feed(x, y)
        out = net(x)
        loss = cross_entropy(out.sum(0) if loss_word == "count" else out.mean(0), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.step(loss)
    return monitor


def named(monitor: Monitor, name: str, layer: int | None) -> Event:
    """The event of a kind and layer; after the fault, and the first of all."""
    assert all(PLANTED < event.update <= PLANTED + 200 for event in monitor.findings), monitor
    found = [event for event in monitor.findings if (event.name, event.layer) == (name, layer)]
    assert found, monitor
    return found[0]


# ---- planted faults


@pytest.mark.parametrize("make", [*NETWORKS, *slow(recurrent)])
def test_a_healthy_training_raises_no_finding(make):
    monitor = trained(make)
    assert monitor.findings == []
    assert monitor.rows[-1]["loss"] < 0.7 * monitor.rows[1]["loss"]


@pytest.mark.parametrize("make", NETWORKS)
def test_a_learning_rate_raised_is_a_large_step(make):
    def raise_rate(net, optimizer):
        optimizer.param_groups[0]["lr"] *= 100

    monitor = trained(make, plant=raise_rate)
    event = next(event for event in monitor.findings if event.name == "large step")
    assert event == named(monitor, "large step", event.layer)  # every layer has the rate
    assert event.update == PLANTED + EVERY
    assert f"an update moves the voltages of layer {event.layer} by" in event.text


def test_weights_that_move_as_the_layer_below_wakes_are_told_as_that():
    net = own()
    net.cells[0].theta.mul_(1e3)
    monitor = Monitor(net, *batch(10_000), loss="membrane", every=EVERY)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for update in range(1, 61):
        if update == 41:
            net.cells[0].theta.div_(1e3)
        x, y = batch(update)
        loss = cross_entropy(net(x).mean(0), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.step(loss)
    (event,) = [event for event in monitor.findings if event.layer == 2]
    assert str(event).endswith("layer 1 was silent, and fires now")


def raise_threshold(net: nn.Module, optimizer: object) -> None:
    """To fifty thresholds, in layer 2."""
    if isinstance(net, SnnTorch):
        net.lif[1].threshold.fill_(50.0)
    elif isinstance(net, Norse):
        net.layers[3].p = net.layers[3].p._replace(v_th=torch.tensor(50.0))
    elif isinstance(net, SpikingJelly):
        net.layers[3].v_threshold = 50.0
    else:
        net.cells[1].theta.fill_(50.0)


@pytest.mark.parametrize("make", NETWORKS)
def test_a_threshold_raised_is_named_when_its_layer_falls_silent(make):
    monitor = trained(make, plant=raise_threshold)
    event = named(monitor, "dead layer", 2)
    assert monitor.findings[0] == event
    assert event.text.startswith("layer 2 has fallen silent, from 0.")
    assert "its mean threshold went from" in event.text
    assert "to 50" in event.text


@pytest.mark.parametrize("make", [own, *slow(recurrent)])
def test_a_recurrence_grown_is_named_in_its_layer(make):
    def grow(net, optimizer):
        weights = net.cells[1].w_rec if isinstance(net, Network) else net.lif[1].recurrent.weight
        with torch.no_grad():
            weights.mul_(30)

    event = named(trained(make, plant=grow), "loss rises", 2)
    assert "the norm of its recurrent weights went from" in event.text


def test_a_loss_that_rises_names_what_has_changed_since_the_row_before():
    network = Network([LIF(3, 4), LIF(4, 4)], n_out=2)
    measured = [(2.0, 1.0), (1.0, 1.0), (0.5, 2.0), (1.9, 1.0)]
    rows = [
        {"update": i, "loss": loss, "probe_loss": loss, "threshold_1": theta}
        for i, (loss, theta) in enumerate(measured)
    ]
    course = Course(rows, network, 2, first_bad_loss=None, late_loss=1.9, probe_is_finite=True, seen=set())
    (sign,) = loss_rises(course)
    assert sign.cause == "in layer 1 its mean threshold went from 2 to 1"
    # the loss has recovered within the row: that the probe batch does well then says nothing of the batches
    rows[-1]["probe_loss"] = 0.26
    recovered = Course(rows, network, 2, first_bad_loss=None, late_loss=0.25, probe_is_finite=True, seen=set())
    (sign,) = loss_rises(recovered)
    assert sign.cause == "in layer 1 its mean threshold went from 2 to 1"


@pytest.mark.parametrize("make", [own, *slow(SnnTorch, SpikingJelly)])
def test_a_surrogate_narrowed_is_named_in_its_layer(make):
    def narrow(net, optimizer):
        if isinstance(net, Network):
            net.cells[1].spike = FastSigmoid(sharpness=1e5)
        elif isinstance(net, SnnTorch):
            net.lif[1].spike_grad = surrogate.fast_sigmoid(slope=1e5)
        else:
            net.layers[3].surrogate_function = sj_surrogate.ATan(alpha=1e5)

    assert "active at 0% of its voltages" in named(trained(make, plant=narrow), "narrow surrogate", 2).text


@pytest.mark.parametrize("make", NETWORKS)
def test_an_input_of_zeros_is_a_loss_of_other_batches_and_stops_the_first_weights(make):
    monitor = trained(make, feed=lambda x, y: (torch.zeros_like(x), y), updates=170)
    assert "the training batches have changed, not the network" in named(monitor, "loss rises", None).text
    assert "is their input zero?" in named(monitor, "weights stand still", 1).text


@pytest.mark.parametrize("make", NETWORKS)
def test_labels_shuffled_are_a_loss_that_rises_without_a_change_of_the_network(make):
    event = named(trained(make, feed=lambda x, y: (x, y.roll(1))), "loss rises", None)
    assert "look at inputs" in event.text
    assert "labels" in event.text


@pytest.mark.parametrize("make", NETWORKS)
def test_weights_frozen_stand_still(make):
    def freeze(net, optimizer):
        if isinstance(net, Network):
            weights = list(net.cells[1].parameters())
        else:
            weights = list((net.fc[1] if isinstance(net, SnnTorch) else net.layers[2]).parameters())
            if isinstance(net, Norse):
                weights += net.layers[3].parameters()
        for weight in weights:
            weight.requires_grad_(False)

    event = named(trained(make, plant=freeze), "weights stand still", 2)
    assert event.text.endswith("their requires_grad is False now")


def test_weights_that_the_optimizer_leaves_out_stand_still():
    def leave_out(net, optimizer):
        group = optimizer.param_groups[0]
        of_layer = set(net.cells[1].parameters())
        group["params"] = [p for p in group["params"] if p not in of_layer]

    event = named(trained(own, plant=leave_out), "weights stand still", 2)
    assert "the optimizer leaves them out" in event.text


@pytest.mark.parametrize("make", slow(SnnTorch, Norse, SpikingJelly))
def test_a_nan_in_a_batch_is_weights_that_are_not_finite(make):
    monitor = trained(make, feed=lambda x, y: (torch.full_like(x, math.nan), y))
    assert monitor.findings == [named(monitor, "not finite", 1)]
    assert "the probe batch is finite" in monitor.findings[0].text


def test_a_loss_of_nan_is_named_with_its_update_while_weights_are_finite():
    monitor = Monitor(own(), *batch(0), loss="membrane", every=10)
    for update in range(1, 21):
        monitor.step(torch.tensor(math.nan) if update == 14 else 1.0)
    assert [event.update for event in monitor.findings] == [20]
    assert "the loss of update 14 is nan, all weights are finite" in monitor.findings[0].text
    assert "loss" not in monitor.rows[-1]
    assert monitor.rows[-1]["rate_1"] > 0


def test_a_loss_of_guessing_names_the_silent_layer():
    net = own()
    net.cells[1].theta.fill_(1000.0)
    monitor = Monitor(net, *batch(0), loss="membrane", every=10)
    for _ in range(60):
        monitor.step(math.log(C))
    event = next(event for event in monitor.findings if event.name == "loss of guessing")
    assert event.layer == 2
    assert "layer 2 never fires" in event.text


def test_an_event_is_printed_once(capsys):
    monitor = trained(own, plant=raise_threshold)
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    in_one_line = " ".join(printed.split())
    for event in monitor.findings:
        assert in_one_line.count(str(event)) == 1
    assert len({(event.name, event.layer) for event in monitor.findings}) == len(monitor.findings)


# ---- what it leaves as it was


class WithDropout(nn.Module):
    """Batch norm, dropout, hidden states kept between calls, and a part in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(N, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.3)
        self.lif = snn.Leaky(0.9, init_hidden=True)
        self.out = nn.Linear(16, C)
        self.last = snn.Leaky(0.9, init_hidden=True)

    def forward(self, x: Tensor) -> Tensor:
        self.lif.reset_hidden()
        self.last.reset_hidden()
        return torch.stack([self.last(self.out(self.drop(self.lif(self.norm(self.fc(z)))))) for z in x])


def test_it_leaves_no_trace():
    def run(monitored: bool) -> tuple[nn.Module, Tensor, list[bool], list[Tensor]]:
        torch.manual_seed(3)
        net = WithDropout()
        with torch.no_grad():
            net(batch(0)[0])  # statistics, and a state
        net.out.eval()
        monitor = Monitor(net, *batch(1), loss="count", every=2) if monitored else None
        optimizer = torch.optim.Adam(net.parameters(), 1e-2)
        for update in range(6):
            x, y = batch(update)
            optimizer.zero_grad()
            cross_entropy(net(x).sum(0), y).backward()
            optimizer.step()
            if monitor is not None:
                monitor.step(1.0)
        if monitor is not None:
            assert len(monitor.rows) == 4
            assert "gradient_2" in monitor.rows[-1]
        grads = [p.grad for p in net.parameters() if p.grad is not None]
        return net, torch.rand(4), [part.training for part in net.modules()], [*grads, net.lif.mem, net.last.mem]

    (plain, numbers, modes, tensors), (watched, *others) = run(False), run(True)
    assert torch.equal(numbers, others[0])
    assert modes == others[1]
    for a, b in zip(tensors, others[2], strict=True):
        assert torch.equal(a, b)
    for name, value in plain.state_dict().items():
        assert torch.equal(value, watched.state_dict()[name]), name


# ---- rows and files


def test_a_row_has_the_numbers_of_the_network():
    net = own()
    x, y = batch(0)
    monitor = Monitor(net, x, y, loss="membrane", every=5)
    before = copy.deepcopy(net.cells[1].w_in.detach())
    for update in range(5):
        if update == 4:
            with torch.no_grad():
                net.cells[1].w_in.mul_(1.1)
        monitor.step(2.0 + update)
    row = monitor.rows[-1]
    run = net.run(x)
    assert row["update"] == 5
    assert row["loss"] == pytest.approx(4.0)
    assert row["probe_loss"] == pytest.approx(cross_entropy(run.logits.mean(0), y).item(), rel=1e-5)
    assert row["rate_2"] == pytest.approx(run.spikes[1].mean().item(), rel=1e-5)
    assert row["threshold_2"] == pytest.approx(0.5)
    assert row["weights_2"] == pytest.approx(1.1 * before.norm().item(), rel=1e-5)
    recurrence = net.cells[1].w_rec.norm().item()
    change = 0.1 * before.norm().item() / math.hypot(before.norm().item(), recurrence)
    assert row["change_2"] == pytest.approx(change, rel=1e-4)
    assert row["drift_2"] == pytest.approx(change, rel=1e-4)
    assert row["change_1"] == 0
    # sum over steps of the response 1, d, d^2, ... of the voltage to a current, over the threshold
    responses = sum(net.cells[1].decay_v.double() ** t for t in range(T)).mean().item()
    moves = 16 * run.spikes[0].mean().item() * responses / 0.5 * 0.1 * before.abs().mean().item()
    assert row["step_2"] == pytest.approx(moves, rel=0.05)
    assert all(math.isfinite(value) for value in row.values())


def test_rows_go_on_from_a_file_that_a_kill_has_cut(tmp_path):
    path = tmp_path / "rows.jsonl"
    first = trained(own, plant=raise_threshold, updates=80, path=path)
    with path.open("a") as file:
        file.write('{"update": 90, "lo')
    again = Monitor(own(), *batch(0), loss="membrane", every=EVERY, path=path)
    assert again.updates == 80
    assert again.rows == first.rows
    assert again.findings == first.findings != []
    for _ in range(10):
        again.step(1.0)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["update"] for line in lines if "event" not in line] == list(range(0, 91, EVERY))
    assert [Event(**line["event"]) for line in lines if "event" in line] == again.findings


def test_rows_of_another_network_or_no_rows_are_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    Monitor(own(), *batch(0), loss="membrane", path=path)
    with pytest.raises(ValueError, match="holds rows of 2 layers, net has 1: give another path"):
        Monitor(Network([LIF(N, 4)], C), *batch(0), loss="membrane", path=path)
    path.write_text("no rows\n")
    with pytest.raises(ValueError, match="holds no rows of a monitor"):
        Monitor(own(), *batch(0), loss="membrane", path=path)


@pytest.mark.parametrize(
    "content",
    [
        b"my only line",
        b"two lines\nwithout an end",
        b'{"update": "yesterday"}',
        b'{"update": 3, "author": "me"}\n',
        b'{"update": 3, "rate_1": 0.1}\nmy note',
        "\N{SNOWMAN}".encode("utf-16"),
    ],
)
def test_a_file_that_is_not_a_monitors_is_refused_and_stays_as_it_is(content, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"notes\.txt holds no rows of a monitor"):
        Monitor(own(), *batch(0), loss="membrane", path=path)
    assert path.read_bytes() == content


def test_of_a_monitors_file_only_an_unfinished_last_line_is_taken_off(tmp_path):
    path = tmp_path / "rows.jsonl"
    before = Monitor(own(), *batch(0), loss="membrane", path=path)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"event": {"upd')
    with pytest.raises(ValueError, match="holds rows of 2 layers, net has 1"):
        Monitor(Network([LIF(N, 4)], C), *batch(0), loss="membrane", path=path)
    assert path.read_bytes() == whole + b'{"event": {"upd', "a monitor of another network leaves it"
    for content in (whole + b'{"event": {"upd', whole[:-1]):  # the other lacks the end of a whole line
        path.write_bytes(content)
        again = Monitor(own(), *batch(0), loss="membrane", path=path)
        assert again.rows == before.rows
        assert path.read_bytes() == whole
    path.write_bytes(whole[:40])  # not even the first row was finished
    Monitor(own(), *batch(0), loss="membrane", path=path)
    assert [json.loads(line)["update"] for line in path.read_text().splitlines()] == [0]


def test_text_is_at_most_80_columns_with_a_line_a_layer():
    monitor = trained(own, plant=raise_threshold)
    lines = str(monitor).splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[:3]] == ["layer", "1", "2"]
    assert "has fallen silent" in str(monitor)


@pytest.mark.slow
def test_the_picture_has_a_panel_a_question_and_a_line_at_the_findings(tmp_path):
    monitor = trained(own, plant=raise_threshold)
    figure = monitor.plot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 10_000
    rates = figure.axes[0]
    assert rates.get_title(loc="left") == "Do the layers fire?"
    assert list(rates.lines[0].get_xdata()) == [row["update"] for row in monitor.rows]
    at = [line.get_xdata()[0] for line in rates.lines[2:]]
    assert at == sorted({event.update for event in monitor.findings})


@pytest.mark.slow
def test_curves_of_growth_begin_at_the_first_row_that_has_the_number():
    monitor = trained(own, updates=20)
    for name in ("threshold", "weights", "recurrent"):
        del monitor.rows[0][f"{name}_1"]
        monitor.rows[0][f"{name}_2"] = 0.0
    panels = {panel.get_title(loc="left"): panel for panel in monitor.plot().axes}
    lines = panels["Do thresholds, weights (- -), recurrence (: :) grow?"].lines
    assert [line.get_ydata()[1] for line in lines[:6]] == [1.0] * 6


class Turning(Cell):
    """Neurons with a complex decay, which send the tanh of their real part."""

    def __init__(self, n_in: int, n_hidden: int) -> None:
        super().__init__(n_in, n_hidden)
        self.decay = nn.Parameter(torch.polar(torch.full((n_hidden,), 0.8), torch.rand(n_hidden)))
        self.w_in = nn.Parameter(torch.randn(n_hidden, n_in) / n_in**0.5)

    def initial_state(self, batch: int) -> HiddenState:
        return HiddenState(torch.zeros(batch, self.n_hidden, dtype=torch.complex64))

    def output(self, state: HiddenState) -> Tensor:
        return state.h.real.tanh()

    def update(self, x: Tensor, z: Tensor, state: HiddenState) -> HiddenState:
        return HiddenState(self.decay * state.h + x @ self.w_in.T)


def test_a_row_of_complex_parameters_has_real_numbers():
    net = Network([Turning(N, 16), Turning(16, 16)], C)
    monitor = Monitor(net, *batch(0), loss="membrane", every=1)
    monitor.step(1.0)
    assert {"gradient_1", "signal_to_noise_1", "radius_time_2"} <= monitor.rows[-1].keys()
    assert all(isinstance(value, int | float) for row in monitor.rows for value in row.values())


def test_a_callback_gets_every_row_and_a_closed_writer_stops_nothing():
    rows: list[dict[str, float]] = []
    monitor = Monitor(own(), *batch(0), loss="membrane", every=1, callback=rows.append)
    monitor.step(1.0)
    assert rows == monitor.rows
    assert len(rows) == 2

    def closed(row):
        raise ValueError("I/O operation on closed file")

    monitor.callback = closed
    with pytest.warns(UserWarning, match=r"callback failed at update 2.*closed file"):
        monitor.step(1.0)
    monitor.step(1.0)
    assert len(monitor.rows) == 4


# ---- what is refused, and what is told once


def test_a_probe_batch_that_does_not_fit_is_refused_at_once():
    x, y = batch(0)
    with pytest.raises(ValueError, match="x must have shape"):
        Monitor(own(), x[:, :, :5], y)
    with pytest.raises(ValueError, match="y must be classes from 0 to 3"):
        Monitor(own(), x, y + 1, loss="count")
    with pytest.raises(ValueError, match="x must be finite"):
        Monitor(own(), x * math.nan, y)
    with pytest.raises(ValueError, match="every must be at least 1"):
        Monitor(own(), x, y, every=0)
    with pytest.raises(ValueError, match="loss must be one number"):
        Monitor(own(), x, y).step(torch.ones(3))
    with pytest.raises(TypeError, match="callback must be a function of a row, got 3"):
        Monitor(own(), x, y, callback=3)
    monitor = Monitor(own(), x, y)
    with pytest.raises(TypeError, match=r"scaler must be a torch\.amp\.GradScaler, got 3"):
        monitor.step(1.0, scaler=3)
    assert monitor.updates == 0


def test_without_targets_there_are_rows_without_gradients():
    monitor = Monitor(own(), batch(0)[0], every=1)
    monitor.step()
    assert "rate_1" in monitor.rows[-1]
    assert not any(name.startswith(("gradient", "probe_loss", "loss")) for name in monitor.rows[-1])


def test_a_closed_monitor_says_so_once():
    monitor = Monitor(own(), *batch(0), loss="membrane", every=1)
    monitor.close()
    with pytest.warns(UserWarning, match="the monitor was closed at update 0"):
        monitor.step(1.0)
    monitor.step(1.0)
    assert len(monitor.rows) == 1


def test_replaced_parameters_are_told_once_and_measured():
    net = SnnTorch()
    monitor = Monitor(net, *batch(0), loss="count", every=1)
    net.fc[0] = nn.Linear(N, 16)
    with pytest.warns(UserWarning, match="parameters of the module were replaced before update 1, the new ones"):
        monitor.step(1.0)
    assert monitor.rows[-1]["weights_1"] == pytest.approx(net.fc[0].weight.norm().item(), rel=1e-5)
    monitor.step(1.0)
    assert "drift_1" in monitor.rows[-1]


def test_a_module_that_the_probe_no_longer_fits_ends_the_monitor_with_a_warning():
    net = SnnTorch()
    monitor = Monitor(net, *batch(0), loss="count", every=1)
    net.fc[0] = nn.Linear(N + 1, 16)
    with pytest.warns(UserWarning, match="the module was changed before update 1, the monitor ends"):
        monitor.step(1.0)
    assert len(monitor.rows) == 1


def test_a_file_that_cannot_be_written_is_told_once(tmp_path):
    with pytest.warns(UserWarning, match="rows are no longer written"):
        monitor = Monitor(own(), *batch(0), loss="membrane", every=1, path=tmp_path / "missing" / "rows.jsonl")
    monitor.step(1.0)
    assert len(monitor.rows) == 2


def test_a_monitor_that_goes_on_from_an_update_drops_what_came_after_it(tmp_path):
    class Scaler:  # of a loop in half precision
        scale = 8.0
        good_updates = 1  # since it changed

        def get_scale(self) -> float:
            return self.scale

        def state_dict(self) -> dict[str, int]:
            return {"_growth_tracker": self.good_updates}

    scaler = Scaler()
    monitor = Monitor(own(), *batch(0), loss="membrane", every=2, path=tmp_path / "rows.jsonl")
    for scaler.scale, scaler.good_updates in ((8.0, 1), (8.0, 2), (4.0, 0)):  # the last update is skipped
        monitor.step(1.0, scaler=scaler)
    assert "update 2: loss 1" in str(monitor), "of the last row"
    monitor.go_on_from(2)
    for scaler.scale, scaler.good_updates in ((8.0, 3), (8.0, 4)):
        monitor.step(1.0, scaler=scaler)
    assert [(row["update"], row.get("skipped")) for row in monitor.rows] == [(0, None), (2, 0), (4, 0)]
    (tmp_path / "rows.jsonl").unlink()
    (tmp_path / "rows.jsonl").mkdir()
    with pytest.warns(UserWarning, match="rows are no longer written"):
        monitor.go_on_from(2)
    assert [row["update"] for row in monitor.rows] == [0, 2]
    with pytest.raises(ValueError, match="updates must be at least 0, got -1"):
        monitor.go_on_from(-1)


# ---- in train


def test_train_counts_its_updates_in_a_monitor_and_ends_in_the_same_weights():
    data, validation = Patterns(36), Patterns(12, seed=1)
    ends = []
    for watched in (False, True):
        network = small_network()
        monitor = None
        if watched:
            x = torch.stack([data[i][0] for i in range(12)], 1).float()
            y = torch.tensor([data[i][1] for i in range(12)])
            monitor = Monitor(network, x, y, loss=Classification(), every=4)
        train(network, data, validation, epochs=3, batch_size=6, progress=False, monitor=monitor)
        ends.append(network.state_dict())
    assert monitor is not None
    assert [row["update"] for row in monitor.rows] == [0, 4, 8, 12, 16]
    assert monitor.rows[-1]["loss"] < monitor.rows[1]["loss"]
    for name, value in ends[0].items():
        assert torch.equal(value, ends[1][name]), name


def watched(path) -> tuple[Network, Monitor]:
    """A small network and a monitor of it."""
    network = small_network()
    data = Patterns(12, seed=2)
    x = torch.stack([data[i][0] for i in range(12)], 1).float()
    return network, Monitor(network, x, data.labels, loss=Classification(), every=4, path=path)


def test_a_training_that_was_killed_between_rows_goes_on_with_those_before_its_checkpoint(tmp_path):
    data, validation = Patterns(36), Patterns(12, seed=1)
    settings = {"batch_size": 6, "progress": False, "checkpoint": tmp_path / "train.checkpoint"}
    network, monitor = watched(tmp_path / "through.jsonl")
    train(
        network, data, validation, epochs=3, schedule="constant", **(settings | {"checkpoint": None}), monitor=monitor
    )

    network, cut = watched(tmp_path / "rows.jsonl")
    train(network, data, validation, epochs=1, schedule="constant", **settings, monitor=cut)
    cut.updates = 11
    cut.step(7.0)  # an update of the second epoch, whose checkpoint was not written any more
    assert [row["update"] for row in cut.rows] == [0, 4, 12]

    network, again = watched(tmp_path / "rows.jsonl")
    train(network, data, validation, epochs=3, schedule="constant", **settings, monitor=again)
    assert [row["update"] for row in again.rows] == [0, 4, 8, 12, 16]
    assert [row["loss"] for row in again.rows[3:]] == pytest.approx([row["loss"] for row in monitor.rows[3:]])
    assert [row["rate_1"] for row in again.rows] == pytest.approx([row["rate_1"] for row in monitor.rows])
    assert "drift_1" not in again.rows[2]  # since a row whose weights are gone
    assert again.rows[3]["drift_1"] == pytest.approx(monitor.rows[3]["drift_1"])
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [line for line in lines if "event" not in line] == again.rows


@pytest.mark.long
def test_the_command_writes_rows_into_its_run_and_goes_on_with_them(tmp_path, monkeypatch):
    digits = ["--data", "shd", "--channels", "70", "--dt", "0.05", "--repeat", "1"]
    words = ["--width", "8", "--init", "Default", *digits, "--epochs", "3", "--monitor", "2", "--out", tmp_path / "run"]
    with monkeypatch.context() as patched:
        patched.setattr("neurolsc.experiment.run.train", stopped(KeyboardInterrupt(), 2))
        result = CliRunner().invoke(app, [str(word) for word in ["train", *words]])
    assert result.exit_code == 130
    before = (tmp_path / "run.partial" / "monitor.jsonl").read_text()
    output = succeed("train", *words)
    after = (tmp_path / "run" / "monitor.jsonl").read_text()
    assert after.startswith(before)
    updates = [line["update"] for line in map(json.loads, after.splitlines()) if "event" not in line]
    assert updates == list(range(0, updates[-1] + 1, 2))
    assert len(updates) > len(before.splitlines())
    assert "gradient     step" in output
    assert (tmp_path / "run" / "monitor.png").stat().st_size > 10_000
    assert "monitor" not in (tmp_path / "run" / "settings.toml").read_text()


@pytest.mark.parametrize("loss", ["a", {"loss": 1.0}, True, 1j, [1.0, 2.0], torch.ones(2), object()])
def test_a_loss_that_is_no_number_is_refused_by_what_came(loss):
    monitor = Monitor(own(), *batch(0))
    with pytest.raises((TypeError, ValueError), match="loss must be one number, got"):
        monitor.step(loss)
    assert monitor.updates == 0
    monitor.step(torch.tensor([1.0]))
    assert monitor.updates == 1
