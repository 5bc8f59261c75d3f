"""What a cell says of its voltage, threshold and matrices, and the table of names."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from neurolsc import LIF, ALIFPlus, Network, load, register, save, wrap
from neurolsc.neurons.cell import CELLS, SURROGATES
from neurolsc.neurons.weights import weight_matrices
from neurolsc.surrogate import FastSigmoid
from tests.interop.layers import EVERY, N_IN, N


@pytest.mark.parametrize("kind", [LIF, ALIFPlus])
def test_a_cell_fires_where_its_voltage_is_above_its_threshold(kind, make_network, make_spikes):
    network, fired = make_network(kind, gain=3), 0
    cell, (membrane, x) = network.cells[0], (network.cells[0].membrane(), make_spikes())
    state = cell.initial_state(x.shape[1])
    for now in x:
        z, state = cell.step(now, state)
        v, theta = membrane.voltage(state), membrane.thresholds(state)
        assert v.shape == theta.shape == z.shape
        assert torch.equal(z, (v > theta).to(z.dtype))
        assert torch.equal(z, membrane.spike(v - theta))
        fired += int(z.sum())
        lowered = membrane.moved(state, -0.5)
        assert_close(membrane.voltage(lowered), v - 0.5)
        assert torch.equal(membrane.thresholds(lowered), theta)
    assert fired > 0


@pytest.mark.parametrize(
    ("name", "depth", "time"),
    [
        ("snn.RLeaky-hidden", {"before.0.weight"}, {"layer.recurrent.weight"}),
        ("norse.LIFRecurrent", {"layer.input_weights"}, {"layer.recurrent_weights"}),
        ("norse.LSNNRecurrent", set(), {"layer.recurrent_weights"}),
        ("LSTM", {"layer.weight_ih_l0"}, {"layer.weight_hh_l0"}),
    ],
)
@pytest.mark.filterwarnings("ignore::neurolsc.interop.wrapped.WrappedNeuronWarning")
def test_matrices_are_those_that_a_cell_names(name, depth, time):
    modules, shape = EVERY[name]
    cell = wrap(modules(), input_shape=shape).cells[0]
    found = {radius: {s.name for s in weight_matrices(cell, radius)} for radius in ("depth", "time")}
    assert found == {"depth": depth, "time": time}


def test_matrices_are_read_set_and_kept_where_frozen():
    torch.manual_seed(0)
    cell = ALIFPlus(N_IN, N)
    (below,), (own,) = weight_matrices(cell, "depth"), weight_matrices(cell, "time")
    assert (below.fan_in, below.fan_out, own.fan_in) == (N_IN, N, N)
    assert not below.weights.requires_grad
    below.set(torch.ones(N, N_IN, dtype=torch.float64))
    assert torch.equal(cell.w_in, torch.ones(N, N_IN))
    cell.w_in.requires_grad_(False)
    assert below.frozen and not own.frozen
    below.set(torch.zeros(N, N_IN))
    assert torch.equal(cell.w_in, torch.ones(N, N_IN))


@pytest.fixture
def tables():
    """The tables are afterwards as they were."""
    before = [(table, dict(table)) for table in (CELLS, SURROGATES)]
    yield
    for table, classes in before:
        table.clear()
        table.update(classes)


def test_a_registered_cell_and_surrogate_are_saved_and_loaded(tables, tmp_path):
    class Wide(FastSigmoid):
        pass

    class Quick(ALIFPlus):
        pass

    network = Network([Quick(3, 4, spike=Wide(0.3))], 2)
    with pytest.raises(ValueError, match=r"Quick is not a known cell.*neurolsc\.register\(Quick\)"):
        save(network, tmp_path / "n")
    assert register(Quick) is Quick
    with pytest.raises(ValueError, match="Wide is not a known surrogate"):
        save(network, tmp_path / "n")
    register(Wide)
    save(network, tmp_path / "n")
    again = load(tmp_path / "n")
    assert type(again.cells[0]) is Quick
    assert type(again.cells[0].spike) is Wide
    x = (torch.rand(20, 3, 3) < 0.5).float()
    assert torch.equal(network(x), again(x))
    del CELLS["Quick"]
    with pytest.raises(
        ValueError, match=r"unknown cell 'Quick'.*import its module first, or give the command package.module:Class"
    ):
        load(tmp_path / "n")


def test_two_classes_cannot_share_a_name(tables):
    other = type("LIF", (ALIFPlus,), {"__module__": "elsewhere"})
    with pytest.raises(ValueError, match=r"'LIF' is another cell already, neurolsc\.neurons\.spiking\.LIF"):
        register(other)
    first = register(type("Mine", (LIF,), {"__module__": "notebook"}))
    again = register(type("Mine", (LIF,), {"__module__": "notebook"}))
    assert first is not again
    assert CELLS["Mine"] is again
    for bad in (nn.Linear, LIF(2, 2)):
        with pytest.raises(TypeError, match=r"neurolsc\.Cell or neurolsc\.surrogate\.Surrogate, got"):
            register(bad)


def test_a_class_is_found_by_its_place(tables, tmp_path, monkeypatch):
    (tmp_path / "my_cells.py").write_text("import neurolsc\nclass Mine(neurolsc.LIF):\n    pass\nnumber = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert CELLS.find("LIF") is LIF
    mine = CELLS.find("my_cells:Mine")
    assert mine.__name__ == "Mine"
    assert CELLS["Mine"] is mine
    for text, what in (
        ("Nothing", "unknown cell 'Nothing'"),
        ("my_cells:Nothing", "there is no cell 'my_cells:Nothing'"),
        ("my_cells:number", "must be a class of Cell, got 3"),
    ):
        with pytest.raises(ValueError, match=what):
            CELLS.find(text)
