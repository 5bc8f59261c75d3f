"""How the learning rate goes, and which parameters get which."""

import math

import pytest
import torch
from torch.optim import lr_scheduler

from neurolsc import LIF, ALIFPlus, ALIFPositive, Network, train, wrap
from neurolsc.schedule import Constant, Cosine, CosineTo, FromTorch
from neurolsc.training.optim import adabelief_lookahead, parameter_groups


def data(samples: int = 20) -> list[tuple[torch.Tensor, int]]:
    generator = torch.Generator().manual_seed(0)
    return [((torch.rand(6, 5, generator=generator) < 0.5).float(), i % 2) for i in range(samples)]


def network(cell: type = ALIFPlus, seed: int = 0) -> Network:
    """Two layers that fire."""
    torch.manual_seed(seed)
    made = Network([cell(5, 8), cell(8, 8)], 2)
    for layer in made.cells:
        layer.thresholds().scale(0.1)
    x = torch.stack([sample for sample, _ in data()], 1)
    assert min(spikes.mean() for spikes in made.run(x).spikes) > 0.02
    return made


def test_the_cosine_rises_and_falls_as_its_formula_says():
    course = Cosine(warmup=0.2)
    assert [course(s) for s in (0.0, 0.1, 0.2)] == pytest.approx([0, 0.5, 1])
    assert course(0.6) == pytest.approx(0.5)
    assert course(0.4) == pytest.approx((1 + math.sqrt(0.5)) / 2)
    assert course(1.0) == pytest.approx(0)
    assert Cosine(0.0)(0.0) == 1
    torch_s = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    annealed = torch.optim.lr_scheduler.CosineAnnealingLR(torch_s, T_max=10)
    for i in range(10):
        assert Cosine(0.0)(i / 10) == pytest.approx(annealed.get_last_lr()[0])
        torch_s.step()
        annealed.step()


def test_the_cosine_to_a_share_ends_there_and_has_no_warm_up():
    assert [CosineTo(0.1)(s) for s in (0.0, 0.5, 1.0)] == pytest.approx([1, 0.55, 0.1])
    assert [CosineTo(0.0)(s) for s in (0.2, 0.7)] == pytest.approx([Cosine(0.0)(s) for s in (0.2, 0.7)])
    for end in (-0.1, 1.1):
        with pytest.raises(ValueError, match="end must be"):
            CosineTo(end)


@pytest.mark.parametrize("warmup", [1.0, -0.1, math.nan])
def test_a_warm_up_that_is_no_share_is_refused(warmup: float):
    with pytest.raises(ValueError, match="warmup must be"):
        Cosine(warmup)


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.SGD, adabelief_lookahead])
def test_every_update_has_the_rate_of_its_share_of_the_training(make):
    seen = []

    def watched(parameters, lr):
        optimizer = make(parameters, lr)
        step = optimizer.step

        def noting(*args, **kwargs):
            seen.append([group["lr"] for group in optimizer.param_groups])
            return step(*args, **kwargs)

        optimizer.step = noting
        return optimizer

    settings = {"batch_size": 5, "lr": 0.01, "by_gain": True, "schedule": Cosine(0.25), "progress": False}
    train(network(), data(), data(), epochs=2, patience=9, optimizer=watched, **settings)
    wanted = [0.01 * Cosine(0.25)(i / 8) for i in range(8)]
    assert [rates[0] for rates in seen] == pytest.approx(wanted)
    gains = [cell.gains()["b_theta"] for cell in network().cells]
    for i, gain in enumerate(gains, start=1):
        assert [rates[i] for rates in seen] == pytest.approx([rate / gain for rate in wanted])


def test_the_gain_is_how_far_a_unit_moves_the_threshold_at_rest():
    cell = ALIFPlus(5, 8, tau_theta=30.0)
    before = cell.theta_rest.detach().clone()
    with torch.no_grad():
        cell.b_theta.add_(1)
    assert (cell.theta_rest.detach() - before).mean().item() == pytest.approx(cell.gains()["b_theta"], rel=1e-5)
    assert LIF(5, 8).gains() == {}


