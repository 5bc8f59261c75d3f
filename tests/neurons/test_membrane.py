"""What a cell says of its voltage, its threshold and its matrices."""

import pytest
import torch
from torch.testing import assert_close

from neurolsc import LIF, ALIFLowPass, ALIFPlus, ALIFPlusMinus, wrap
from neurolsc.neurons.cell import weight_matrices
from tests.interop.layers import EVERY, N_IN, N

OURS = [LIF, ALIFPlus, ALIFPlusMinus, ALIFLowPass]


@pytest.mark.parametrize("kind", OURS)
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


WITH = {
    "Leaky": True, "Leaky-zero": True, "Leaky-now": True, "RLeaky": True, "Synaptic": True, "RSynaptic": True,
    "Alpha": True, "SLSTM": True, "SConv2dLSTM": False, "RLeaky-conv": True,
    "LIF": True, "LIFCell": True, "LIFRecurrent": True, "LSNNRecurrentCell": True,
    "LIFBox": True, "IAF": True, "LI": False,
    "RNN": False, "GRU": False, "LSTM": False,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::neurolsc.interop.foreign.ForeignNeuronWarning")
@pytest.mark.parametrize("name", [n for n in EVERY if n.partition(".")[2].removesuffix("-hidden") in WITH or n in WITH])
def test_a_wrapped_layer_says_what_its_voltage_is_where_it_has_one(name):
    modules, shape = EVERY[name]
    cell = wrap(modules(), input_shape=shape).cells[0]
    membrane = cell.membrane()
    assert (membrane is not None) is WITH[name.partition(".")[2].removesuffix("-hidden") or name]
    if membrane is None:
        return
    state = cell.initial_state(3)
    generator, fired = torch.Generator().manual_seed(0), 0.0
    with torch.no_grad():
        for _ in range(20):
            x = 4 * torch.rand(3, cell.n_in, generator=generator) - 0.5
            v_before = membrane.voltage(state)
            state = cell.update(x, cell.output(state), state)
            v, theta = membrane.voltage(state), membrane.thresholds(state)
            assert v.shape == theta.shape == (3, cell.n_hidden)
            fired += cell.output(state).sum().item()
            if name.startswith("snn.") and "now" not in name:
                assert torch.equal(cell.output(state), membrane.spike(v - theta)), name
            elif name.startswith("norse."):  # reset already: what has not fired is below
                assert bool((v <= theta)[cell.output(state) == 0].all())
            assert v_before.shape == v.shape
    if name != "snn.SLSTM-hidden":
        assert fired > 0, name


@pytest.mark.parametrize(
    ("name", "depth", "time"),
    [
        ("snn.RLeaky-hidden", {"before.0.weight"}, {"layer.recurrent.weight"}),
        ("snn.RLeaky-one-hidden", {"before.0.weight"}, set()),  # V is a vector
        ("snn.Leaky-conv-hidden", {"before.0.weight"}, set()),
        ("snn.SConv2dLSTM-hidden", {"w_in"}, {"w_rec"}),
        ("norse.LIFRecurrent", {"layer.input_weights"}, {"layer.recurrent_weights"}),
        ("norse.LSNNRecurrent", set(), set()),
        ("LSTM", {"layer.weight_ih_l0"}, {"layer.weight_hh_l0"}),
    ],
)
@pytest.mark.filterwarnings("ignore::neurolsc.interop.foreign.ForeignNeuronWarning")
def test_matrices_are_those_that_a_cell_names(name, depth, time):
    modules, shape = EVERY[name]
    cell = wrap(modules(), input_shape=shape).cells[0]
    found = {radius: {s.name for s in weight_matrices(cell, radius)} for radius in ("depth", "time")}
    if name == "norse.LSNNRecurrent":
        time = {"layer.recurrent_weights"}
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
