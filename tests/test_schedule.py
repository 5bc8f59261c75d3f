"""Learning rates over a training: by a function of the share done, or by torch's schedulers."""

import math
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from neurolsc import ALIFPlus, ALIFPositive, Network, train, wrap
from neurolsc.training import Cosine, FromTorch
from neurolsc.training.optim import adabelief_lookahead, parameter_groups

ADAM = torch.optim.Adam
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


def optimizer() -> torch.optim.Optimizer:
    return ADAM([torch.nn.Parameter(torch.zeros(1))], lr=0.01)


def watching(seen: list[list[float]], make: Any = ADAM) -> Any:
    """An optimizer that notes the learning rates of each update."""

    def made(parameters: Any, lr: float) -> torch.optim.Optimizer:
        made = make(parameters, lr)
        inner = getattr(made, "optimizer", made)  # of Lookahead
        inner.register_step_pre_hook(lambda *_: seen.append([group["lr"] for group in inner.param_groups]))
        return made

    return made


def test_cosines_follow_their_formulas():
    course = Cosine(warmup=0.2)
    assert [course(s) for s in (0.0, 0.1, 0.2, 0.6, 1.0)] == pytest.approx([0, 0.5, 1, 0.5, 0])
    assert course(0.4) == pytest.approx((1 + math.sqrt(0.5)) / 2)
    steps = optimizer()
    annealed = lr_scheduler.CosineAnnealingLR(steps, T_max=10)
    for i in range(10):
        assert Cosine(0.0)(i / 10) == pytest.approx(100 * annealed.get_last_lr()[0])
        steps.step()
        annealed.step()
    assert [Cosine(0.0, end=0.1)(s) for s in (0.0, 0.5, 1.0)] == pytest.approx([1, 0.55, 0.1])
    with pytest.raises(ValueError, match="warmup must be"):
        Cosine(1.0)
    with pytest.raises(ValueError, match="end must be"):
        Cosine(end=1.1)


@pytest.mark.parametrize("make", [ADAM, adabelief_lookahead])
def test_every_update_has_the_rate_of_its_share_of_the_training_and_its_gain(make: Any):
    seen: list[list[float]] = []
    settings = TRAINING | {"batch_size": 5, "optimizer": watching(seen, make), "schedule": Cosine(0.25)}
    train(network(), data(), data(), epochs=2, **settings)
    wanted = [0.01 * Cosine(0.25)(i / 8) for i in range(8)]
    gains = [1.0, *(cell.gains()["b_theta"] for cell in network().cells)]
    for i, gain in enumerate(gains):
        assert [rates[i] for rates in seen] == pytest.approx([rate / gain for rate in wanted])


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
    "by a function": FromTorch(lambda o: lr_scheduler.LambdaLR(o, lambda i: 0.8**i), every="update"),
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
    steps = optimizer()
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
    "schedule", [Cosine(), *(SCHEDULERS[kind] for kind in ("one cycle", "one after another", "plateau"))]
)
def test_a_resumed_training_goes_on_in_its_schedule_bit_by_bit(schedule: Any, tmp_path):
    settings = TRAINING | {"schedule": schedule, "by_gain": schedule is not SCHEDULERS["one cycle"]}
    through = train(whole := network(), data(), data(), epochs=4, **settings)

    def stop(history: Any) -> None:
        if len(history) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(network(), data(), data(), epochs=4, checkpoint=tmp_path / "c", on_epoch=stop, **settings)
    part = network(seed=1)  # other weights, and so other gains: those of the checkpoint count
    assert part.cells[0].gains() != whole.cells[0].gains()
    resumed = train(part, data(), data(), epochs=4, checkpoint=tmp_path / "c", **settings)
    assert [row["train_loss"] for row in resumed.history] == [row["train_loss"] for row in through.history]
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), part.parameters(), strict=True))


@pytest.mark.parametrize(
    ("first", "other", "message"),
    [
        (Cosine(), {"epochs": 5}, "epochs = 4, now it is 5"),
        (Cosine(), {"schedule": "constant"}, r"schedule = Cosine\(warmup=0.05, end=0.0\), now it is .*end=1.0"),
        (
            SCHEDULERS["steps"],
            {"schedule": FromTorch(lambda o: lr_scheduler.StepLR(o, 3))},
            r"StepLR, every epoch, .'step_size': 2, .*now it is StepLR.*'step_size': 3",
        ),
    ],
)
def test_a_training_does_not_go_on_in_another_schedule(first: Any, other: dict[str, Any], message: str, tmp_path):
    settings = TRAINING | {"schedule": first, "epochs": 4, "checkpoint": tmp_path / "c"}

    def stop(history: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(network(), data(), data(), on_epoch=stop, **settings)
    with pytest.raises(ValueError, match=message):
        train(network(), data(), data(), **settings | other)
