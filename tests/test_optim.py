"""Updates: learning rates over a training and by gain, conditioned gradients, bounded weights."""

import math
from functools import partial
from typing import Any

import pytest
import snntorch as snn
import torch
from torch import nn
from torch.optim import lr_scheduler

from neurolsc import LIF, ALIFPlus, ALIFPositive, Network, match_firing_rates, train, wrap
from neurolsc.stability import lyapunov_exponents
from neurolsc.training import FromTorch, TrainSettings, adabelief_lookahead, parameter_groups
from neurolsc.training.optim import (
    bound_weights,
    clip_singular_values,
    clip_weights,
    condition_gradients,
    cosine,
)
from tests.patterns import CLASSES, N, Patterns, stopped

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
def test_a_weight_is_bound_only_where_it_is_too_large_and_a_frozen_matrix_stays(kind):
    cell = kind(5, 4)
    if kind is LIF:
        cell.theta.fill_(0.5)
    else:
        cell.theta_rest = 0.5
    with torch.no_grad():
        cell.w_in.copy_(torch.linspace(-2, 2, 20).view(4, 5))
    before = cell.w_in.detach().clone()
    cell.w_rec.requires_grad_(False).mul_(100)
    frozen = cell.w_rec.detach().clone()
    clip_weights(cell, 3.0)
    torch.testing.assert_close(cell.w_in.detach(), before.clamp(-1.5, 1.5))
    assert torch.equal(cell.w_rec, frozen)


def test_a_training_ends_within_its_bounds():
    network, free = firing(), firing()
    bound = 0.9 * min(torch.linalg.svdvals(cell.w_rec.detach())[0].item() for cell in network.cells)
    train(free, **DATA)
    train(network, **DATA | {"clip_weight": 2.0, "clip_spectrum": bound})
    for cell, other in zip(network.cells, free.cells, strict=True):
        assert torch.linalg.svdvals(cell.w_rec)[0] < bound * (1 + 1e-5) < torch.linalg.svdvals(other.w_rec)[0]
        assert cell.w_in.abs().max() < 2 * 0.2 * (1 + 1e-5) < other.w_in.abs().max()


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
    for p in network.parameters():
        p.grad.mul_(1e24)  # finite, but not its square
    condition_gradients(network, centralize=False, clip=0.01)
    scaled = torch.cat([p.grad.flatten() for p in network.parameters()])
    torch.testing.assert_close(scaled, clipped, rtol=1e-4, atol=1e-8)


# ---- learning rates

TRAINING: dict[str, Any] = {"lr": 0.01, "progress": False, "patience": 9, "batch_size": 8}  # three updates an epoch


def data(samples: int = 20) -> list[tuple[torch.Tensor, int]]:
    generator = torch.Generator().manual_seed(0)
    return [((torch.rand(6, 5, generator=generator) < 0.5).float(), i % 2) for i in range(samples)]


def network(seed: int = 0) -> Network:
    """Two layers that fire."""
    torch.manual_seed(seed)
    made = Network([ALIFPlus(5, 8), ALIFPlus(8, 8)], 2)
    for layer in made.cells:
        layer.thresholds().scale(0.1)
    x = torch.stack([sample for sample, _ in data()], 1)
    assert min(spikes.mean() for spikes in made.run(x).spikes) > 0.02
    return made


def watching(seen: list[list[float]], make: Any = torch.optim.Adam) -> Any:
    """An optimizer that notes the learning rates of each update."""

    def made(parameters: Any, lr: float) -> torch.optim.Optimizer:
        made = make(parameters, lr)
        inner = getattr(made, "optimizer", made)  # of Lookahead
        inner.register_step_pre_hook(lambda *_: seen.append([group["lr"] for group in inner.param_groups]))
        return made

    return made


def test_a_cosine_follows_its_formula():
    course = partial(cosine, warmup=0.2)
    assert [course(s) for s in (0.0, 0.1, 0.2, 0.6, 1.0)] == pytest.approx([0, 0.5, 1, 0.5, 0])
    assert course(0.4) == pytest.approx((1 + math.sqrt(0.5)) / 2)
    steps = torch.optim.Adam([torch.zeros(1)], lr=0.01)
    annealed = lr_scheduler.CosineAnnealingLR(steps, T_max=10)
    for i in range(10):
        assert cosine(i / 10, warmup=0.0) == pytest.approx(100 * annealed.get_last_lr()[0])
        steps.step()
        annealed.step()
    assert [cosine(s, warmup=0.0, end=0.1) for s in (0.0, 0.5, 1.0)] == pytest.approx([1, 0.55, 0.1])


@pytest.mark.parametrize("make", [torch.optim.Adam, adabelief_lookahead])
@pytest.mark.parametrize(
    ("schedule", "factor"),
    [("constant", lambda s: 1.0), ("cosine", cosine), ("cosine-to-tenth", partial(cosine, warmup=0.0, end=0.1))],
)
def test_every_update_has_the_rate_of_its_share_of_the_training_and_its_gain(schedule, factor, make: Any):
    seen: list[list[float]] = []
    settings = TRAINING | {"batch_size": 5, "optimizer": watching(seen, make), "schedule": schedule}
    train(network(), data(), data(), epochs=2, **settings)
    wanted = [0.01 * factor(i / 8) for i in range(8)]
    gains = [1.0, *(cell.gains()["b_theta"] for cell in network().cells)]
    for i, gain in enumerate(gains):
        assert [rates[i] for rates in seen] == pytest.approx([rate / gain for rate in wanted])


