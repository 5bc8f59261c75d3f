"""Radii and gradients from products with vectors: within one per cent, or from the dense path, and
counted."""

import math

import pytest
import torch
from torch import Tensor, nn

from neurolsc import ALIFPlus, ALIFPlusMinus, Network, pretrain, radius_profile, spectral_radius, wrap
from neurolsc.eigen import radii as radii_module
from neurolsc.eigen import radius_and_gradient
from neurolsc.eigen.acceptance import Acceptance
from neurolsc.eigen.basis import Basis
from neurolsc.eigen.krylov import dominant
from neurolsc.eigen.maps import Cycle
from neurolsc.eigen.radii import radii
from neurolsc.neurons import LIF
from neurolsc.neurons.derivatives import LinearOperator
from neurolsc.stability.measure import contributions, depth_radius, time_radius
from neurolsc.stability.transition import Transitions, follow, time_derivative

snn = pytest.importorskip("snntorch")

pytestmark = pytest.mark.usefixtures("float64")


class Dense(LinearOperator):
    """Given matrices (P, n, n) as a map."""

    def __init__(self, m: Tensor) -> None:
        self.m, self.rows, self.columns = m, m.shape[1], m.shape[2]

    def matvec(self, x: Tensor) -> Tensor:
        return (self.m @ x.unsqueeze(2)).squeeze(2)

    def rmatvec(self, y: Tensor) -> Tensor:
        return (self.m.mT @ y.unsqueeze(2)).squeeze(2)

    def take(self, index: Tensor) -> "Dense":
        return Dense(self.m[index])


def found(m: Tensor) -> radii_module.Radii:
    m = m if m.ndim == 3 else m.unsqueeze(0)
    return radii(Cycle([Dense(m)], len(m)), m)


@pytest.fixture
def no_small_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(radii_module, "DENSE_BELOW", 0)


def gaussian(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) / shape[-1] ** 0.5


# ---- matrices


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_radii_and_gradients_of_gaussian_matrices(dtype):
    m = gaussian(0, 8, 120, 120).to(dtype).requires_grad_()
    fast, exact = found(m), spectral_radius(m)
    assert fast.exact.sum() <= 4
    torch.testing.assert_close(fast.radius, exact, rtol=0.01, atol=0)
    gradients = [torch.autograd.grad(r.sum(), m)[0] for r in (fast.radius, exact)]
    same = (fast.radius / exact - 1).abs() < 1e-5  # others are those of another eigenvalue within one per cent
    assert same.sum() > 5
    torch.testing.assert_close(gradients[0][same], gradients[1][same], rtol=1e-2, atol=1e-3)


