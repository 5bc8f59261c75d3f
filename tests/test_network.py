"""Network: wiring in depth and time, state handed over, masks, input formats, gradients."""

import math
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from neurolsc import LIF, ALIFPlus, Cell, Network, evaluate, radius_profile
from neurolsc.datasets import collate
from neurolsc.init import FiringRate

pytestmark = pytest.mark.usefixtures("float64")

both_delays = pytest.mark.parametrize("layer_delay", [0, 1])


def by_hand(network: Network, x: Tensor) -> tuple[list[Tensor], list[list[Tensor]]]:
    """The wiring of eq. 1 as a loop of single cells: logits, and outputs per step and layer."""
    states = [cell.initial_state(x.shape[1]) for cell in network.cells]
    sent = [cell.output(state) for cell, state in zip(network.cells, states, strict=True)]
    logits, spikes, late = [], [], torch.zeros_like(x[0])
    for frame in x:
        if network.layer_delay:  # everyone reads what was there one step ago, the first layer too
            read, late = [late, *sent[:-1]], frame
            steps = [cell.step(i, s) for cell, i, s in zip(network.cells, read, states, strict=True)]
            sent, states = [z for z, _ in steps], [s for _, s in steps]
        else:
            below = frame
            for i, cell in enumerate(network.cells):
                below, states[i] = cell.step(below, states[i])
                sent[i] = below
        spikes.append(list(sent))
        logits.append(sent[-1] @ network.readout.weight.T)
    return logits, spikes


@both_delays
@pytest.mark.parametrize("kind", [LIF, ALIFPlus])
def test_run_is_the_loop_written_out(kind, layer_delay, make_network, make_spikes):
    network, x = make_network(kind, layers=3, layer_delay=layer_delay, gain=3), make_spikes()
    run = network.run(x)
    logits, spikes = by_hand(network, x)
    torch.testing.assert_close(run.logits, torch.stack(logits))
    for layer, z in enumerate(run.spikes):
        assert torch.equal(z, torch.stack([step[layer] for step in spikes]))
        assert 0.02 < z.mean() < 0.8
    assert torch.equal(network(x), run.logits)


@both_delays
def test_steps_one_by_one_and_parts_equal_the_run(layer_delay, make_network, make_spikes):
    network, x = make_network(layer_delay=layer_delay, gain=2), make_spikes()
    states, run = network.initial_states(x.shape[1]), network.run(x)
    for t, frame in enumerate(x):
        logits, states = network.step(frame, states)
        torch.testing.assert_close(logits, run.logits[t])
    torch.testing.assert_close(states, run.states)
    assert run.spikes[-1].any()
    first = network.run(x[:7])  # in two parts
    second = network.run(x[7:], first.states)
    torch.testing.assert_close(torch.cat((first.logits, second.logits)), run.logits)
    torch.testing.assert_close(second.states, run.states)


@both_delays
def test_detached_states_cut_the_gradient_and_keep_the_values(layer_delay, make_network, make_spikes):
    network, x = make_network(layer_delay=layer_delay, gain=2), make_spikes().requires_grad_()
    states = network.run(x[:10]).states
    attached, cut = (network.run(x[10:], s).logits for s in (states, states.detach()))
    assert torch.equal(attached, cut)
    whole, truncated = (torch.autograd.grad(y.sum(), x, retain_graph=True)[0] for y in (attached, cut))
    assert whole[:10].any()
    assert not truncated[:10].any()
    assert truncated[10:-2].any()


@both_delays
def test_a_masked_sample_stands_still_and_sends_nothing(layer_delay, make_network, make_spikes):
    network, x = make_network(layer_delay=layer_delay, gain=3), make_spikes(T=20, B=3)
    network.readout = nn.Linear(16, 4)  # with a bias, which a masked step must not show
    mask = torch.arange(20).unsqueeze(1) < torch.tensor((20, 12, 5))
    masked = network.run(x, mask=mask)
    for b in range(3):
        alive = mask[:, b]
        alone = network.run(x[alive, b : b + 1])
        # another batch size, another order of sums: equal but for rounding
        torch.testing.assert_close(masked.logits[alive, b], alone.logits[:, 0])
        assert not masked.logits[~alive, b].any()
        for layer, single in zip(masked.spikes, alone.spikes, strict=True):
            assert torch.equal(layer[alive, b], single[:, 0])
            assert not layer[~alive, b].any()
            assert single.any()
        for state, single in zip(masked.states.layers, alone.states.layers, strict=True):
            torch.testing.assert_close((state.v[b], state.theta[b]), (single.v[0], single.theta[0]))


