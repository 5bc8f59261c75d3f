"""The paper's cells that send numbers: against PyTorch's layers, autograd, and their own steps."""

import pytest
import torch
from torch import Tensor, nn

from neurolsc import Cell, Network
from neurolsc.neurons import GRU, LRU, LSTM, RNN, FeedForward
from neurolsc.neurons.rate import ACTIVATIONS
from neurolsc.stability.profile import depth_radius, time_radius
from neurolsc.stability.transitions import (
    depth_factors,
    flat,
    follow,
    input_derivative_by_autograd,
    output_derivative_by_autograd,
    time_derivative,
    time_derivative_by_autograd,
)

pytestmark = pytest.mark.usefixtures("float64")

KINDS = [
    *[(RNN, {"activation": name}) for name in ACTIVATIONS],
    (GRU, {}),
    (GRU, {"reset_after": True}),
    (LSTM, {}),
    (LRU, {"radius_of": "block", "n_state": 6, "dropout": 0.0}),
    *[(FeedForward, {"activation": name}) for name in ACTIVATIONS],
]
TIGHT = {"rtol": 1e-10, "atol": 1e-12}


def name_of(kind: tuple[type[Cell], dict[str, object]]) -> str:
    return kind[0].__name__ + "".join(f"-{value}" for value in kind[1].values())


each_kind = pytest.mark.parametrize("kind", KINDS, ids=name_of)


def made(kind: tuple[type[Cell], dict[str, object]], n_in: int, n_hidden: int) -> Cell:
    """A cell whose biases are not zero."""
    cell = kind[0](n_in, n_hidden, **kind[1])
    with torch.no_grad():
        for name, parameter in cell.named_parameters():
            if "bias" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.3)
    return cell


def network_of(kind: tuple[type[Cell], dict[str, object]], layer_delay: int = 1) -> Network:
    return Network([made(kind, 5, 4), made(kind, 4, 3)], 2, layer_delay=layer_delay)


@each_kind
def test_closed_forms_and_products_equal_autograd(kind):
    network, x = network_of(kind), torch.randn(6, 3, 5)
    generator = torch.Generator().manual_seed(0)
    for layer, t in enumerate(follow(network, x, torch.arange(6))[0]):
        closed, by_hand = time_derivative(t), time_derivative_by_autograd(t)
        torch.testing.assert_close(closed, by_hand, **TIGHT)
        by_input, below = depth_factors(t)
        torch.testing.assert_close(by_input, input_derivative_by_autograd(t), **TIGHT)
        if t.below is not None:
            torch.testing.assert_close(below.expand(18, -1, -1), output_derivative_by_autograd(t), **TIGHT)
        step, columns = t.cell.derivatives().state_map(t.x, t.before), closed.shape[2]
        vectors = torch.randn(18, columns)
        torch.testing.assert_close(step.matvec(vectors), (closed @ vectors.unsqueeze(2)).squeeze(2), **TIGHT)
        torch.testing.assert_close(step.rmatvec(vectors), (closed.mT @ vectors.unsqueeze(2)).squeeze(2), **TIGHT)
        some = torch.tensor([3, 3, 17])
        torch.testing.assert_close(step.take(some).matvec(vectors[some]), step.matvec(vectors)[some], **TIGHT)
        parts = step.terms(vectors, vectors)
        torch.testing.assert_close(sum(parts.values()), (vectors * step.matvec(vectors)).sum(1), **TIGHT)
        for radius in (time_radius, lambda *a, **m: depth_radius(*a[:2], "singular", generator, **m)):
            exact = radius(t, layer, method="exact").radius
            torch.testing.assert_close(radius(t, layer, method="krylov").radius, exact, rtol=0.011, atol=1e-12)


@each_kind
def test_both_ways_have_the_same_gradient_by_the_parameters(kind):
    for t in follow(network_of(kind), torch.randn(4, 2, 5), torch.arange(4))[0]:
        ways = [
            (time_derivative(t), time_derivative_by_autograd(t)),
            (depth_factors(t)[0], input_derivative_by_autograd(t)),
        ]
        for closed, by_hand in ways:
            if not closed.requires_grad:  # a layer without memory
                assert not by_hand.any()
                continue
            weights = torch.randn(by_hand.shape)
            wanted = dict(t.cell.named_parameters())
            gradients = [
                torch.autograd.grad(
                    (weights * m).sum(), list(wanted.values()), allow_unused=True, materialize_grads=True
                )
                for m in (closed, by_hand)
            ]
            torch.testing.assert_close(*gradients, **TIGHT)


