"""How the learning rate goes, and which parameters get which."""

import math

import pytest
import torch

from neurolsc import LIF, ALIFPlus, ALIFPositive, Network, train, wrap
from neurolsc.files import read_tree, write_tree
from neurolsc.optimizer import adabelief_lookahead, parameter_groups
from neurolsc.schedule import Constant, Cosine


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
    for wrong in ([0.01], [0.01, -1.0, 0.01], ["a", "b", "c"]):
        write_tree(tmp_path / "wrong", read_tree(path) | {"full_rates": wrong})
        with pytest.raises(
            ValueError, match=r"/wrong: (it has 1 learning rates, not 3|full_rates must be|does not fit this)"
        ):
            train(network(), data(), data(), epochs=4, checkpoint=tmp_path / "wrong", **settings)
    part = network(seed=1)  # other weights, and so other gains: those of the checkpoint count
    assert part.cells[0].gains() != whole.cells[0].gains()
    resumed = train(part, data(), data(), epochs=4, checkpoint=path, **settings)
    assert [row["train_loss"] for row in resumed.history] == [row["train_loss"] for row in through.history]
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), part.parameters(), strict=True))
