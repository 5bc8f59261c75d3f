"""The paper's optimizer, gains, conditioned gradients and bounded weights."""

from typing import Any

import pytest
import snntorch as snn
import torch
from torch import nn

from neurolsc import LIF, ALIFPlus, Network, match_firing_rates, train, wrap
from neurolsc.training.optim import (
    bound_weights,
    clip_singular_values,
    clip_weights,
    condition_gradients,
)
from tests.patterns import CLASSES, N, Patterns

DATA: dict[str, Any] = {"training": Patterns(24), "validation": Patterns(12, seed=1), "epochs": 1, "batch_size": 8}
DATA["progress"] = False


def firing() -> Network:
    torch.manual_seed(0)
    return Network([LIF(N, 12, threshold=0.2), LIF(12, 12, threshold=0.2)], CLASSES)


def inputs(count: int) -> torch.Tensor:
    return torch.stack([Patterns(count)[i][0] for i in range(count)], 1)


def test_clipped_is_the_nearest_matrix_within_the_bound():
    w = torch.randn(7, 5, dtype=torch.float64)
    u, s, vh = torch.linalg.svd(w, full_matrices=False)
    clipped = clip_singular_values(w, 1.5)
    assert s[0] > 1.5 > s[-1]
    torch.testing.assert_close(clipped, u @ torch.diag(torch.where(s > 1.5, 1.5, s)) @ vh)
    torch.testing.assert_close(clip_singular_values(clipped, 1.5), clipped)
    assert clip_singular_values(w, 100.0) is w


@pytest.mark.parametrize("kind", [LIF, ALIFPlus])
def test_weights_stay_within_so_many_thresholds_of_their_neuron_in_a_training(kind):
    network = Network([kind(N, 12), kind(12, 12)], CLASSES)
    for cell in network.cells:
        with torch.no_grad():
            cell.w_in.mul_(20)
            if kind is LIF:
                cell.theta.mul_(torch.linspace(0.5, 1.5, 12))
    match_firing_rates(network, inputs(8), [0.1, 0.1])

    def ratios(cell: Any, weight: torch.Tensor) -> torch.Tensor:
        rest = cell.theta if kind is LIF else cell.theta_rest
        return weight.detach().abs() / rest.detach().unsqueeze(1)

    most = 0.5 * ratios(network.cells[0], network.cells[0].w_in).max().item()
    train(network, **DATA | {"clip_weight": most})
    for cell in network.cells:
        for weight in (cell.w_in, cell.w_rec):
            assert ratios(cell, weight).max() < most * (1 + 1e-5)
    assert ratios(network.cells[0], network.cells[0].w_in).max() > 0.99 * most


def test_a_weight_is_bound_only_where_it_is_too_large_and_a_frozen_matrix_stays():
    cell = LIF(5, 4, threshold=0.5)
    with torch.no_grad():
        cell.w_in.copy_(torch.linspace(-2, 2, 20).view(4, 5))
    before = cell.w_in.detach().clone()
    cell.w_rec.requires_grad_(False).mul_(100)
    frozen = cell.w_rec.detach().clone()
    clip_weights(cell, 3.0)
    assert torch.equal(cell.w_in, before.clamp(-1.5, 1.5))
    assert torch.equal(cell.w_rec, frozen)


def test_weights_of_a_cell_without_a_voltage_cannot_be_bound():
    network = wrap([nn.RNN(N, 12), nn.Linear(12, CLASSES)])
    with pytest.raises(TypeError, match="clip_weight needs a cell that names its voltage, got "):
        train(network, **DATA | {"clip_weight": 1.0})


def test_a_wrapped_layer_is_clipped_and_a_frozen_one_is_not():
    layer = snn.RLeaky(0.8, linear_features=12)
    network = wrap([nn.Linear(N, 12), layer, nn.Linear(12, CLASSES)])
    for trained, largest in ((True, 0.5), (False, 2.5)):
        with torch.no_grad():
            layer.recurrent.weight.mul_(5)
        layer.recurrent.weight.requires_grad_(trained)
        bound_weights(network, weight=0, spectrum=0.5)
        assert torch.linalg.svdvals(layer.recurrent.weight.detach())[0].item() == pytest.approx(largest, rel=1e-5)


def test_a_gradient_is_clipped_and_centralized_within_rows_of_the_cells():
    network = firing()
    for p in network.parameters():
        p.grad = torch.randn_like(p)
    before = {name: p.grad.clone() for name, p in network.named_parameters()}
    condition_gradients(network, centralize=True, clip=0)
    for name, p in network.named_parameters():
        rows = p.ndim == 2 and not name.startswith("readout")
        wanted = before[name] - before[name].mean(1, keepdim=True) if rows else before[name]
        torch.testing.assert_close(p.grad, wanted)
    free = torch.cat([p.grad.flatten() for p in network.parameters()])
    for clip, norm in ((1e9, free.norm()), (0.01, 0.01)):
        condition_gradients(network, centralize=False, clip=clip)
        clipped = torch.cat([p.grad.flatten() for p in network.parameters()])
        torch.testing.assert_close(clipped, free * norm / free.norm(), rtol=1e-4, atol=1e-8)
