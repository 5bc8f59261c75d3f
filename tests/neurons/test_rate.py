"""Feed-forward, RNN, GRU, LSTM and LRU: against PyTorch, their formulas, their own steps."""

import pytest
import torch
from torch import Tensor, nn

from neurolsc import ALIFPlus, Cell, Network
from neurolsc.neurons import GRU, LRU, LSTM, RNN, DiagonalRNN, FeedForward
from neurolsc.neurons.derivatives import flat
from neurolsc.neurons.rate import HiddenState
from tests.neurons.steps import by_steps

pytestmark = pytest.mark.usefixtures("float64")

KINDS = [
    *[(RNN, {"activation": name}) for name in ("relu", "tanh", "swish")],
    (GRU, {}),
    (GRU, {"reset_after": True}),
    (LSTM, {}),
    (LRU, {"n_state": 6, "dropout": 0.0}),
    *[(DiagonalRNN, {"n_state": 6, "form": form}) for form in ("complex", "lru", "s4")],
    (FeedForward, {"activation": "sine"}),
]
TIGHT = {"rtol": 1e-10, "atol": 1e-12}


def name_of(kind: tuple[type[Cell], dict[str, object]]) -> str:
    return kind[0].__name__ + "".join(f"-{value}" for value in kind[1].values())


each_kind = pytest.mark.parametrize("kind", KINDS, ids=name_of)


def made(kind: tuple[type[Cell], dict[str, object]], n_in: int = 5, n_hidden: int = 4) -> Cell:
    """A cell whose biases are not zero."""
    cell = kind[0](n_in, n_hidden, **kind[1])
    with torch.no_grad():
        for name, parameter in cell.named_parameters():
            if "bias" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.3)
    return cell


@each_kind
@pytest.mark.parametrize("lengths", [None, [4, 0, 7]], ids=["whole", "lengths"])
def test_a_run_is_its_steps_with_their_gradient(kind, lengths):
    late, cell, x = torch.randn(3, 5), made(kind), torch.randn(7, 3, 5)
    state = type(cell.initial_state(3))(*(torch.randn_like(leaf) for leaf in cell.initial_state(3)))
    lengths = None if lengths is None else torch.tensor(lengths)
    alive = torch.ones(7, 3, dtype=torch.bool) if lengths is None else torch.arange(7)[:, None] < lengths
    ends = []
    for run in (by_steps, type(cell).run):
        z, last = run(cell, x, state, lengths=lengths, late=late)
        loss = z[alive].square().sum() + flat(last).sum()
        ends.append((z[alive], flat(last), *torch.autograd.grad(loss, list(cell.parameters()))))
    torch.testing.assert_close(ends[1], ends[0], **TIGHT)


@each_kind
def test_under_autocast_a_run_and_its_steps_are_near_those_of_float32(kind):
    cell, x = made(kind).float(), torch.randn(7, 3, 5, dtype=torch.float32)
    wanted, _ = cell.run(x, cell.initial_state(3))
    with torch.autocast("cpu", torch.bfloat16):
        for outputs, _ in (cell.run(x, cell.initial_state(3)), by_steps(cell, x, cell.initial_state(3))):
            torch.testing.assert_close(outputs.float(), wanted, rtol=0.05, atol=0.05)  # bfloat16 has two digits


@pytest.mark.parametrize(
    "kind",
    [(RNN, {"activation": "relu"}), (RNN, {"activation": "tanh"}), (GRU, {"reset_after": True}), (LSTM, {})],
    ids=name_of,
)
def test_step_by_step_they_are_pytorchs_layers(kind):
    cell, x = made(kind), torch.randn(7, 3, 5)
    more = {"nonlinearity": cell.activation} if isinstance(cell, RNN) else {}
    layer = {RNN: nn.RNN, GRU: nn.GRU, LSTM: nn.LSTM}[type(cell)](cell.n_in, cell.n_hidden, **more)
    second = cell.recurrent_bias if isinstance(cell, GRU) else torch.zeros_like(cell.bias)
    with torch.no_grad():
        for parameter, value in zip(layer.parameters(), (cell.w_in, cell.w_rec, cell.bias, second), strict=True):
            parameter.copy_(value)
    torch.testing.assert_close(by_steps(cell, x, cell.initial_state(3))[0], layer(x)[0], **TIGHT)


def gru_by_hand(cell: GRU, x: Tensor, h: Tensor) -> Tensor:
    """Equation 48 as printed."""
    (w_r, w_z, w_h), (u_r, u_z, u_h), (b_r, b_z, b_h) = (p.chunk(3) for p in (cell.w_in, cell.w_rec, cell.bias))
    r = torch.sigmoid(x @ w_r.T + h @ u_r.T + b_r)
    z = torch.sigmoid(x @ w_z.T + h @ u_z.T + b_z)
    candidate = torch.tanh(x @ w_h.T + (r * h) @ u_h.T + b_h)
    return (1 - z) * h + z * candidate