def test_a_parameter_with_a_gain_is_a_group_of_its_own():
    net = network()
    groups = parameter_groups(net, 0.01, by_gain=True)
    (plain, *scaled) = groups
    assert plain["lr"] == 0.01
    assert len(plain["params"]) + 2 == len(list(net.parameters()))
    for cell, group in zip(net.cells, scaled, strict=True):
        assert group["params"][0] is cell.b_theta
        assert group["lr"] == pytest.approx(0.01 / cell.gains()["b_theta"])
    (alone,) = parameter_groups(net, 0.01, by_gain=False)
    assert alone["params"] == list(net.parameters())
    assert len(parameter_groups(network(LIF), 0.01, by_gain=True)) == 1


def test_of_a_wrapped_cell_and_of_logarithms():
    wrapped = wrap([torch.nn.Linear(5, 5), ALIFPlus(5, 8), torch.nn.Linear(8, 2)])
    (inner,) = [c for c in wrapped.cells[0].modules() if type(c) is ALIFPlus]
    (_, scaled) = parameter_groups(wrapped, 0.01, by_gain=True)
    assert scaled["params"][0] is inner.b_theta
    assert len(parameter_groups(Network([ALIFPositive(5, 8)], 2), 0.01, by_gain=True)) == 1  # a log moves by shares


def test_a_resumed_training_goes_on_in_the_schedule_and_takes_no_other_length(tmp_path):
    settings = {"lr": 0.01, "by_gain": True, "schedule": Cosine(), "progress": False, "patience": 9, "batch_size": 8}
    through = train(whole := network(), data(), data(), epochs=4, **settings)
    path = tmp_path / "training"

    def stop(history):
        if len(history) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(network(), data(), data(), epochs=4, checkpoint=path, on_epoch=stop, **settings)
    for change, said in (
        ({"epochs": 5}, "epochs = 4, now it is 5"),
        ({"schedule": Constant(), "epochs": 4}, r"schedule = Cosine\(warmup=0.05\), now it is Constant\(\)"),
        ({"by_gain": False, "epochs": 4}, "by_gain = True, now it is False"),
    ):
        with pytest.raises(ValueError, match=said):
            train(network(), data(), data(), checkpoint=path, **(settings | change))
    part = network(seed=1)  # other weights, and so other gains: those of the checkpoint count
    assert part.cells[0].gains() != whole.cells[0].gains()
    resumed = train(part, data(), data(), epochs=4, checkpoint=path, **settings)
    assert [row["train_loss"] for row in resumed.history] == [row["train_loss"] for row in through.history]
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), part.parameters(), strict=True))


# schedulers of torch

ADAM = torch.optim.Adam


def onecycle(optimizer):
    return lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=12)


def one_after_another(optimizer):
    return lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LinearLR(optimizer, total_iters=2), lr_scheduler.CosineAnnealingLR(optimizer, 4)],
        milestones=[2],
    )


def plateau(optimizer):
    return lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=0, threshold=0.5)


SCHEDULERS = {
    "steps": FromTorch(lambda optimizer: lr_scheduler.StepLR(optimizer, 2)),
    "milestones": FromTorch(lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [1, 5], 0.3), every="update"),
    "by a function": FromTorch(lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda i: 0.8**i), every="update"),
    "warm restarts": FromTorch(lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 5), "update"),
    "one cycle": FromTorch(onecycle, every="update"),
    "one after another": FromTorch(one_after_another, every="update"),
    "plateau": FromTorch(plateau),
}
TRAINING = {"lr": 0.01, "progress": False, "patience": 9, "batch_size": 8}  # three updates an epoch


