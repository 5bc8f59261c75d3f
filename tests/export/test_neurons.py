"""The table of exported neurons: cells that are refused, and a neuron of one's own."""

from typing import Any, NamedTuple

import nir
import pytest
import torch
from torch import Tensor, nn

from neurolsc import LIF, ALIFPlus, Network
from neurolsc.export import NEURONS, CubaLayer, ExportedNeuron, NirLayer, from_nir, quantize, read_netx, to_netx, to_nir
from neurolsc.export.fixed_point import UNIT, W_MAX, even, largest
from neurolsc.export.neurons import array, linear
from neurolsc.neurons import Cell
from neurolsc.neurons.spiking import Reset
from neurolsc.surrogate import FastSigmoid
from tests.export.networks import N_IN, N_OUT, WIDTH, alif, lif, make, spikes
from tests.patterns import Leak

EXPORTS = {"integers": quantize, "NIR": lambda network: to_nir(network, dt=1e-4)}
each_export = pytest.mark.parametrize("export", EXPORTS.values(), ids=EXPORTS)


class QIF(LIF):
    """Quadratic integrate-and-fire: another step under the fields of a LIF."""

    def update(self, x: Tensor, z: Tensor, state: Any) -> Any:
        return type(state)(super().update(x, z, state).v + 0.1 * state.v**2)


class Sharper(ALIFPlus):
    """The step of an ALIF: only what it starts from differs."""

    @staticmethod
    def draw_adaptation(scale: float, n_in: int, n_hidden: int) -> Tensor:
        return torch.full((n_hidden,), scale)


class Slanted(Reset):
    """A reset of one's own."""


def with_own_update() -> Network:
    network = make("recurrent, zero")
    network.cells[1].update = QIF(WIDTH, 16).update
    return network


def with_own_reset(kind: str) -> Network:
    network = make(kind)
    network.cells[1].reset = Slanted()
    return network


@each_export
@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            lambda: Network([lif(), QIF(WIDTH, 4)], N_OUT),
            r"layer 2 is a QIF, whose step is not that of LIF; only LIF, ",
        ),
        (lambda: Network([lif(), Leak(WIDTH, 4)], N_OUT), r"layer 2 is a Leak; only LIF, CubaLIF, ALIF, LI can be exp"),
        (with_own_update, r"layer 2 is a LIF, .* \(it has its own update\)"),
        (lambda: with_own_reset("recurrent, subtract"), r"layer 2: its reset is Slanted\(gradient=False\), only Reset"),
        (lambda: with_own_reset("ALIFPositive"), r"layer 2: its reset is Slanted\(gradient=False\), only Reset"),
    ],
)
def test_another_neuron_is_refused_by_name(made, message, export):
    with pytest.raises((TypeError, ValueError), match=message):
        export(made())


def test_a_subclass_with_the_same_step_is_exported_as_the_neuron_that_it_is(tmp_path):
    torch.manual_seed(0)
    cell = Sharper(N_IN, WIDTH, reset="static", tau_v=5.0, tau_theta=20.0, b_theta=0.05, adaptation=0.3)
    network, x = Network([cell], N_OUT), spikes(rate=0.4)
    plain = Network([alif()], N_OUT)
    plain.load_state_dict(network.state_dict())
    ours, theirs = quantize(network).run(x), quantize(plain).run(x)
    assert ours.spikes[0].mean() > 0.05
    assert torch.equal(ours.spikes[0], theirs.spikes[0])
    to_nir(network, tmp_path / "a.nir", dt=1e-4)
    again = from_nir(tmp_path / "a.nir")
    assert type(again.cells[0]) is ALIFPlus  # the name of an unregistered class says nothing to a reader
    assert torch.equal(again.run(x).spikes[0], network.run(x).spikes[0])


# a neuron of one's own, both ways to both targets: this and no more


class GateState(NamedTuple):
    v: Tensor


class Gate(Cell):
    """z[t] = H(W x[t] - theta): no memory, no recurrence."""

    theta: Tensor
    tau_v: Tensor

    def __init__(self, n_in: int, n_hidden: int) -> None:
        super().__init__(n_in, n_hidden)
        self.w_in = nn.Parameter(torch.randn(n_hidden, n_in))
        self.register_buffer("theta", torch.ones(n_hidden))
        self.register_buffer("tau_v", torch.full((n_hidden,), 0.05))
        self.spike = FastSigmoid()

    def initial_state(self, batch: int) -> GateState:
        return GateState(self.w_in.new_zeros(batch, self.n_hidden))

    def output(self, state: GateState) -> Tensor:
        return self.spike(state.v - self.theta)

    def update(self, x: Tensor, z: Tensor, state: GateState) -> GateState:
        return GateState(x @ self.w_in.T)


class ExportedGate(ExportedNeuron[Gate]):
    word, starts = "gate", ("Threshold",)

    def describe(self, cell):
        return "Gate: CUBA without memory"

    def threshold(self, cell):
        return cell.theta

    def integers(self, name, cell, *, force, halvings):
        scale = W_MAX / largest(name, cell.w_in)
        one = torch.ones_like(cell.theta.double())
        threshold = even(cell.theta.double() * scale) + 1  # odd: even sums never meet it
        rest = {"i_decay": 4096 * one, "v_decay": 4095 * one, "bias": 0 * one, "weight_rec": None}
        return CubaLayer(weight=even(cell.w_in.double() * scale), threshold=threshold, unit=UNIT * scale * one, **rest)

    def restore(self, cell, layer):
        scale = (layer.unit / UNIT).unsqueeze(1)
        cell.w_in.copy_(layer.weight / scale)
        cell.theta.copy_(layer.threshold / scale[:, 0])

    def nodes(self, layer, name, cell, dt, layer_delay):
        return NirLayer(name, linear(cell.w_in), nir.Threshold(array(cell.theta)))

    def cell(self, layer, dt):
        cell = Gate(*layer.size[::-1])
        cell.w_in.copy_(torch.from_numpy(layer.weight.weight))
        cell.theta.copy_(torch.from_numpy(layer.neuron.threshold))
        return cell


def test_a_neuron_of_ones_own_is_one_entry_in_the_table(monkeypatch, tmp_path):
    torch.manual_seed(0)
    network, x = Network([Gate(N_IN, WIDTH), lif(WIDTH, 16)], N_OUT), spikes()
    monkeypatch.setitem(NEURONS, Gate, ExportedGate())
    report = to_netx(network, tmp_path / "a.net", x)
    assert report.layers[0].neuron == "Gate: CUBA without memory"
    assert report.layers[0].clipped == 0
    exact, integer, again = network.run(x), read_netx(tmp_path / "a.net").run(x), quantize(network).run(x)
    assert torch.equal(integer.logits, again.logits)
    assert 0.1 < exact.spikes[0].mean() < 0.6
    assert (integer.spikes[0] == exact.spikes[0]).double().mean() > 0.98  # rounding of weights alone
    to_nir(network, tmp_path / "a.nir", dt=1e-4)
    back = from_nir(tmp_path / "a.nir")
    assert [type(cell) for cell in back.cells] == [Gate, LIF]
    assert torch.equal(back(x), network(x))
