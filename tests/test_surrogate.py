"""Surrogates: exactly a step forward, exactly the stated derivative backward, to any order."""

import copy
import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.func import functional_call, grad, jacfwd, jacrev, jvp, vmap

from neurolsc import surrogate

pytestmark = pytest.mark.usefixtures("float64")

# v and sharpness * v keep away from the kinks at 0, 1/2 and 1
POINTS = (-3.1, -1.7, -0.83, -0.42, -0.13, 0.13, 0.42, 0.83, 1.7, 3.1)
DAMPENING, SHARPNESS = 0.6, 1.3


def multi_gaussian(x):  # Yin, Corradi & Bohté 2021, with h = 0.15, s = 6, sigma = 0.5
    pdf = stats.norm.pdf
    return 1.15 * pdf(x, 0, 0.5) - 0.15 * pdf(x, 0.5, 3) - 0.15 * pdf(x, -0.5, 3)


# class: the shape written out again, its value at 0, its integral over all x
SHAPES = {
    surrogate.FastSigmoid: (lambda x: 1 / (1 + np.abs(x)) ** 2, 1, 2),
    surrogate.MultiGaussian: (multi_gaussian, 2.3 / math.sqrt(2 * math.pi) - 0.3 * stats.norm.pdf(0.5, 0, 3), 0.85),
    surrogate.Arctan: (lambda x: 1 / (1 + (math.pi * x / 2) ** 2), 1, 2),
    surrogate.Logistic: (lambda x: np.exp(-x) / (1 + np.exp(-x)) ** 2, 1 / 4, 1),
    surrogate.Triangular: (lambda x: np.maximum(0, 1 - np.abs(x)), 1, 1),
    surrogate.Rectangular: (lambda x: np.where(np.abs(x) <= 0.5, 1.0, 0.0), 1, 1),
    surrogate.Gaussian: (stats.norm.pdf, 1 / math.sqrt(2 * math.pi), 1),
    surrogate.Exponential: (lambda x: np.exp(-np.abs(x)), 1, 2),
}


def name(value: object) -> str:
    return value.__name__ if isinstance(value, type) else str(value)


every_surrogate = pytest.mark.parametrize("kind", SHAPES, ids=name)


def points() -> Tensor:
    return torch.tensor(POINTS, requires_grad=True)


class Call(nn.Module):
    """A method of a surrogate as a module, so that functional_call can replace its parameters."""

    def __init__(self, spike: surrogate.Surrogate, method: str) -> None:
        super().__init__()
        self.spike, self.method = spike, method

    def forward(self, v: Tensor) -> Tensor:
        return getattr(self.spike, self.method)(v)


def as_function(kind: type[surrogate.Surrogate], method: str):
    """A method as a function of v, log dampening and log sharpness."""
    module = Call(kind(learnable=True), method)

    def function(v: Tensor, log_dampening: Tensor, log_sharpness: Tensor) -> Tensor:
        parameters = {"spike.log_dampening": log_dampening, "spike.log_sharpness": log_sharpness}
        return functional_call(module, parameters, (v,))

    return function


def log_parameters() -> tuple[Tensor, Tensor]:
    n = len(POINTS)  # per neuron
    a = (math.log(DAMPENING) + 0.01 * torch.rand(n)).requires_grad_()
    b = (math.log(SHARPNESS) + 0.01 * torch.rand(n)).requires_grad_()
    return a, b


@every_surrogate
@pytest.mark.parametrize(("dtype", "learnable"), [(torch.float64, True), (torch.bfloat16, False)], ids=str)
def test_forward_is_exactly_zero_or_one_and_zero_at_the_threshold(kind, dtype, learnable):
    tiny = torch.finfo(dtype).tiny
    v = torch.tensor([-30, -0.7, -tiny, -0.0, 0, tiny, 0.3, 30], dtype=dtype, requires_grad=True)
    for parameters in [(0.37, 2.3), (torch.full((8,), 0.37), torch.full((8,), 2.3))]:
        z = kind(*parameters, learnable=learnable)(v)
        assert z.dtype == dtype
        assert z.tolist() == [0, 0, 0, 0, 0, 1, 1, 1]


@every_surrogate
def test_shape_is_the_published_one(kind):
    f, peak, area = SHAPES[kind]
    spike, x = kind(), torch.linspace(-4, 4, 81)
    torch.testing.assert_close(spike.shape(x), torch.from_numpy(f(x.numpy())), rtol=1e-12, atol=1e-14)
    assert spike.shape(torch.zeros(())).item() == pytest.approx(peak, rel=1e-12)
    far = torch.tensor([-1e7, 1e7])
    assert (spike.shape_integral(far).diff()).item() == pytest.approx(area, abs=1e-6)
    assert integrate.quad(f, -1, 1)[0] == pytest.approx(spike.shape_integral(torch.tensor([-1.0, 1.0])).diff().item())