def watching(seen: list[list[float]], make=ADAM):
    """Adam that notes the learning rates of each update."""

    def made(parameters, lr):
        optimizer = make(parameters, lr)
        optimizer.register_step_pre_hook(lambda *_: seen.append([group["lr"] for group in optimizer.param_groups]))
        return optimizer

    return made


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_updates_have_the_rates_of_torchs_scheduler_in_a_loop_by_hand(kind):
    course, seen = SCHEDULERS[kind], []
    history = train(
        network(), data(), data(), epochs=4, schedule=course, optimizer=watching(seen), by_gain=False, **TRAINING
    ).history

    optimizer = ADAM([torch.nn.Parameter(torch.zeros(1))], lr=0.01)
    scheduler, wanted = course.make(optimizer), []
    for row in history:
        for _ in range(3):
            wanted.append([optimizer.param_groups[0]["lr"]])
            optimizer.step()
            if course.every == "update":
                scheduler.step()
        if course.every == "epoch":
            scheduler.step(*([row["validation_loss"]] if kind == "plateau" else []))
    assert seen == wanted
    assert len({rate for (rate,) in seen}) > 1


def test_a_gain_and_a_scheduler_multiply():
    seen = []
    course = FromTorch(lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.5))
    train(network(), data(), data(), epochs=2, schedule=course, optimizer=watching(seen), **TRAINING)
    gains = [1.0, *(cell.gains()["b_theta"] for cell in network().cells)]
    for rates, factor in ((seen[0], 1.0), (seen[-1], 0.5)):
        assert rates == pytest.approx([factor * 0.01 / gain for gain in gains])


@pytest.mark.parametrize("make", [ADAM, adabelief_lookahead])
@pytest.mark.parametrize("kind", SCHEDULERS)
@pytest.mark.slow
def test_a_resumed_training_goes_on_in_torchs_scheduler_bit_by_bit(kind, make, tmp_path):
    settings = TRAINING | {"schedule": SCHEDULERS[kind], "optimizer": make, "by_gain": kind != "one cycle"}
    through = train(whole := network(), data(), data(), epochs=4, **settings)
    path = tmp_path / "training"
    train(network(), data(), data(), epochs=2, checkpoint=path, **settings)
    part = network(seed=1)
    resumed = train(part, data(), data(), epochs=4, checkpoint=path, **settings)
    assert [row["train_loss"] for row in resumed.history] == [row["train_loss"] for row in through.history]
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), part.parameters(), strict=True))


def test_a_training_does_not_go_on_with_another_scheduler(tmp_path):
    settings = TRAINING | {"checkpoint": tmp_path / "training"}
    train(network(), data(), data(), epochs=1, schedule=SCHEDULERS["steps"], **settings)
    for other, said in (
        (FromTorch(lambda o: lr_scheduler.StepLR(o, 3)), r"'step_size': 2, .*now it is StepLR\(.'step_size': 3"),
        (FromTorch(lambda o: lr_scheduler.StepLR(o, 2), every="update"), "every epoch, now it is .*every update"),
        (Constant(), r"now it is Constant\(\)"),
    ):
        with pytest.raises(ValueError, match=said):
            train(network(), data(), data(), epochs=2, schedule=other, **settings)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda o: None, TypeError, "make must return a scheduler of torch.optim, got NoneType"),
        (
            lambda o: lr_scheduler.StepLR(ADAM([torch.nn.Parameter(torch.zeros(1))]), 2),
            ValueError,
            "make must give the StepLR the optimizer that it is called with",
        ),
        (plateau, ValueError, "ReduceLROnPlateau needs the validation loss, known once an epoch"),
    ],
)
def test_what_makes_no_scheduler_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        train(network(), data(), data(), epochs=1, schedule=FromTorch(make, every="update"), **TRAINING)


def test_a_scheduler_itself_makes_none():
    with pytest.raises(TypeError, match="make must make a scheduler from an optimizer, got StepLR"):
        FromTorch(lr_scheduler.StepLR(ADAM([torch.nn.Parameter(torch.zeros(1))]), 2))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="every must be one of 'epoch', 'update', got 'batch'"):
        FromTorch(plateau, every="batch")  # type: ignore[arg-type]
