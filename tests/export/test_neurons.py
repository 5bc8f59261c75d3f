"""A target's table of neurons: who is refused, and one's own neuron and target in a file."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import nir
import pytest
import torch
from torch import Tensor, nn

from neurolsc import LIF, ALIFPlus, Network
from neurolsc.export import Neurons, from_nir, quantize, read_netx, to_netx, to_nir, write_netx
from neurolsc.export.loihi.cuba import CubaLayer
from neurolsc.export.loihi.fixed_point import UNIT
from neurolsc.export.loihi.mapping import LayerFloats, LoihiNeuron
from neurolsc.export.loihi.rounding import W_MAX, largest, nearest
from neurolsc.export.loihi.table import NEURONS as LOIHI
from neurolsc.export.nir.graph import ChainLayer
from neurolsc.export.nir.mapping import NirNeuron
from neurolsc.export.nir.nodes import array, linear
from neurolsc.export.nir.table import NEURONS as NIR
from neurolsc.neurons import Cell
from neurolsc.neurons.reset import Reset
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
    """A reset that no target knows."""


@each_export
def test_a_subclass_with_a_step_of_its_own_is_refused_by_name(export):
    network = Network([lif(), QIF(WIDTH, 4)], N_OUT)
    with pytest.raises(
        TypeError, match=r"layer 2 is a QIF, whose step is not that of LIF; only LIF and CubaLIF and ALIF and LI can be"
    ):
        export(network)


@each_export
def test_an_unknown_cell_is_refused_by_name(export):
    with pytest.raises(TypeError, match=r"layer 2 is a Leak; only LIF and CubaLIF and ALIF and LI can be"):
        export(Network([lif(), Leak(WIDTH, 4)], N_OUT))


@each_export
def test_a_step_that_is_set_on_one_cell_is_refused_by_name(export):
    network = make("recurrent, zero")
    network.cells[1].update = QIF(WIDTH, 16).update
    with pytest.raises(TypeError, match=r"layer 2 is a LIF, .* \(it has its own update\)"):
        export(network)


@each_export
@pytest.mark.parametrize("kind", ["recurrent, subtract", "ALIF kept positive"])
def test_an_unknown_reset_is_refused_by_name(export, kind):
    network = make(kind)
    network.cells[1].reset = Slanted()
    with pytest.raises(ValueError, match=r"layer 2: its reset is Slanted\(gradient=False\), known here are Reset, "):
        export(network)


def test_a_subclass_that_keeps_the_step_is_exported_as_the_neuron_that_it_is(tmp_path):
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

    def __init__(self, n_in: int, n_hidden: int) -> None:
        super().__init__(n_in, n_hidden)
        self.w_in = nn.Parameter(torch.randn(n_hidden, n_in))
        self.register_buffer("theta", torch.ones(n_hidden))
        self.spike = FastSigmoid()

    def initial_state(self, batch: int) -> GateState:
        return GateState(self.w_in.new_zeros(batch, self.n_hidden))

    def output(self, state: GateState) -> Tensor:
        return self.spike(state.v - self.theta)

    def update(self, x: Tensor, z: Tensor, state: GateState) -> GateState:
        return GateState(x @ self.w_in.T)


class LoihiGate(LoihiNeuron[Gate]):
    def floats(self, cell):
        none = torch.zeros_like(cell.theta)
        return LayerFloats(
            w_in=cell.w_in,
            w_rec=cell.w_in.new_zeros(cell.n_hidden, cell.n_hidden),
            bias=none,
            threshold=cell.theta,
            tau_v=none + 0.05,
            spike=cell.spike,
        )

    def integers(self, name, cell, *, force, halvings):
        scale = W_MAX / largest(name, cell.w_in)
        one = torch.ones_like(cell.theta.double())
        threshold = 2 * nearest(cell.theta.double() * scale / 2) + 1  # odd: even sums never meet it
        weight = 2 * nearest(cell.w_in.double() * scale / 2)
        rest = {"i_decay": 4096 * one, "v_decay": 4095 * one, "bias": 0 * one, "weight_rec": None}
        return CubaLayer(weight=weight, threshold=threshold, unit=UNIT * scale * one, **rest)

    def leak(self, cell, layer):
        return layer.v_decay

    def restore(self, cell, layer):
        scale = (layer.unit / UNIT).unsqueeze(1)
        cell.w_in.copy_(layer.weight / scale)
        cell.theta.copy_(layer.threshold / scale[:, 0])

    def describe(self, cell):
        return "Gate: CUBA without memory"


class NirGate(NirNeuron[Gate]):
    word = "gate"
    starts = ("Threshold",)

    def check(self, layer, cell, layer_delay):
        pass

    def check_reader(self, layer, cell, reader):
        pass

    def write(self, name, cell, dt):
        return ChainLayer(name, linear(cell.w_in), nir.Threshold(array(cell.theta)))

    def read(self, layer, dt):
        cell = Gate(layer.weight.weight.shape[1], layer.weight.weight.shape[0])
        cell.w_in.copy_(torch.from_numpy(layer.weight.weight))
        cell.theta.copy_(torch.from_numpy(layer.neuron.threshold))
        return cell


def test_a_neuron_of_ones_own_is_one_entry_in_a_table(monkeypatch, tmp_path):
    torch.manual_seed(0)
    network, x = Network([Gate(N_IN, WIDTH), lif(WIDTH, 16)], N_OUT), spikes()
    monkeypatch.setitem(LOIHI, Gate, LoihiGate())
    monkeypatch.setitem(NIR, Gate, NirGate())
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


# a target of one's own: a table and a function


def to_json(network: Network, path: Path) -> None:
    said = [RATES.of(f"layer {i}", cell)(cell) for i, cell in enumerate(network.cells, start=1)]
    path.write_text(json.dumps(said))


RATES = Neurons("written as JSON", {LIF: lambda cell: cell.theta.tolist(), ALIFPlus: lambda cell: "adapts"})


def test_a_target_of_ones_own_is_a_table_and_a_function(tmp_path):
    to_json(make("recurrent, zero"), tmp_path / "a.json")
    first, second = json.loads((tmp_path / "a.json").read_text())
    assert (len(first), len(second)) == (WIDTH, 16)
    assert first[0] == pytest.approx(0.8)
    with pytest.raises(TypeError, match=r"layer 1 is a QIF, .* only LIF and ALIFPlus can be written as JSON"):
        to_json(Network([QIF(N_IN, 4)], 2), tmp_path / "a.json")


def test_a_file_of_a_layer_that_is_refused_is_not_written(tmp_path):
    with pytest.raises(TypeError, match="QIF"):
        to_netx(Network([QIF(N_IN, 4)], 2), tmp_path / "a.net")
    with pytest.raises(TypeError, match="QIF"):
        to_nir(Network([QIF(N_IN, 4)], 2), tmp_path / "a.nir", dt=1e-4)
    assert not list(tmp_path.iterdir())
    write_netx(quantize(make("recurrent, zero")), tmp_path / "a.net")
    assert list(tmp_path.iterdir())