class OddState(NamedTuple):
    taps: Tensor
    level: Tensor


class Taps(Cell):
    """A cell whose state has a variable of shape (B, 2, 3) and one of shape (B,)."""

    def initial_state(self, batch: int) -> OddState:
        return OddState(torch.zeros(batch, 2, 3), torch.zeros(batch))

    def output(self, state: OddState) -> Tensor:
        return state.taps.sum(2) + state.level.unsqueeze(1)

    def update(self, x: Tensor, z: Tensor, state: OddState) -> OddState:
        taps = torch.cat((x.view(-1, 2, 1), state.taps[..., :2]), 2)
        return OddState(0.9 * taps, 0.5 * state.level + z.sum(1))


def test_state_variables_may_have_any_shape():
    network, x, mask = (
        Network([Taps(2, 2)], 1),
        torch.randn(6, 3, 2),
        torch.arange(6)[:, None] < torch.tensor((6, 4, 1)),
    )
    masked = network.run(x, mask=mask).states
    for b in range(3):
        alone = network.run(x[mask[:, b], b : b + 1]).states
        torch.testing.assert_close([leaf[b] for leaf in masked.layers[0]], [leaf[0] for leaf in alone.layers[0]])
    profile = radius_profile(network, x)
    assert profile.time.shape == (1, 6, 3)
    assert profile.time[0, 0, 0] > 0.5, "the level alone keeps one half"


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32])
def test_input_formats_are_equal(dtype, make_network, make_spikes):
    network, x = make_network(), make_spikes()
    assert torch.equal(network(x.to(dtype)), network(x))
    assert network.run(x).spikes[-1].any()


def test_what_does_not_fit_is_refused(make_network, make_spikes):
    network, x = make_network(), make_spikes()
    array: Any = torch.zeros(20, 6, 30).numpy()
    for use in (network, lambda x: FiringRate(0.1).apply(network, [x]), lambda x: collate([(x[:, 0], 1)])):
        with pytest.raises(TypeError, match=r"got a? ?ndarray: torch\.from_numpy makes it one"):
            use(array)
    for shape in ((20, 6, 29), (0, 6, 30)):
        with pytest.raises(ValueError, match=r"x must have shape \(T, B, 30\) with T, B >= 1, got"):
            network(torch.zeros(shape))
    bad = x.clone()
    bad[2, 1, 7] = math.nan
    with pytest.raises(ValueError, match="x must be finite"):
        network(bad)
    with pytest.raises(ValueError, match=r"x must have shape \(B, 30\)"):
        network.step(torch.zeros(2, 29), network.initial_states(2))
    with pytest.raises(ValueError, match=r"mask must be bool \(20, 6\).*looks batch first"):
        network.run(x, mask=torch.ones(6, 20, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"mask must be True up to the last step of each sample .*, got gaps"):
        network.run(x, mask=torch.arange(20).unsqueeze(1).expand(20, 6) % 3 > 0)
    with pytest.raises(ValueError, match="states must be those of 2 samples, as x is, got"):
        network.run(x[:, :2], network.initial_states(6))
    with pytest.raises(ValueError, match="2 cells with layer_delay=1"):
        network.run(x, make_network(layer_delay=0).initial_states(6))


@pytest.mark.parametrize(
    ("cells", "settings", "message"),
    [
        ([], {}, "at least one cell"),
        ([LIF(3, 4), LIF(5, 4)], {}, "cell 1 reads 5 inputs, but cell 0 has 4 outputs"),
        ([LIF(3, 4)], {"layer_delay": 2}, "layer_delay must be 0 or 1, got 2"),
    ],
)
def test_construction_is_refused_with_what_was_wanted(cells, settings, message):
    with pytest.raises(ValueError, match=message):
        Network(cells, 2, **settings)


def test_cells_and_readouts_of_other_libraries_are_refused_by_what_came():
    with pytest.raises(TypeError, match=r"cells must be cells of neurolsc, got Linear\(.* as cell 1: neurolsc\.wrap"):
        Network([LIF(3, 4), torch.nn.Linear(4, 4)], 2)  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"must map \(B, 4\) to a tensor \(B, classes\), got a tuple"):
        Network([LIF(3, 4)], torch.nn.LSTM(4, 4))