@every_surrogate
def test_gradient_of_the_spike_is_that_of_its_primitive_and_the_stated_derivative(kind):
    spike, v = kind(DAMPENING, SHARPNESS, learnable=True), points()
    leaves = (v, spike.log_dampening, spike.log_sharpness)
    by_spike = torch.autograd.grad(spike(v).sum(), leaves)
    by_primitive = torch.autograd.grad(spike.primitive(v).sum(), leaves)
    torch.testing.assert_close(by_spike, by_primitive, rtol=1e-12, atol=0)
    torch.testing.assert_close(by_spike[0], spike.derivative(v), rtol=1e-12, atol=1e-14)
    expected = DAMPENING * SHAPES[kind][0](SHARPNESS * np.array(POINTS))
    torch.testing.assert_close(by_spike[0].detach(), torch.from_numpy(expected))


@every_surrogate
def test_primitive_agrees_with_finite_differences_in_all_arguments(kind):
    assert gradcheck(as_function(kind, "primitive"), (points(), *log_parameters()))


@every_surrogate
def test_gradient_of_the_spike_can_be_differentiated_again_in_all_arguments(kind):
    spike = as_function(kind, "forward")

    def derivative(v: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return torch.autograd.grad(spike(v, a, b).sum(), v, create_graph=True)[0]

    # an offset that depends on all arguments, for the shapes whose derivative does not
    assert gradcheck(lambda *x: derivative(*x) + sum(map(torch.sum, x)), (points(), *log_parameters()))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's own forward mode
@pytest.mark.parametrize("kind", [surrogate.FastSigmoid, surrogate.Exponential], ids=name)
def test_torch_func_sees_the_derivative(kind):
    spike, v = kind(DAMPENING, SHARPNESS), points().detach()
    slope = spike.derivative(v)
    assert torch.equal(vmap(spike)(v), spike(v))
    torch.testing.assert_close(vmap(grad(spike))(v), slope)
    for jacobian in (jacrev, jacfwd):
        torch.testing.assert_close(jacobian(spike)(v), torch.diag(slope))
    value, tangent = jvp(spike, (v,), (torch.ones_like(v),))
    assert torch.equal(value, spike(v))
    torch.testing.assert_close(tangent, slope)
    second = jacfwd(jacrev(spike))(v).diagonal().diagonal()
    torch.testing.assert_close(second, vmap(grad(spike.derivative))(v))


@every_surrogate
def test_compiles_without_a_graph_break_and_its_config_makes_it_again(kind):
    spike, v = kind(torch.full((len(POINTS),), DAMPENING), SHARPNESS), points()
    torch.compiler.reset()
    z = torch.compile(spike, fullgraph=True, backend="eager")(v)
    assert z.tolist() == [0] * 5 + [1] * 5
    torch.testing.assert_close(torch.autograd.grad(z.sum(), v)[0], spike.derivative(v))
    again = kind(**spike.config() | {"dampening": torch.tensor(spike.config()["dampening"])})
    assert torch.equal(again.derivative(v), spike.derivative(v))


def test_zero_dampening_is_silent_and_refused_where_a_logarithm_is_learnt():
    v = points()
    assert not torch.autograd.grad(surrogate.Gaussian(0.0)(v).sum(), v)[0].any()
    with pytest.raises(ValueError, match="dampening must be positive"):
        surrogate.Gaussian(0.0, learnable=True)
    with pytest.raises(ValueError, match="sharpness must be positive"):
        surrogate.Gaussian(sharpness=0.0)
    for bad in (-0.1, math.nan, math.inf, torch.tensor([0.5, -1.0])):
        with pytest.raises(ValueError, match="dampening must be"):
            surrogate.FastSigmoid(bad)


def test_user_writes_one_with_two_methods():
    class Cosine(surrogate.Surrogate):
        def shape(self, x: Tensor) -> Tensor:
            return torch.cos(x)

        def shape_integral(self, x: Tensor) -> Tensor:
            return torch.sin(x)

    spike, v = Cosine(0.5, 2.0), points()
    assert spike(v).tolist() == [0] * 5 + [1] * 5
    torch.testing.assert_close(torch.autograd.grad(spike(v).sum(), v)[0], 0.5 * torch.cos(2 * v))
    assert "dampening=0.5, sharpness=2" in repr(spike)
    torch.testing.assert_close(copy.deepcopy(spike)(v), spike(v))
