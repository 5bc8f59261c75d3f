"""All that one does with a network, on a GPU: the same figures as on the CPU, in float64 where they
are compared, so that rounding does not turn a spike."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import neurolsc
from neurolsc import ALIFPlus, ALIFPlusMinus, Network, diagnose, evaluate, pretrain, radius_profile, train
from neurolsc.init import (
    IKUN,
    LSC,
    LSUV,
    ActivityPropagation,
    Default,
    FiringRate,
    FluctuationDriven,
    FourConditions,
    He,
    LayerwiseScaling,
    LSCLyapunov,
    LSCSingular,
    Orthogonal,
    Relay,
)
from neurolsc.stability.indicators import lyapunov_exponents

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here")
CUDA = "cuda"
INITIALISERS = [
    Default(), He(), Orthogonal(), LSUV(), FluctuationDriven(), IKUN(), ActivityPropagation(), FourConditions(),
    LSCLyapunov(), LSCSingular(), LSC(0.5), LSC("balanced"), LSC(0.5, method="scale"), LayerwiseScaling(), FiringRate(0.15),
    Relay(),
]  # fmt: skip


def both(**settings) -> tuple[Network, Network]:
    """One network, on the CPU and on the GPU, in float64."""
    torch.manual_seed(0)
    network = Network([ALIFPlus(30, 24, **settings), ALIFPlusMinus(24, 24, **settings)], 4).double()
    with torch.no_grad():
        for cell in network.cells:
            cell.w_in.mul_(3)
    return network, copy.deepcopy(network).to(CUDA)


def data(samples: int = 32, steps: int = 20) -> tuple[Tensor, Tensor]:
    """Spikes (T, B, 30) whose class is where they come most, and the classes."""
    g = torch.Generator().manual_seed(1)
    labels = torch.arange(samples) % 4
    rate = torch.full((samples, 30), 0.1)
    for i, label in enumerate(labels.tolist()):
        rate[i, 7 * label : 7 * label + 7] = 0.4
    return (torch.rand(steps, samples, 30, generator=g) < rate).double(), labels


class Set(torch.utils.data.Dataset):
    def __init__(self, samples: int = 32) -> None:
        self.x, self.labels = data(samples)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.x[:, i], int(self.labels[i])


def test_runs_and_gradients():
    cpu, gpu = both()
    x, labels = data()
    for network, given in ((cpu, x), (gpu, x.to(CUDA))):
        nn.functional.cross_entropy(network(given).mean(0), labels.to(given.device)).backward()
    for one, other in zip(cpu.parameters(), gpu.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad.cpu())


@pytest.mark.parametrize("method", ["krylov", "exact"])
def test_radii(method):
    cpu, gpu = both()
    x, _ = data(8)
    one, other = radius_profile(cpu, x, method=method), radius_profile(gpu, x.to(CUDA), method=method)
    torch.testing.assert_close(one.time, other.time.cpu(), rtol=1e-2, atol=1e-6)
    torch.testing.assert_close(one.depth, other.depth.cpu(), rtol=1e-2, atol=1e-6)
    assert str(one)
    assert str(other)


def test_exponents():
    cpu, gpu = both()
    x, _ = data(4)
    torch.testing.assert_close(lyapunov_exponents(cpu, x), lyapunov_exponents(gpu, x.to(CUDA)).cpu())


@pytest.mark.parametrize("target", [1.0, 0.5, "balanced"])
def test_pretrains_in_float32(target):
    gpu, x = both()[1].float(), data(16)[0].float()
    result = pretrain(gpu, [x.to(CUDA)], target=target, max_steps=30, progress=False)
    assert all(p.is_cuda and p.isfinite().all() for p in gpu.parameters())
    assert result.profile.time_mean.isfinite().all()


@pytest.mark.parametrize("initialiser", INITIALISERS, ids=str)
def test_initialisations_are_those_of_the_cpu(initialiser):
    cpu, gpu = both()
    x, _ = data(16)
    told = [str(initialiser.apply(network, [x.to(where)], seed=3)) for network, where in ((cpu, "cpu"), (gpu, CUDA))]
    for (name, one), other in zip(cpu.named_parameters(), gpu.parameters(), strict=True):
        assert other.is_cuda
        torch.testing.assert_close(one, other.cpu(), rtol=2e-2, atol=1e-3, msg=lambda m, name=name: f"{name}: {m}")
    assert all(isinstance(each, str) for each in told)


def test_diagnoses():
    cpu, gpu = both()
    x, labels = data()
    one, other = diagnose(cpu, (x, labels), lr=1e-2), diagnose(gpu, (x.to(CUDA), labels.to(CUDA)), lr=1e-2)
    assert [finding.name for finding in one] == [finding.name for finding in other]
    neurolsc.try_cures(gpu, (x, labels), other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_trains_resumes_and_evaluates(dtype, tmp_path: Path):
    gpu, path = both()[1].to(dtype), tmp_path / "checkpoint"
    again = copy.deepcopy(gpu)
    training, validation = Set(64), Set()
    how = {"lr": 1e-2, "batch_size": 16, "schedule": "constant", "progress": False}
    whole = train(gpu, training, validation, epochs=4, **how)
    train(again, training, validation, epochs=2, checkpoint=path, **how)
    assert whole.history[-1]["train_loss"] < whole.history[0]["train_loss"]
    scores = evaluate(gpu, validation)
    assert scores.measures["mode_accuracy"] > 0.3
    resumed = train(again, training, validation, epochs=4, checkpoint=path, **how)
    assert [row["train_loss"] for row in resumed.history] == pytest.approx(
        [row["train_loss"] for row in whole.history], rel=1e-3
    )


def test_saved_on_a_gpu_and_loaded_without(tmp_path: Path):
    gpu = both()[1]
    neurolsc.save(gpu, tmp_path / "network.safetensors")
    loaded = neurolsc.load(tmp_path / "network.safetensors")
    x, _ = data()
    assert torch.equal(loaded(x), loaded.to("cpu")(x))
    torch.testing.assert_close(gpu(x.to(CUDA)).cpu(), loaded(x))