@each_kind
@pytest.mark.parametrize("lengths", [None, [4, 0, 7]], ids=["whole", "lengths"])
@pytest.mark.parametrize("late", [False, True], ids=["now", "late"])
def test_a_run_is_its_steps(kind, lengths, late):
    cell, x = made(kind, 5, 4), torch.randn(7, 3, 5)
    state = type(cell.initial_state(3))(*(torch.randn_like(leaf) for leaf in cell.initial_state(3)))
    told = {
        "first": torch.randn(3, 5) if late else None,
        "lengths": None if lengths is None else torch.tensor(lengths),
    }
    outputs, last = cell.run(x, state, **told)
    wanted, wanted_last = cell._by_steps(x, state, told["first"], told["lengths"])
    alive = torch.ones(7, 3, dtype=torch.bool) if lengths is None else torch.arange(7)[:, None] < told["lengths"]
    torch.testing.assert_close(outputs[alive], wanted[alive], **TIGHT)
    torch.testing.assert_close(flat(last), flat(wanted_last), **TIGHT)
    recomputed, again = cell.run(x, state, recompute=True, **told)
    torch.testing.assert_close(recomputed[alive], wanted[alive], **TIGHT)
    torch.testing.assert_close(flat(again), flat(wanted_last), **TIGHT)
    gradients = [
        torch.autograd.grad(z[alive].square().sum() + flat(s).sum(), list(cell.parameters()))
        for z, s in ((outputs, last), (wanted, wanted_last))
    ]
    torch.testing.assert_close(*gradients, **TIGHT)


@each_kind
def test_under_autocast_a_run_and_its_steps_are_near_those_of_float32(kind):
    cell, x = made(kind, 5, 4).float(), torch.randn(7, 3, 5, dtype=torch.float32)
    wanted, _ = cell.run(x, cell.initial_state(3))
    with torch.autocast("cpu", torch.bfloat16):
        for outputs, _ in (cell.run(x, cell.initial_state(3)), cell._by_steps(x, cell.initial_state(3), None, None)):
            torch.testing.assert_close(outputs.float(), wanted, rtol=0.05, atol=0.05)  # bfloat16 keeps two digits


def theirs(cell: Cell) -> nn.RNNBase:
    """PyTorch's layer with the weights of ours."""
    kind = {RNN: nn.RNN, GRU: nn.GRU, LSTM: nn.LSTM}[type(cell)]
    more = {"nonlinearity": cell.activation} if isinstance(cell, RNN) else {}
    layer = kind(cell.n_in, cell.n_hidden, **more)
    zero = torch.zeros_like(cell.bias)
    given = [cell.w_in, cell.w_rec, cell.bias, cell.recurrent_bias if isinstance(cell, GRU) else zero]
    with torch.no_grad():
        for parameter, value in zip(layer.parameters(), given, strict=True):
            parameter.copy_(value)
    return layer


@pytest.mark.parametrize(
    "kind",
    [(RNN, {"activation": "relu"}), (RNN, {"activation": "tanh"}), (GRU, {"reset_after": True}), (LSTM, {})],
    ids=name_of,
)
def test_step_by_step_they_are_pytorchs_layers(kind):
    cell, x = made(kind, 5, 4), torch.randn(7, 3, 5)
    wanted, _ = theirs(cell)(x)
    outputs, _ = cell._by_steps(x, cell.initial_state(3), None, None)
    torch.testing.assert_close(outputs, wanted, **TIGHT)


def gru_by_hand(cell: GRU, x: Tensor, h: Tensor) -> Tensor:
    """Equation 48 as printed."""
    (w_r, w_z, w_h), (u_r, u_z, u_h), (b_r, b_z, b_h) = (p.chunk(3) for p in (cell.w_in, cell.w_rec, cell.bias))
    r = torch.sigmoid(x @ w_r.T + h @ u_r.T + b_r)
    z = torch.sigmoid(x @ w_z.T + h @ u_z.T + b_z)
    candidate = torch.tanh(x @ w_h.T + (r * h) @ u_h.T + b_h)
    return (1 - z) * h + z * candidate


def test_the_gru_is_equation_48():
    cell, x, h = made((GRU, {}), 5, 4), torch.randn(3, 5), torch.randn(3, 4)
    _, state = cell.step(x, type(cell.initial_state(3))(h))
    torch.testing.assert_close(state.h, gru_by_hand(cell, x, h), **TIGHT)