def test_a_readout_that_is_made_has_the_dtype_and_device_of_the_last_cell():
    assert Network([LIF(3, 4).double()], 2)(torch.zeros(5, 2, 3)).dtype == torch.float64
    assert Network([LIF(3, 4).to("meta")], 2, readout_bias=True).readout.bias.is_meta


def test_a_readout_may_be_any_module_and_is_called_step_by_step(make_network, make_spikes):
    network, x = make_network(gain=4), make_spikes()
    norm = torch.nn.Sequential(network.readout, torch.nn.Softmax(1))
    other = Network(network.cells, norm)
    assert other.n_out == 4
    torch.testing.assert_close(other(x), network(x).softmax(-1))
    with pytest.raises(ValueError, match=r"must map \(B, 16\) to a tensor \(B, classes\), got \(1, 2, 8\)"):
        Network(network.cells, torch.nn.Unflatten(1, (2, 8)))


@both_delays
def test_records_hold_state_input_and_output_of_each_step(layer_delay, make_network, make_spikes):
    network, x = make_network(layer_delay=layer_delay, gain=2), make_spikes(T=8, B=3)
    records, run = list(network.records(x)), network.run(x)
    before = [network.initial_states(3), *(record.after for record in records)]
    for t, record in enumerate(records):
        torch.testing.assert_close(record.before, before[t], rtol=0, atol=0)
        read = x[t] if not layer_delay else x[t - 1] if t else torch.zeros_like(x[0])
        assert torch.equal(record.inputs[0], read)
        source = run.spikes[0][t - layer_delay] if t >= layer_delay else torch.zeros(3, 16)
        assert torch.equal(record.inputs[1], source)
        assert torch.equal(record.outputs[-1], run.spikes[-1][t])
    assert run.spikes[-1].any()


def test_an_input_is_moved_to_the_network():
    network, x = Network([ALIFPlus(5, 4), LIF(4, 3)], 2).to("meta"), torch.rand(6, 2, 5)
    assert {m.outputs[1].device.type for m in network.records(x)} == {"meta"}
    assert network.step(x[0], network.initial_states(2))[0].is_meta


# torch.compile: the network's own loop is not compiled step by step


@pytest.fixture
def compiler():
    torch.compiler.reset()
    yield torch.compile
    torch.compiler.reset()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's compiler itself
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # likewise, which it reads
def test_what_stands_around_a_network_is_compiled(compiler, make_network, make_spikes):
    graphs = []

    def noting(graph, inputs):
        graphs.append([node.target for node in graph.graph.nodes if node.op.startswith("call")])
        return graph.forward

    network, x = make_network(gain=3.0), make_spikes()

    def around(x):
        return network(x.relu()).softmax(-1)

    with pytest.warns(UserWarning, match=r"leaves a neurolsc\.Network out of its graph.*cell\.run or cell\.step"):
        found = compiler(around, backend=noting)(x)
    torch.testing.assert_close(found, around(x))
    assert graphs == [["relu"], ["softmax"]]  # and no step of the loop
    assert network.run(x).spikes[-1].any()
    with pytest.warns(UserWarning, match="out of its graph"):
        compiled = compiler(network)(x)
    by_compiled, by_plain = (
        torch.autograd.grad(out.square().sum(), network.cells[0].w_in) for out in (compiled, network(x))
    )
    torch.testing.assert_close(by_compiled, by_plain)
    assert evaluate(compiler(network), [(x[:, 0], 0)]) == evaluate(network, [(x[:, 0], 0)])