@pytest.mark.parametrize("schedule", ["constant", "cosine", "cosine-to-tenth"])
def test_a_single_update_has_the_learning_rate_itself(schedule):
    seen: list[list[float]] = []
    settings = TRAINING | {"batch_size": 20, "optimizer": watching(seen), "schedule": schedule, "by_gain": False}
    train(net := network(), data(), data(), epochs=1, **settings)
    assert seen == [[0.01]]
    assert not torch.equal(net.readout.weight, network().readout.weight)


def test_the_gain_is_how_far_a_unit_moves_the_threshold_at_rest():
    cell = ALIFPlus(5, 8, tau_theta=30.0)
    before = cell.theta_rest.detach().clone()
    with torch.no_grad():
        cell.b_theta.add_(1)
    assert (cell.theta_rest.detach() - before).mean().item() == pytest.approx(cell.gains()["b_theta"], rel=1e-5)
    wrapped = wrap([torch.nn.Linear(5, 5), ALIFPlus(5, 8), torch.nn.Linear(8, 2)])
    (inner,) = [c for c in wrapped.cells[0].modules() if type(c) is ALIFPlus]
    (_, scaled) = parameter_groups(wrapped, 0.01, by_gain=True)
    assert scaled["params"][0] is inner.b_theta
    assert len(parameter_groups(Network([ALIFPositive(5, 8)], 2), 0.01, by_gain=True)) == 1  # a log moves by shares


SCHEDULERS = {
    "steps": FromTorch(lambda o: lr_scheduler.StepLR(o, 2)),
    "one cycle": FromTorch(lambda o: lr_scheduler.OneCycleLR(o, 0.05, total_steps=12), every="update"),
    "one after another": FromTorch(
        lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.LinearLR(o, total_iters=2), lr_scheduler.CosineAnnealingLR(o, 4)], milestones=[2]
        ),
        every="update",
    ),
    "plateau": FromTorch(lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.3, patience=0, threshold=0.5)),
}


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_updates_have_the_rates_of_torchs_scheduler_in_a_loop_by_hand(kind: str):
    course, seen = SCHEDULERS[kind], []
    settings = TRAINING | {"schedule": course, "optimizer": watching(seen), "by_gain": False}
    history = train(network(), data(), data(), epochs=4, **settings).history
    steps = torch.optim.Adam([torch.zeros(1)], lr=0.01)
    scheduler, wanted = course.make(steps), []
    for row in history:
        for _ in range(3):
            wanted.append([steps.param_groups[0]["lr"]])
            steps.step()
            if course.every == "update":
                scheduler.step()
        if course.every == "epoch":
            scheduler.step(*([row["validation_loss"]] if kind == "plateau" else []))
    assert seen == wanted
    assert len({rate for (rate,) in seen}) > 1


@pytest.mark.parametrize(
    "make", [lambda o: lr_scheduler.OneCycleLR(o, 0.05, total_steps=12), lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.05)]
)
def test_a_schedule_that_would_undo_by_gain_is_refused(make):
    with pytest.raises(ValueError, match=r"(OneCycle|Cyclic)LR sets one learning rate for all .* give by_gain=False"):
        train(network(), data(), data(), epochs=1, **TRAINING, schedule=FromTorch(make))


@pytest.mark.parametrize("schedule", ["cosine", *(SCHEDULERS[kind] for kind in ("one after another", "plateau"))])
def test_a_resumed_training_goes_on_in_its_schedule_bit_by_bit(schedule: Any, tmp_path):
    settings = TRAINING | {"schedule": schedule}
    through = train(whole := network(), data(), data(), epochs=4, **settings)

    with pytest.raises(KeyboardInterrupt):
        stopped(KeyboardInterrupt(), 2)(network(), data(), data(), epochs=4, checkpoint=tmp_path / "c", **settings)
    part = network(seed=1)  # other weights, and so other gains: those of the checkpoint count
    assert part.cells[0].gains() != whole.cells[0].gains()
    resumed = train(part, data(), data(), epochs=4, checkpoint=tmp_path / "c", **settings)
    assert [row["train_loss"] for row in resumed.history] == [row["train_loss"] for row in through.history]
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), part.parameters(), strict=True))


# ---- flossing


def test_flossing_brings_exponents_of_a_firing_layer_to_their_target():
    def trained(**settings: Any) -> tuple[float, float, float]:
        torch.manual_seed(0)
        network = Network([ALIFPlus(N, 24, tau_theta=10.0)], CLASSES)
        x = inputs(24).float()
        match_firing_rates(network, x, [0.15])
        before = lyapunov_exponents(network, x).mean().item()
        train(network, **DATA | {"epochs": 17, "lr": 3e-2} | settings)  # 51 updates
        return before, lyapunov_exponents(network, x).mean().item(), network.run(x).spikes[0].mean().item()

    before, after, rate = trained(floss=100.0, floss_target=-0.1, floss_every=1)
    _, without, _ = trained()
    assert rate > 0.05
    assert abs(after + 0.1) < 0.4 * min(abs(before + 0.1), abs(without + 0.1))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_target_of_flossing_is_finite(value: float):
    with pytest.raises(ValueError, match="floss_target must be a finite number of nats per step"):
        TrainSettings(floss_target=value)
