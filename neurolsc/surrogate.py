r"""Surrogate gradients: a spike forward, the derivative of a smooth step backward.

Every surrogate is one formula. With a shape :math:`f`, its integral :math:`F` (:math:`F' = f`), a dampening
:math:`\gamma` and a sharpness :math:`\omega`, the smooth step is :math:`S(v) = \frac{\gamma}{\omega} F(\omega v)` and

.. math:: z = H(v) + S(v) - \mathrm{detach}(S(v)), \qquad \frac{dz}{dv} = \gamma f(\omega v).

The value is exactly 0 or 1, and every derivative, of any order and in :math:`v`, :math:`\gamma` and :math:`\omega`, is
that of :math:`S`. No custom autograd function is involved, so ``torch.func`` and ``torch.compile`` see plain
operations.

Source: Herranz-Celotti & Rouat, arXiv:2308.12075, App. H (:math:`d\tilde H(v)/dv = \gamma f(\omega v)`).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from neurolsc.validation import number, positive

__all__ = [
    "Arctan", "Exponential", "FastSigmoid", "Gaussian", "Logistic", "MultiGaussian", "Rectangular", "Surrogate",
    "Triangular",
]  # fmt: skip

# Positive parameters are stored as logarithms, and these are read within ±40, the parameters thus within 4e-18 to
# 2e17: whatever an optimizer does, they, their squares and the reciprocals of both stay finite and positive in float32.
LOG_LIMIT = 40.0


def from_log(log: Tensor) -> Tensor:
    """Return the exponential of a logarithm, of any shape, kept within 4e-18 to 2e17."""
    return log.clamp(-LOG_LIMIT, LOG_LIMIT).exp()


class Surrogate(nn.Module, ABC):
    r"""A Heaviside step whose derivative is :math:`\gamma f(\omega v)`.

    A new surrogate is a subclass with two methods, :meth:`shape` and :meth:`shape_integral`: pure functions of each
    entry of x alone, and of tensors that are attributes of the surrogate. Cells then run it in their fast loop and have
    closed forms of its derivatives. One that overrides another method, or has modules or hooks, runs step by step.

    Args:
        dampening: :math:`\gamma > 0`, one number, or one per neuron with shape (n_hidden,).
        sharpness: :math:`\omega > 0`, likewise.
        learnable: make both trainable. They are then stored as logarithms, so that they stay positive.

    Raises:
        ValueError: if dampening or sharpness is not positive and finite; a dampening that is not learnable may be 0.

    Example:
        >>> v = torch.tensor([-1.0, 0.0, 1.0], requires_grad=True)
        >>> z = FastSigmoid(dampening=0.5)(v)
        >>> z.tolist(), torch.autograd.grad(z.sum(), v)[0].tolist()
        ([0.0, 0.0, 1.0], [0.125, 0.5, 0.125])
    """

    _exact_values = False  # True within exact_values()

    def __init__(
        self, dampening: float | Tensor = 0.5, sharpness: float | Tensor = 1.0, *, learnable: bool = False
    ) -> None:
        super().__init__()
        self.learnable = learnable
        for name, value in (("dampening", dampening), ("sharpness", sharpness)):
            value = positive(name, value, zero_allowed=name == "dampening" and not learnable)
            if learnable:
                self.register_parameter(f"log_{name}", nn.Parameter(value.log().to(torch.get_default_dtype())))
            elif value.ndim:
                self.register_buffer(f"fixed_{name}", value.to(torch.get_default_dtype()))
            else:  # a plain number keeps its full precision when the module changes dtype
                setattr(self, f"fixed_{name}", value.item())

    @property
    def dampening(self) -> float | Tensor:
        r""":math:`\gamma`, a number or shape (n_hidden,)."""
        return from_log(self.log_dampening) if self.learnable else self.fixed_dampening  # type: ignore[arg-type,return-value]

    @property
    def sharpness(self) -> float | Tensor:
        r""":math:`\omega`, a number or shape (n_hidden,)."""
        return from_log(self.log_sharpness) if self.learnable else self.fixed_sharpness  # type: ignore[arg-type,return-value]

    @abstractmethod
    def shape(self, x: Tensor) -> Tensor:
        r"""Return :math:`f(x)` at each entry of x, which has any shape."""

    @abstractmethod
    def shape_integral(self, x: Tensor) -> Tensor:
        r"""Return the odd :math:`F(x)` with :math:`F' = f`, :math:`F(0) = 0`; dampening and sharpness learn by it."""

    def derivative(self, v: Tensor) -> Tensor:
        r"""Return the derivative of the spike, :math:`\gamma f(\omega v)`, in the shape of v, (..., n_hidden)."""
        sharpness = self.sharpness
        if isinstance(sharpness, float) and sharpness == 1:  # the default: saves a product over all of v
            scaled = v
        else:
            scaled = sharpness * v
        return self.dampening * self.shape(scaled)

    def primitive(self, v: Tensor) -> Tensor:
        r"""Return the smooth step :math:`\frac{\gamma}{\omega} F(\omega v)`, whose derivative is :meth:`derivative`."""
        return self.dampening / self.sharpness * self.shape_integral(self.sharpness * v)

    def forward(self, v: Tensor) -> Tensor:
        """Return 1 where v > 0 and 0 elsewhere, in the dtype of v; NaN stays NaN."""
        smooth = self.primitive(v)
        # smooth - constant is 0, and only adds the gradient of the smooth step: by v, dampening and sharpness; or, with
        # exact values, by v alone, since dampening and sharpness then change both terms alike
        if self._exact_values:
            constant = self.primitive(v.detach())
        else:
            constant = smooth.detach()
        return (v > 0).to(v.dtype) + (smooth - constant).to(v.dtype)

    def config(self) -> dict[str, object]:
        """Return this surrogate's keyword arguments as JSON values; learnt values are in the state."""
        values = {"dampening": self.dampening, "sharpness": self.sharpness}
        plain = {name: v.detach().tolist() if isinstance(v, Tensor) else v for name, v in values.items()}
        return {**plain, "learnable": self.learnable}

    def extra_repr(self) -> str:
        texts = []
        for name, setting in (("dampening", self.dampening), ("sharpness", self.sharpness)):
            value = torch.as_tensor(setting)
            texts.append(f"{name}=<{tuple(value.shape)}>" if value.ndim else f"{name}={value.item():g}")
        if self.learnable:
            texts.append("learnable=True")
        return ", ".join(texts)