def test_the_gru_is_equation_48_with_first_and_second_gradients():
    cell = made((GRU, {}))
    x, h = torch.randn(3, 5, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    wanted, found = [x, h, *cell.parameters()], []
    for step in (lambda: cell.update(x, h, HiddenState(h)).h, lambda: gru_by_hand(cell, x, h)):
        after = step()
        first = torch.autograd.grad(after.square().sum(), wanted, create_graph=True)
        found.append((after, *first, *torch.autograd.grad(sum(g.square().sum() for g in first), wanted)))
    torch.testing.assert_close(*found, **TIGHT)


@pytest.mark.parametrize(
    ("kind", "width", "sl_mnist", "shd_width", "shd"),
    [
        ((ALIFPlus, {}), 128, 151_818, 256, 382_996),  # lsc.md, part 2: the table prints 2 more, counts a readout bias
        ((LSTM, {}), 42, 153_646, 94, 371_884),
        ((RNN, {}), 128, 151_050, 256, 381_460),
        ((GRU, {"reset_after": True}), 53, 151_113, 117, 372_665),
    ],
    ids=["ALIFPlus", "LSTM", "RNN", "GRU Table S1"],
)
def test_parameter_counts_of_table_s1(kind, width, sl_mnist, shd_width, shd):
    for n_in, n, n_out, wanted in ((784, width, 10, sl_mnist), (700, shd_width, 20, shd)):
        cell = kind[0]
        network = Network([cell(n_in, n, **kind[1]), cell(n, n, **kind[1])], n_out, readout_bias=True)
        assert sum(p.numel() for p in network.parameters()) == wanted


@pytest.mark.parametrize("kind", [RNN, GRU, LSTM, FeedForward])
def test_starting_values_are_the_papers(kind):
    cell, bound = kind(40, 30), (6 / 70) ** 0.5
    assert 0.9 * bound < cell.w_in.abs().max() <= bound
    if hasattr(cell, "w_rec"):
        for block in cell.w_rec.detach().split(30):
            torch.testing.assert_close(block @ block.T, torch.eye(30), **TIGHT)
    if kind is RNN:
        assert 0.8 * 0.1**0.5 < cell.bias.abs().max() <= 0.1**0.5
    else:
        assert not cell.bias.any()


@pytest.mark.parametrize("kind", [(GRU, {}), (GRU, {"reset_after": True}), (LSTM, {})], ids=name_of)
def test_retention_can_be_set_and_is_what_is_left_of_the_state(kind):
    cell = made(kind)
    wanted = torch.tensor([0.1, 0.5, 0.9, 0.999])
    before = {name: p.detach().clone() for name, p in cell.named_parameters()}
    cell.retention = wanted
    torch.testing.assert_close(cell.retention, wanted, **TIGHT)
    assert [n for n, p in cell.named_parameters() if not torch.equal(p, before[n])] == ["bias"]
    nn.init.zeros_(cell.w_rec)
    state = type(cell.initial_state(1))(*(torch.zeros(1, 4, requires_grad=True) for _ in cell.initial_state(1)))
    after = cell.update(torch.zeros(1, 5), state.h, state)
    (left,) = torch.autograd.grad(after[-1].sum(), [state[-1]])
    torch.testing.assert_close(left[0], wanted, **TIGHT)


# ---- memories before training (arXiv:2405.21064, App. A)


def test_a_linear_rnn_starts_with_moduli_of_at_least_its_memory():
    cell, free = RNN(3, 40, activation="linear", memory=0.9), RNN(3, 40, activation="linear", memory=0.0)
    for one, least in ((cell, 0.9), (free, 0.0)):
        moduli = torch.linalg.eigvals(one.w_rec.double()).abs()
        assert least - 1e-4 < moduli.min() and moduli.max() < 1 and not one.bias.any()
    assert torch.linalg.eigvals(free.w_rec).abs().min() < 0.5


@pytest.mark.parametrize("make", [GRU, LSTM, lambda n, m, memory: GRU(n, m, memory=memory, reset_after=True)])
def test_gated_cells_start_with_chronos_retentions(make):
    cell = make(3, 500, memory=0.98)
    assert 50 / 51 < cell.retention.min() < 0.981 and 0.9899 < cell.retention.max() < 100 / 101
    if isinstance(cell, LSTM):
        into = torch.sigmoid(cell.bias[:500])
        torch.testing.assert_close(into, 1 - cell.retention, **TIGHT)
    assert cell.bias.ne(0).sum() == (1000 if isinstance(cell, LSTM) else 500)


@pytest.mark.parametrize("kind", [RNN, GRU, LSTM, DiagonalRNN])
def test_a_memory_without_end_is_refused(kind):
    with pytest.raises(ValueError, match=r"memory must be .* in \[0, 1\), got 1"):
        kind(2, 3, memory=1.0)
