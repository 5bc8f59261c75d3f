"""Clipped gradients and clipped singular values, in training."""

import pytest
import snntorch as snn
import torch
from torch import nn

from neurolsc import LIF, ALIFPlus, Conditioning, Network, match_firing_rates, train, wrap
from neurolsc.conditioning import clip_singular_values, clip_weights
from neurolsc.schedule import Constant
from tests.patterns import CLASSES, N, Patterns

DATA = {"training": Patterns(24), "validation": Patterns(12, seed=1), "progress": False, "batch_size": 8}


def firing() -> Network:
    torch.manual_seed(0)
    return Network([LIF(N, 12, threshold=0.2), LIF(12, 12, threshold=0.2)], CLASSES)


def largest(network: Network) -> list[float]:
    return [torch.linalg.svdvals(cell.w_rec.detach())[0].item() for cell in network.cells]


def test_clipped_is_the_nearest_matrix_within_the_bound():
    torch.manual_seed(0)
    w = torch.randn(7, 5, dtype=torch.float64)
    u, s, vh = torch.linalg.svd(w, full_matrices=False)
    clipped = clip_singular_values(w, 1.5)
    assert s[0] > 1.5 > s[-1]
    torch.testing.assert_close(clipped, u @ torch.diag(torch.where(s > 1.5, 1.5, s)) @ vh)
    torch.testing.assert_close(clip_singular_values(clipped, 1.5), clipped)
    assert clip_singular_values(w, 100.0) is w
    for _ in range(20):  # no other matrix within the bound is nearer
        other = torch.randn(7, 5, dtype=torch.float64)
        other *= 1.5 / torch.linalg.matrix_norm(other, 2)
        assert (other - w).norm() > (clipped - w).norm()


@pytest.mark.parametrize("optimizer", ["adabelief", "sgd"])
def test_recurrent_matrices_stay_within_the_bound(optimizer):
    more = {} if optimizer == "adabelief" else {"optimizer": torch.optim.SGD}
    free, bound = firing(), firing()
    spikes = bound.run(torch.stack([Patterns(4)[i][0] for i in range(4)], 1)).spikes
    assert all(z.mean() > 0.01 for z in spikes)
    train(free, **DATA, epochs=3, lr=0.05, **more)
    before = bound.cells[0].w_in.detach().clone()
    train(bound, **DATA, epochs=3, lr=0.05, conditioning=Conditioning(clip_spectrum=0.8), **more)
    assert min(largest(free)) > 0.9
    assert max(largest(bound)) == pytest.approx(0.8, rel=1e-4)
    assert torch.linalg.svdvals(bound.cells[0].w_in.detach())[0] > 0.9  # input matrices are not recurrent
    assert not torch.equal(bound.cells[0].w_in, before)


@pytest.mark.parametrize("kind", [LIF, ALIFPlus])
def test_weights_stay_within_so_many_thresholds_of_their_neuron(kind):
    torch.manual_seed(0)
    network = Network([kind(N, 12), kind(12, 12)], CLASSES)
    for cell in network.cells:
        with torch.no_grad():
            cell.w_in.mul_(20)
            if kind is LIF:
                cell.theta.mul_(torch.linspace(0.5, 1.5, 12))
    match_firing_rates(network, torch.stack([Patterns(8)[i][0] for i in range(8)], 1), [0.1, 0.1])
    rests = [cell.theta if kind is LIF else cell.theta_rest for cell in network.cells]
    assert rests[0].min() < 0.9 * rests[0].max()
    ratio = (network.cells[0].w_in.detach().abs() / rests[0].detach().unsqueeze(1)).max()
    most = 0.5 * ratio.item()
    train(network, **DATA, epochs=1, conditioning=Conditioning(clip_weight=most))
    for cell in network.cells:
        rest = (cell.theta if kind is LIF else cell.theta_rest).detach().unsqueeze(1)
        for weights in (cell.w_in.detach(), cell.w_rec.detach()):
            assert ((weights.abs() - most * rest).clamp(min=0) / rest).max() < 1e-5
    assert (network.cells[0].w_in.detach().abs() / rests[0].detach().unsqueeze(1)).max() > 0.99 * most


def test_a_weight_is_bound_only_where_it_is_too_large_and_a_frozen_matrix_stays():
    torch.manual_seed(0)
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
    with pytest.raises(TypeError, match="clip_weight needs a cell that names its voltage"):
        Conditioning(clip_weight=1.0).after_update(network)