def in_two_methods(spike: object) -> TypeGuard[Surrogate]:
    """Return True if a spike function is a surrogate that only defines the methods ``shape`` and ``shape_integral``.

    :meth:`Surrogate.derivative` then is the derivative of its spikes. It is False if the class overrides another method
    that makes a spike, if two classes define the two methods, if the object has a method of its own, or with hooks.
    """
    if not isinstance(spike, Surrogate):
        return False
    kind = type(spike)
    inherited = ("__call__", "forward", "derivative", "primitive")
    if any(getattr(kind, name) is not getattr(Surrogate, name) for name in inherited):
        return False
    # a class that overrides only one of the two has a shape that is not the derivative of its integral
    definers = {next(c for c in kind.__mro__ if name in vars(c)) for name in ("shape", "shape_integral")}
    if len(definers) > 1:
        return False
    if any(callable(getattr(kind, name, None)) for name in vars(spike)):  # a method set on the object
        return False
    hooks = (spike._forward_hooks, spike._forward_pre_hooks, spike._backward_hooks, spike._backward_pre_hooks)
    return not any(hooks) and not _has_any_global_hook()


@contextmanager
def exact_values(module: nn.Module) -> Iterator[None]:
    r"""Within this context, let no gradient by dampening or sharpness pass through the value of a spike.

    Outside, a surrogate is trained as if a spike z had the value of the smooth step S: :math:`dz/d\gamma = dS/d\gamma`.
    But a spike is 0 or 1 whatever dampening and sharpness are. Where z is a factor in the derivative of a step, as in
    d v (1 - z), the gradient of that derivative by dampening and sharpness must take z as constant. Within the context,
    therefore, :math:`z = H(v) + S(v) - S(\mathrm{detach}(v))`: derivatives by v, of any order, are as outside.

    Args:
        module: the module whose surrogates are switched, itself or a part of it.
    """
    surrogates = [part for part in module.modules() if isinstance(part, Surrogate) and not part._exact_values]
    for surrogate in surrogates:
        surrogate._exact_values = True
    try:
        yield
    finally:
        for surrogate in surrogates:
            del surrogate._exact_values  # back to the False of the class


class FastSigmoid(Surrogate):
    r""":math:`f(x) = (1 + |x|)^{-2}`. Source: Zenke & Ganguli 2018, SuperSpike."""

    def shape(self, x: Tensor) -> Tensor:
        return x.abs().add_(1).pow_(-2)

    def shape_integral(self, x: Tensor) -> Tensor:
        return x / (1 + x.abs())


