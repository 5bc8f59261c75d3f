"""The lower bound: its terms against LAPACK, and what the loss makes of a layer."""

import pytest
import torch

from neurolsc import RNN, Criteria, FeedForward, Network, pretrain
from neurolsc.stability.lsc.lower import lower_bound
from neurolsc.stability.transitions import depth_derivative, follow, time_derivative
from tests.stability.linear_cell import Linear

pytestmark = pytest.mark.usefixtures("float64")


def by_hand(m):
    log = torch.linalg.det(m).abs().log() / len(m)
    return log.square() + torch.linalg.eigvalsh((m + m.T) / 2).clamp(max=0).square().mean()


def test_the_terms_are_those_of_every_square_derivative():
    network, x = Network([RNN(5, 4, activation="tanh"), RNN(4, 4, activation="tanh")], 2), torch.randn(3, 2, 5)
    transitions, _ = follow(network, x, torch.arange(3))
    first, second = transitions
    matrices = [*time_derivative(first), *time_derivative(second), *depth_derivative(second)]  # 5 -> 4 is not square
    wanted = torch.stack([by_hand(m) for m in matrices]).mean()
    torch.testing.assert_close(lower_bound(transitions), wanted)
    torch.testing.assert_close(
        lower_bound(transitions[1:], include_input=False), torch.stack([by_hand(m) for m in matrices[6:12]]).mean()
    )


def test_a_determinant_of_0_is_left_out():
    network = Network([FeedForward(4, 4)], 2, layer_delay=0)
    transitions, _ = follow(network, torch.ones(1, 1, 4), torch.arange(1))
    value = lower_bound(transitions, include_input=False)
    assert value == 0  # no memory: the derivative through time is 0


def test_all_eigenvalues_come_to_1_where_a_layer_can_have_them():
    a = 0.4 * torch.randn(4, 4)
    a[0] *= torch.linalg.det(a).sign()
    network = Network([Linear(a, torch.eye(4))], 2, layer_delay=0)
    rest = {"multiplier": None, "shuffle": False, "weight_decay": 0.0, "progress": False}
    never = Criteria(tolerance=0.0)
    result = pretrain(
        network, [torch.randn(3, 8, 4)], target=1.0, lower_bound=1.0, max_steps=120, lr=0.05, criteria=never, **rest
    )
    before, after = result.history[0]["lower_bound"], result.history[-1]["lower_bound"]
    assert before > 0.1
    assert after < 1e-3
    eigenvalues = torch.linalg.eigvals(network.cells[0].a.detach())
    assert (eigenvalues.abs() - 1).abs().max() < 0.1


def test_without_it_the_history_has_no_such_column():
    network = Network([Linear(torch.eye(2), torch.eye(2))], 2, layer_delay=0)
    assert "lower_bound" not in pretrain(network, [torch.randn(3, 2, 2)], max_steps=1, progress=False).history[0]
    with pytest.raises(ValueError, match="lower_bound is a part of the loss"):
        pretrain(network, [torch.randn(3, 2, 2)], lower_bound=1.0, gradient=False, progress=False)