def test_a_wrapped_layer_is_clipped_and_a_frozen_one_is_not():
    torch.manual_seed(0)
    layer = snn.RLeaky(0.8, linear_features=12)
    network = wrap([nn.Linear(N, 12), layer, nn.Linear(12, CLASSES)])
    with torch.no_grad():
        layer.recurrent.weight.mul_(5)
    Conditioning(clip_spectrum=0.5).after_update(network)
    assert torch.linalg.svdvals(layer.recurrent.weight.detach())[0].item() == pytest.approx(0.5, rel=1e-5)
    with torch.no_grad():
        layer.recurrent.weight.mul_(5)
    layer.recurrent.weight.requires_grad_(False)
    Conditioning(clip_spectrum=0.5).after_update(network)
    assert torch.linalg.svdvals(layer.recurrent.weight)[0].item() == pytest.approx(2.5, rel=1e-5)


def test_a_gradient_is_scaled_down_to_the_norm():
    network, clipped = firing(), firing()
    moves = []
    for one, clip in ((network, Conditioning()), (clipped, Conditioning(clip_gradient=0.01))):
        before = [p.detach().clone() for p in one.parameters()]
        data = DATA | {"training": Patterns(8)}  # one batch
        train(
            one,
            **data | {"lr": 1.0, "optimizer": torch.optim.SGD, "schedule": Constant(), "conditioning": clip},
            epochs=1,
        )
        moves.append(torch.cat([(p.detach() - b).flatten() for p, b in zip(one.parameters(), before, strict=True)]))
    free, bound = moves
    assert free.norm() > 0.05
    assert bound.norm().item() == pytest.approx(0.01, rel=1e-3)
    # moves of 0.01 in all are differences of weights of 1, which float32 rounds by 6e-8
    torch.testing.assert_close(bound / bound.norm(), free / free.norm(), rtol=1e-3, atol=1e-4)


def test_a_centralized_gradient_moves_no_sum_of_a_row_but_those_of_the_readout():
    for cell, shape in ((ALIFPlus, {}), (LIF, {"tau_v": 5.0})):
        torch.manual_seed(0)
        network = Network([cell(N, 12, **shape), cell(12, 12, **shape)], CLASSES)
        for layer in network.cells:
            layer.thresholds().scale(0.1)
        assert min(
            layer.sum() for layer in network.run(torch.stack([DATA["training"][i][0] for i in range(4)], 1)).spikes
        )
        before = {name: p.detach().clone() for name, p in network.named_parameters()}
        centred = {"optimizer": torch.optim.SGD, "conditioning": Conditioning(centralize=True), "progress": False}
        train(network, **{**DATA, **centred}, epochs=1, lr=0.5)
        for name, p in network.named_parameters():
            moved = (p.detach() - before[name]).double()
            assert moved.abs().max() > 1e-6, name
            if p.ndim == 2:
                still = moved.sum(1).abs().max() < 1e-5 * moved.abs().sum(1).max() + 1e-6
                assert still == (not name.startswith("readout")), name


def test_a_centralized_gradient_is_that_less_the_mean_of_its_row():
    network = firing()
    for p in network.parameters():
        p.grad = torch.randn_like(p)
    before = {name: p.grad.clone() for name, p in network.named_parameters()}
    Conditioning(centralize=True).before_update(network)
    for name, p in network.named_parameters():
        rows = p.ndim == 2 and not name.startswith("readout")
        wanted = before[name] - before[name].mean(1, keepdim=True) if rows else before[name]
        torch.testing.assert_close(p.grad, wanted)


def test_what_is_far_below_the_bounds_is_left():
    one, other = firing(), firing()
    train(one, **DATA, epochs=1, conditioning=Conditioning())
    train(other, **DATA, epochs=1, conditioning=Conditioning(clip_gradient=1e9, clip_spectrum=1e9))
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_resumption_with_another_clipping_is_refused(tmp_path):
    train(firing(), **DATA, epochs=1, conditioning=Conditioning(clip_gradient=1.0), checkpoint=tmp_path / "c")
    with pytest.raises(ValueError, match=r"conditioning = Conditioning\(clip_gradient=1.0, .*\), now it is C"):
        train(firing(), **DATA, epochs=2, conditioning=Conditioning(clip_gradient=2.0), checkpoint=tmp_path / "c")


@pytest.mark.parametrize(
    "wrong", [{"clip_gradient": -1.0}, {"clip_spectrum": float("inf")}, {"clip_gradient": float("nan")}]
)
def test_bounds_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match="must be zero or positive"):
        Conditioning(**wrong)


def test_a_cell_without_recurrent_matrices_is_left_alone():
    class Mute(ALIFPlus):
        def update(self, x, z, state):
            return super().update(x, z, state)

    network = Network([Mute(N, 4)], CLASSES)
    before = network.cells[0].w_rec.clone()
    Conditioning(clip_spectrum=1e-3).after_update(network)
    assert torch.equal(network.cells[0].w_rec, before)