class MultiGaussian(Surrogate):
    r"""A Gaussian with two wide negative side lobes.

    .. math:: f(x) = (1+h)\,N(x; 0, \sigma^2) - h\,N(x; \sigma, (s\sigma)^2) - h\,N(x; -\sigma,
        (s\sigma)^2)

    Args:
        settings: ``dampening`` and ``sharpness`` of :class:`Surrogate`, by position.
        more: the same and ``learnable``, by name.
        height: :math:`h`, the weight of the side lobes.
        scale: :math:`s`, how many times wider the side lobes are.
        sigma: :math:`\sigma`, the standard deviation of the middle lobe.

    Source: Yin, Corradi & Bohté 2021 (h = 0.15, s = 6, sigma = 0.5).
    """

    def __init__(
        self, *settings: Any, height: float = 0.15, scale: float = 6.0, sigma: float = 0.5, **more: Any
    ) -> None:
        super().__init__(*settings, **more)
        self.height = number("height", height, zero_allowed=True)
        self.scale = number("scale", scale)
        self.sigma = number("sigma", sigma)

    def shape(self, x: Tensor) -> Tensor:
        return self._lobes(_normal, x)

    def shape_integral(self, x: Tensor) -> Tensor:
        return self._lobes(_normal_integral, x)

    def _lobes(self, function: Callable[[Tensor, float, float], Tensor], x: Tensor) -> Tensor:
        """Sum the lobes at x; `function` of x, mean and deviation is the density of a Gaussian or its integral."""
        width = self.scale * self.sigma
        sides = function(x, self.sigma, width) + function(x, -self.sigma, width)
        return (1 + self.height) * function(x, 0.0, self.sigma) - self.height * sides

    def config(self) -> dict[str, object]:
        return super().config() | {name: getattr(self, name) for name in ("height", "scale", "sigma")}


class Arctan(Surrogate):
    r""":math:`f(x) = 1 / (1 + (\pi x / 2)^2)`. Source: Fang et al. 2021 (PLIF)."""

    def shape(self, x: Tensor) -> Tensor:
        return 1 / (1 + (math.pi / 2 * x) ** 2)

    def shape_integral(self, x: Tensor) -> Tensor:
        return 2 / math.pi * torch.atan(math.pi / 2 * x)


class Logistic(Surrogate):
    r""":math:`f(x) = \sigma(x)(1 - \sigma(x))`, with :math:`f(0) = 1/4`. Source: Neftci, Mostafa & Zenke 2019."""

    def shape(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x) * torch.sigmoid(-x)

    def shape_integral(self, x: Tensor) -> Tensor:
        return torch.tanh(x / 2) / 2


class Triangular(Surrogate):
    r""":math:`f(x) = \max(0, 1 - |x|)`. Source: Bellec et al. 2018, LSNN."""

    def shape(self, x: Tensor) -> Tensor:
        return (1 - x.abs()).clamp(min=0)

    def shape_integral(self, x: Tensor) -> Tensor:
        inside = x.clamp(-1, 1)
        return inside - inside * inside.abs() / 2


class Rectangular(Surrogate):
    r""":math:`f(x) = 1` where :math:`|x| \le 1/2`, else 0. Source: Wu et al. 2018, Spatio-temporal backpropagation."""

    def shape(self, x: Tensor) -> Tensor:
        return (x.abs() <= 0.5).to(x.dtype)

    def shape_integral(self, x: Tensor) -> Tensor:
        return x.clamp(-0.5, 0.5)


class Gaussian(Surrogate):
    r""":math:`f(x) = N(x; 0, 1)`, with :math:`f(0) = 1/\sqrt{2\pi}`. Source: Yin, Corradi & Bohté 2020."""

    def shape(self, x: Tensor) -> Tensor:
        return _normal(x, 0.0, 1.0)

    def shape_integral(self, x: Tensor) -> Tensor:
        return _normal_integral(x, 0.0, 1.0)


class Exponential(Surrogate):
    r""":math:`f(x) = e^{-|x|}`. Source: Shrestha & Orchard 2018, SLAYER."""

    def shape(self, x: Tensor) -> Tensor:
        return torch.exp(-x.abs())

    def shape_integral(self, x: Tensor) -> Tensor:
        # 1 - e^-x for x > 0, e^x - 1 below. Each branch is clamped to its own side, so that the other one, which
        # `where` differentiates too, does not overflow, and that the derivative at 0 is 1.
        return torch.where(x > 0, -torch.expm1(-x.clamp(min=0)), torch.expm1(x.clamp(max=0)))


def _normal(x: Tensor, mean: float, std: float) -> Tensor:
    """Return the density of a Gaussian at x."""
    return torch.exp(-0.5 * ((x - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi))


def _normal_integral(x: Tensor, mean: float, std: float) -> Tensor:
    """Return the integral of a Gaussian's density from the mean to x."""
    return 0.5 * torch.erf((x - mean) / (std * math.sqrt(2)))