def gru_by_torch(cell: GRU, x: Tensor, h: Tensor) -> Tensor:
    """The equations of `torch.nn.GRU` as its page prints them."""
    (w_r, w_z, w_n), (u_r, u_z, u_n), (b_r, b_z, b_n), (c_r, c_z, c_n) = (p.chunk(3) for p in cell.parameters())
    r = torch.sigmoid(x @ w_r.T + b_r + h @ u_r.T + c_r)
    z = torch.sigmoid(x @ w_z.T + b_z + h @ u_z.T + c_z)
    n = torch.tanh(x @ w_n.T + b_n + r * (h @ u_n.T + c_n))
    return (1 - z) * n + z * h


@pytest.mark.parametrize(("reset_after", "theirs"), [(False, gru_by_hand), (True, gru_by_torch)])
def test_a_grus_step_has_first_and_second_gradients_of_its_formula(reset_after, theirs):
    cell = made((GRU, {"reset_after": reset_after}), 5, 4)
    x, h = torch.randn(3, 5, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    wanted, found = [x, h, *cell.parameters()], []
    for step in (lambda: cell.update(x, h, cell.initial_state(3)).h, lambda: theirs(cell, x, h)):
        first = torch.autograd.grad(step().square().sum(), wanted, create_graph=True)
        found.append((*first, *torch.autograd.grad(sum(g.square().sum() for g in first), wanted)))
    torch.testing.assert_close(*found, **TIGHT)


@pytest.mark.parametrize(
    ("kind", "width", "sl_mnist", "shd_width", "shd"),
    [
        ((LSTM, {}), 42, 153_646, 94, 371_884),
        ((RNN, {}), 128, 151_050, 256, 381_460),
        ((GRU, {}), 53, 150_795, 117, 371_963),
        ((GRU, {"reset_after": True}), 53, 151_113, 117, 372_665),
    ],
    ids=["LSTM", "RNN", "GRU eq. 48", "GRU Table S1"],
)
def test_parameter_counts_of_table_s1(kind, width, sl_mnist, shd_width, shd):
    for n_in, n, n_out, wanted in ((784, width, 10, sl_mnist), (700, shd_width, 20, shd)):
        cell = kind[0]
        network = Network([cell(n_in, n, **kind[1]), cell(n, n, **kind[1])], n_out, readout_bias=True)
        assert sum(p.numel() for p in network.parameters()) == wanted


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind[0] is not LRU], ids=name_of)
def test_starting_values_are_the_papers(kind):
    cell = kind[0](40, 30, **kind[1])
    bound = (6 / 70) ** 0.5
    assert 0.9 * bound < cell.w_in.abs().max() <= bound
    if hasattr(cell, "w_rec"):
        for block in cell.w_rec.detach().split(30):
            torch.testing.assert_close(block @ block.T, torch.eye(30), **TIGHT)
    if kind[0] is RNN:
        assert 0.8 * 0.1**0.5 < cell.bias.abs().max() <= 0.1**0.5
    else:
        assert not cell.bias.any()


@pytest.mark.parametrize("kind", [(GRU, {}), (GRU, {"reset_after": True}), (LSTM, {})], ids=name_of)
def test_the_kept_share_can_be_set(kind):
    cell = made(kind, 5, 4)
    wanted = torch.tensor([0.1, 0.5, 0.9, 0.999])
    before = {name: p.detach().clone() for name, p in cell.named_parameters()}
    cell.kept = wanted
    torch.testing.assert_close(cell.kept, wanted, **TIGHT)
    assert [n for n, p in cell.named_parameters() if not torch.equal(p, before[n])] == ["bias"]
    # at input and output 0 it is what is kept of the state
    state = cell.initial_state(1)
    t = cell.derivatives().by_state(torch.zeros(1, 5), state)["memory"]
    if kind[0] is LSTM:
        torch.testing.assert_close(t[0, 4:, 4:].diagonal(), wanted, **TIGHT)
    else:
        torch.testing.assert_close(t[0].diagonal(), wanted, **TIGHT)


def test_an_unknown_activation_is_refused():
    for kind in (RNN, FeedForward):
        with pytest.raises(ValueError, match=r"activation must be .*relu.*got 'softplus'"):
            kind(2, 3, activation="softplus")