def test_zero_identity_rotation_and_nilpotent_matrices():
    n = 90
    angle = torch.tensor([[math.cos(0.3), -math.sin(0.3)], [math.sin(0.3), math.cos(0.3)]])
    rotation = torch.block_diag(*[2 * angle] * (n // 2))
    m = torch.stack([torch.zeros(n, n), -0.5 * torch.eye(n), rotation, torch.diag(torch.ones(n - 1), 1)])
    m.requires_grad_()
    fast = found(m)
    torch.testing.assert_close(fast.radius.detach(), torch.tensor([0.0, 0.5, 2.0, 0.0]), rtol=1e-6, atol=0.05)
    assert not fast.exact[:2].any()
    assert fast.exact[2:].all(), "rows of a rotation and of a chain have one entry beside the diagonal"
    (gradient,) = torch.autograd.grad(fast.radius[:3].sum(), m)
    assert not gradient[0].any()
    terms = (gradient * m).sum((1, 2))  # Euler: the radius is homogeneous
    torch.testing.assert_close(terms[:3], fast.radius[:3], rtol=1e-6, atol=1e-9)


def test_bases_stay_orthogonal_and_stop_at_a_breakdown():
    # nearly a multiple of the identity: what is new in each product is some 1e-5 of it
    n = 120
    m = torch.eye(n, dtype=torch.float32) + 1e-5 * gaussian(1, n, n).float()
    basis = Basis(lambda _: lambda x: x @ m.T, torch.ones(1, n, dtype=torch.float32), 40, 1e-3)
    basis.follow(40)
    vectors = basis.vectors[0]
    kept = vectors[vectors.any(1)]
    assert len(kept) > 1
    assert (kept @ kept.T - torch.eye(len(kept), dtype=torch.float32)).abs().max() < 1e-5
    few = torch.zeros(n)
    few[:3] = torch.tensor([3.0, -2.0, 1.0])
    result = dominant(lambda _: lambda x: x * few, gaussian(2, 1, n), criteria=Acceptance.within(1e-6))
    assert result.settled.all()
    torch.testing.assert_close(result.value.real, torch.tensor([3.0]))


def test_what_does_not_settle_is_found_by_dense_eigenvalues_and_counted(monkeypatch):
    monkeypatch.setattr(
        radii_module,
        "_dominant",
        lambda cycle, like, criteria: dominant(
            lambda i: cycle.take(i).rmatvec,
            gaussian(3, cycle.points, cycle.size),
            criteria=Acceptance.within(0.0),
        ),
    )
    m = gaussian(4, 3, 100, 100).requires_grad_()
    fast, exact = found(m), spectral_radius(m)
    assert fast.exact.all()
    torch.testing.assert_close(fast.radius, exact)
    gradients = [torch.autograd.grad(r.sum(), m)[0] for r in (fast.radius, exact)]
    torch.testing.assert_close(*gradients)


def test_nan_is_refused():
    m = gaussian(5, 2, 100, 100)
    m[1, 3, 4] = math.nan
    with pytest.raises(FloatingPointError, match="NaN"):
        found(m)


# ---- layers


def layer(kind: type, scale: float = 1.0, n: int = 60, **settings: object) -> tuple[Network, Transitions]:
    torch.manual_seed(0)
    network = Network([kind(40, n, **settings), kind(n, n, **settings)], 3)
    with torch.no_grad():
        for cell in network.cells:
            cell.w_in.mul_(3)
            cell.w_rec.mul_(scale)
    x = (torch.rand(30, 3, 40) < 0.3).double()
    transitions, outputs = follow(network, x, torch.arange(4, 30, 8))
    assert all(0 < z.mean() < 1 for z in outputs)
    return network, transitions[1]


REGIMES = {
    "default": (ALIFPlus, {}),
    "plus-minus": (ALIFPlusMinus, {}),
    "recurrence": (ALIFPlus, {"scale": 20.0, "adaptation": 0.1}),
    "slow voltage": (ALIFPlus, {"tau_v": 20.0, "reset_gradient": True}),
    "LIF": (LIF, {"tau_v": 2.0, "threshold": 0.2, "n": 100}),
}


@pytest.mark.parametrize("regime", REGIMES)
def test_radii_are_right_and_gradients_those_of_an_eigenvalue_within_one_per_cent(regime):
    kind, settings = REGIMES[regime]
    _, t = layer(kind, **settings)
    m = time_derivative(t).detach()
    exact = torch.linalg.eigvals(m).abs().amax(1)
    with torch.no_grad():
        fast = time_radius(t, 1)
    assert fast.exact.sum() < len(m) / 4
    torch.testing.assert_close(fast.radius, exact, rtol=0.01, atol=0)
    assert ((fast.radius / exact - 1).abs() < 0.005).double().mean() > 0.8

    parameters = [p for p in t.cell.parameters() if p is not t.cell.w_in]
    some = list(range(0, len(m), 3))
    radius = time_radius(t, 1).radius
    values, right = torch.linalg.eig(m)
    left = torch.linalg.inv(right)
    for i in some:
        gradient = flat_gradient(radius[i], parameters)
        distances = []
        for k in (values[i].abs() >= 0.99 * exact[i]).nonzero().flatten():
            # the product of Re(conj(l)/|l| y^H dM x) with the dense derivative's own gradient
            slope = (values[i, k].conj() / values[i, k].abs() * torch.outer(left[i, k], right[i, :, k])).real
            expected = flat_gradient((time_derivative(t)[i] * slope).sum(), parameters)
            distances.append((gradient - expected).norm() / expected.norm())
        assert min(distances) < 1e-5


def flat_gradient(value: Tensor, parameters: list[Tensor]) -> Tensor:
    gradients = torch.autograd.grad(value, parameters, retain_graph=True, materialize_grads=True, allow_unused=True)
    return torch.cat([g.flatten() for g in gradients])


def test_terms_contribute_what_the_dense_path_says(no_small_layers):
    _, t = layer(ALIFPlus, scale=20.0, adaptation=0.1)
    from neurolsc.stability.cycles import time_cycle

    parts = contributions(time_cycle(t), t.x)
    radius = time_radius(t, 1).radius.detach()
    torch.testing.assert_close(torch.stack(list(parts.values())).sum(0), radius, rtol=0.01, atol=0)
    dense = dense_contributions(t)
    agree = (radius / torch.stack(list(dense.values())).sum(0) - 1).abs() < 1e-6  # the same eigenvalue
    assert agree.double().mean() > 0.5
    for name, part in parts.items():
        torch.testing.assert_close(part[agree], dense[name][agree], rtol=1e-3, atol=1e-3)
    assert (parts["recurrence"] > 0.8 * radius).any()


def dense_contributions(t: Transitions) -> dict[str, Tensor]:
    gradient = radius_and_gradient(time_derivative(t)).gradient
    return {
        name: (gradient * term).sum((1, 2)).detach()
        for name, term in t.cell.derivatives().by_state(t.x, t.before).items()
    }


def test_profile_without_matrices_is_the_exact_one_and_says_how_much_of_it_is_dense():
    network, _ = layer(ALIFPlus)
    x = (torch.rand(12, 3, 40) < 0.3).double()
    fast, exact = radius_profile(network, x), radius_profile(network, x, method="exact")
    torch.testing.assert_close(fast.time, exact.time, rtol=0.01, atol=0)
    torch.testing.assert_close(fast.depth, exact.depth, rtol=0.01, atol=0)
    assert (exact.exact == 1).all()
    assert (fast.exact[0] < 0.5).all()
    assert (fast.exact[1] == 1).all(), "60 wide: dense eigenvalues are cheaper"
    assert "by dense eigenvalues: time " in str(fast)
    assert "dense" not in str(exact)
    assert fast.to_dict()["exact"] == fast.exact.tolist()
    assert torch.equal(fast.firing_rate, exact.firing_rate)
    assert max(fast.sources[1], key=fast.sources[1].__getitem__) == max(
        exact.sources[1], key=exact.sources[1].__getitem__
    )
    with pytest.raises(ValueError, match="method must be one of 'krylov', 'exact', got 'dense'"):
        radius_profile(network, x, method="dense")


@pytest.mark.parametrize("large", [False, True], ids=["factorised", "two bases"])
def test_convolutional_layers_of_another_library(large, monkeypatch):
    if large:
        monkeypatch.setattr(radii_module, "FACTORED_BELOW", 10)
    first = snn.RLeaky(beta=0.9, init_hidden=True, conv2d_channels=4, kernel_size=3)
    second = snn.Leaky(beta=0.8, init_hidden=True, reset_delay=False)
    model = [
        nn.Conv2d(1, 4, 3, padding=1),
        first,
        nn.Conv2d(4, 4, 3, padding=1),
        second,
        nn.Flatten(),
        nn.Linear(196, 3),
    ]
    network = wrap(model, input_shape=(1, 7, 7))
    transitions, outputs = follow(network, (torch.rand(9, 2, 49) < 0.4).double() * 2, torch.tensor([3, 7]))
    assert all(z.any() for z in outputs)
    t = transitions[1]
    parameters = [first.recurrent.weight, model[2].weight]
    for direction in (
        lambda method: time_radius(transitions[0], 0, method),
        lambda method: depth_radius(t, 1, "submatrix", torch.Generator(), method),
    ):
        fast, exact = direction("krylov"), direction("exact")
        assert not fast.exact.any() or not large
        torch.testing.assert_close(fast.radius, exact.radius, rtol=0.01, atol=0)
        gradients = [
            torch.autograd.grad(r.radius.sum(), parameters, allow_unused=True, materialize_grads=True)
            for r in (fast, exact)
        ]
        for of_fast, of_exact in zip(*gradients, strict=True):
            torch.testing.assert_close(of_fast, of_exact, rtol=1e-2, atol=1e-3)
        assert any(g.any() for g in gradients[0])


# ---- pre-training


@pytest.mark.slow
def test_pre_trained_radii_are_confirmed_by_the_exact_path(make_network, make_spikes):
    torch.set_default_dtype(torch.float32)
    network = make_network(width=64)
    batches = [make_spikes(T=20, B=6, seed=seed) for seed in range(1, 5)]
    result = pretrain(network, batches, target=0.5, progress=False)
    assert result.converged
    assert (result.profile.exact[0] < 0.5).all(), "found without matrices"
    exact = radius_profile(network, batches[0], method="exact")
    confirmed = radius_profile(network, batches[0])
    torch.testing.assert_close(confirmed.time_mean, exact.time_mean, rtol=0, atol=0.005)
    torch.testing.assert_close(confirmed.depth_mean, exact.depth_mean, rtol=0, atol=0.005)
    assert (exact.time_mean - 0.5).abs().max() < 0.06  # all steps of one batch: three tolerances, as elsewhere
    assert (exact.firing_rate > 0).all()
