r"""Adaptive LIF: a voltage u and a current w that follows it, and may oscillate with it.

With :math:`\alpha = e^{-1/\tau_u}`, :math:`\beta = e^{-1/\tau_w}`, :math:`I = W_{in} x[t] + W_{rec} z[t-1]` and r the
voltage after the reset of its spike,

.. math::
    u[t] &= \alpha\, r[t-1] + (1-\alpha) (I - w), \quad z[t] = H(u[t] - \vartheta)

where w is w[t-1] in explicit Euler steps (:class:`EFAdLIF`), and the new w[t] in symplectic ones (:class:`SEAdLIF`,
:class:`RadLIF`). The u of a state is that before the reset, so that the spikes are a function of the state. These cells
run step by step, and have derivatives in closed form.
"""

import math
from abc import abstractmethod
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from neurolsc.display import state_repr
from neurolsc.neurons.blocks import RESET, NeuronCell, Range, matrix_of
from neurolsc.neurons.cell import Bound, ScaledParameter, register
from neurolsc.neurons.derivatives import Term
from neurolsc.neurons.parameters import LogParameter
from neurolsc.validation import number, one_of

MEMBRANE = Term("membrane", "shorten tau_u and tau_w", "lengthen tau_u or tau_w", "#0072b2")
ADAPTATION = Term("adaptation", "lower a and b", "lengthen tau_w", "#d55e00")


class AdLIFState(NamedTuple):
    """State of an adaptive LIF cell."""

    u: Tensor  # potential, before the reset of its spike (B, n_hidden)
    w: Tensor  # adaptation current (B, n_hidden)
    __repr__ = state_repr


class AdaptiveLIF(NeuronCell):
    """Base of adaptive LIF cells, with two decays and a current that the voltage and its spikes drive."""

    tau_u = LogParameter()
    tau_w = LogParameter()
    scaled_parameters = (
        *NeuronCell.scaled_parameters,
        *(ScaledParameter(name, "time", through="decay") for name in ("tau_u", "tau_w")),
    )
    block_terms = (MEMBRANE, RESET, ADAPTATION)
    state_type = AdLIFState
    explicit = False  # True if u[t] reads w[t-1], False if it reads w[t]
    unit_of_a = ""  # what a is multiplied by where a voltage is added to w, for messages
    a: nn.Parameter
    b: nn.Parameter

    @abstractmethod
    def coefficients(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return alpha, beta, and what a voltage of 1 and what a spike add to w in a step, each (n_hidden,)."""

    def shares(self) -> Tensor:
        decay_u, _, _, _ = self.coefficients()
        return (1 - decay_u) * super().shares()

    def step_blocks(self, z: Tensor, reset: Tensor | float, by_u: Tensor, leak: Tensor | float) -> dict[str, Tensor]:
        """Return the blocks of a step, named terms (P, 2, 2, n) over the variables (u, w).

        Args:
            z: the spikes (P, n).
            reset: derivative by u of r, the voltage after the reset, by way of the spike, (P, n) or one number.
            by_u: derivative of the next w by u (P, n).
            leak: derivative of r by u at a fixed spike, (P, n) or one number.
        """
        decay_u, decay_w, _, _ = self.coefficients()
        pull = decay_u - 1  # derivative of the next u by the w that it reads
        feedback: list[list[Tensor | float]] = [[0.0, pull], [by_u, 0.0]]
        if not self.explicit:  # u reads the new w, which is by_u u + decay_w w
            feedback[0] = [pull * by_u, pull * decay_w]
        return {
            "membrane": matrix_of([[decay_u * leak, 0.0], [0.0, decay_w]], z),
            "reset": matrix_of([[decay_u * reset, 0.0], [0.0, 0.0]], z),
            "adaptation": matrix_of(feedback, z),
        }

    def bounds(self) -> tuple[Bound, ...]:
        # Both eigenvalues of the 2 x 2 matrix below threshold are inside the unit circle if and only if its trace and
        # determinant are within these bounds on gain, what a voltage of 1 adds to w.
        decay_u, decay_w, gain, _ = self.coefficients()
        if self.explicit:
            highest = (1 - decay_u * decay_w) / (1 - decay_u)
            text = "(1 - alpha beta) / (1 - alpha)"
            above = "take SEAdLIF, or clamp a to less"
        else:
            highest = (1 + decay_u) * (1 + decay_w) / (1 - decay_u)
            text = "(1 + alpha) (1 + beta) / (1 - alpha)"
            above = "lengthen tau_w, or clamp a to less"
        below = "clamp a to 0 or more"
        if not self.unit_of_a:  # RadLIF
            below = "clamp a to -(1 - beta) or more, or take parametrisation='cadlif'"
        return (
            Bound(f"{self.unit_of_a}a < -(1 - beta)", gain + 1 - decay_w, below),
            Bound(f"{self.unit_of_a}a > {text}", highest - gain, above),
        )


class _QAdLIF(AdaptiveLIF):
    """Base of EF-adLIF and SE-adLIF: their parameters, and a reset to 0 without a gradient."""

    settings = ("tau_u_range", "tau_w_range", "a_range", "b_range", "q", "clamp")
    unit_of_a = "(1 - beta) q "

    def __init__(
        self,
        n_in: int,
        n_hidden: int,
        *,
        tau_u_range: Range = (5.0, 25.0),
        tau_w_range: Range = (60.0, 300.0),
        a_range: Range = (0.0, 1.0),
        b_range: Range = (0.0, 2.0),
        q: float = 120.0,
        clamp: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__(n_in, n_hidden, **settings)
        self.tau_u_range = self.draw("tau_u", tau_u_range, positive=True)
        self.tau_w_range = self.draw("tau_w", tau_w_range, positive=True)
        self.a_range = self.draw("a", a_range)
        self.b_range = self.draw("b", b_range)
        self.q = number("q", q)
        self.clamp = clamp

    def coefficients(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        a = self.a
        b = self.b
        if self.clamp:
            a = a.clamp(*self.a_range)
            b = b.clamp(*self.b_range)
        decay_w = torch.exp(-1 / self.tau_w)
        factor = (1 - decay_w) * self.q
        return torch.exp(-1 / self.tau_u), decay_w, factor * a, factor * b

    def blocks(self, state: AdLIFState, s: Tensor, z: Tensor) -> dict[str, Tensor]:
        _, _, a, b = self.coefficients()
        # the next w adds a r + b z, with r = u (1 - z)
        return self.step_blocks(z, reset=0.0, by_u=a * (1 - z) + b * s, leak=1 - z)


@register
class EFAdLIF(_QAdLIF):
    r"""EF-adLIF: adaptive LIF by explicit Euler steps (:mod:`neurolsc.neurons.adaptive`).

    .. math:: w[t] = \beta w[t-1] + (1-\beta)\, q\, (a\, r[t-1] + b\, z[t-1]), \quad r = u (1 - z)

    with no gradient through the reset. The determinant of a step below threshold is :math:`\alpha\beta +
    (1-\alpha)(1-\beta) q a`, so that a neuron is stable there if and only if :math:`-1 < q a < (1 - \alpha\beta) /
    ((1-\alpha)(1-\beta))`. With the default ranges 3.6 % of the neurons are not.

    Args:
        tau_u_range: range of the initial time constants of u, in steps; draws from all ranges are uniform.
        tau_w_range: likewise of w.
        a_range: range of the initial a, the weight of the voltage in w.
        b_range: range of the initial b, the weight of a spike in w.
        q: factor of both a and b.
        clamp: clamp a and b to their ranges wherever a step reads them, as the publication does.
        **settings: ``spike`` and ``threshold`` of :class:`NeuronCell`.

    Attributes:
        tau_u: time constants (n_hidden,), in steps; positive, not clamped; settable. Likewise ``tau_w``.
        a: (n_hidden,), trainable. Likewise ``b``.

    Source: Baronig et al., Nature Communications 2025, arXiv:2408.07517; github.com/IGITUGraz/SE-adlif.
    """

    explicit = True

    def update(self, x: Tensor, z: Tensor, state: AdLIFState) -> AdLIFState:
        decay_u, decay_w, a, b = self.coefficients()
        r = state.u * (1 - z.detach())
        u = decay_u * r + (1 - decay_u) * (self.current(x, z) - state.w)
        return AdLIFState(u, decay_w * state.w + a * r + b * z)

    blocks = _QAdLIF.blocks  # named in the class of its step, or they would not count as this step's


@register
class SEAdLIF(_QAdLIF):
    r"""SE-adLIF: adaptive LIF by symplectic Euler steps (:mod:`neurolsc.neurons.adaptive`).

    .. math:: w[t] = \beta w[t-1] + (1-\beta)\, q\, (a\, r[t-1] + b\, z[t-1]), \quad r = u (1 - z)

    where u[t] reads this new w[t], which the publication calls w[t-1]. No gradient passes the reset. The
    determinant of a step below threshold is :math:`\alpha\beta` whatever a is, so that an oscillation decays by
    :math:`\sqrt{\alpha\beta}` a step; a neuron is stable there if and only if :math:`-1 < q a < (1+\alpha)(1+\beta) /
    ((1-\alpha)(1-\beta))`. Arguments and parameters are those of :class:`EFAdLIF`. With its default ranges all neurons
    are stable, and 97 % oscillate (4 % without the factor q).

    Source: Baronig et al., Nature Communications 2025, arXiv:2408.07517; github.com/IGITUGraz/SE-adlif.
    """

    def update(self, x: Tensor, z: Tensor, state: AdLIFState) -> AdLIFState:
        decay_u, decay_w, a, b = self.coefficients()
        r = state.u * (1 - z.detach())
        w = decay_w * state.w + a * r + b * z
        return AdLIFState(decay_u * r + (1 - decay_u) * (self.current(x, z) - w), w)

    blocks = _QAdLIF.blocks  # as in EFAdLIF


Parametrisation = Literal["sparch", "cadlif", "silif"]
# the ranges of alpha and of beta from which initial decays are drawn, and to which they are clamped
DECAYS: dict[str, tuple[Range, Range]] = {
    "sparch": ((math.exp(-1 / 5), math.exp(-1 / 25)), (math.exp(-1 / 30), math.exp(-1 / 120))),
    "cadlif": ((0.36, 0.96), (0.96, 0.99)),
}
RATES = ((10.0, 250.0), (2.5, 10.0))  # silif's ranges for u and w, per second; logarithms are drawn uniformly
SILIF_STEP = 0.004  # in seconds
RANGE_OF_B = (0.0, 2.0)


@register
class RadLIF(AdaptiveLIF):
    r"""RadLIF, cAdLIF and SiLIF: symplectic adaptive LIF without the factor q (:mod:`neurolsc.neurons.adaptive`).

    .. math:: w[t] = \beta w[t-1] + a\, u[t-1] + b\, z[t-1], \quad r = u - \vartheta z

    with a gradient through the reset, and no self-connections. Below threshold a neuron is stable if and only if
    :math:`-(1-\beta) < a < (1+\alpha)(1+\beta) / (1-\alpha)`.

    Args:
        parametrisation: ``"sparch"``: a from -1 to 1, with which **48.9 % of the neurons are unstable**, up to a radius
            of 1.42 a step. ``"cadlif"``: a from 0 to 1, other decays. ``"silif"``: a from 0 to 1, decays exp(-0.004 r)
            with rates r whose logarithms are drawn uniformly. With the latter two no neuron is unstable. b is from 0 to
            2 in all three.
        clamp: clamp a, b and, except for silif, the decays to these ranges wherever a step reads them, as the
            publications do.
        **settings: ``spike`` and ``threshold`` of :class:`NeuronCell`.

    Attributes:
        tau_u: time constants (n_hidden,), in steps, trained as logarithms; the publications train decays. Likewise
            ``tau_w``.
        a: (n_hidden,), trainable. Likewise ``b``.
        w_rec: recurrent weights, orthogonal; the diagonal is not read. cAdLIF and SiLIF have none: set it to 0.

    The publications normalise each layer's input over the batch; here nothing does.

    Source: Bittar & Garner 2022 (github.com/idiap/sparch); Deckers et al. 2024, and Fabre et al. 2025
    (github.com/Maxtimer97/SSM-inspired-LIF).
    """

    settings = ("parametrisation", "clamp")

    def __init__(
        self,
        n_in: int,
        n_hidden: int,
        *,
        parametrisation: Parametrisation = "sparch",
        clamp: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__(n_in, n_hidden, **settings)
        one_of("parametrisation", parametrisation, get_args(Parametrisation))
        self.parametrisation = parametrisation
        self.clamp = clamp
        if parametrisation == "silif":
            rates = (torch.empty(n_hidden).uniform_(math.log(low), math.log(high)).exp() for low, high in RATES)
            taus = (1 / (rate * SILIF_STEP) for rate in rates)
        else:
            decays = (torch.empty(n_hidden).uniform_(*ends) for ends in DECAYS[parametrisation])
            taus = (-1 / torch.log(decay) for decay in decays)
        self.tau_u, self.tau_w = taus  # in steps; each is a LogParameter, which stores a trainable logarithm
        if parametrisation == "sparch":
            self.range_of_a = (-1.0, 1.0)
        else:
            self.range_of_a = (0.0, 1.0)
        self.a = nn.Parameter(torch.empty(n_hidden).uniform_(*self.range_of_a))
        self.b = nn.Parameter(torch.empty(n_hidden).uniform_(*RANGE_OF_B))
        self.recurrent_synapses = n_hidden - 1  # of each neuron: it does not read itself

    def weights_between(self) -> Tensor:
        return self.w_rec - torch.diag(self.w_rec.diagonal())

    def coefficients(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        decay_u = torch.exp(-1 / self.tau_u)
        decay_w = torch.exp(-1 / self.tau_w)
        if not self.clamp:
            return decay_u, decay_w, self.a, self.b
        if self.parametrisation in DECAYS:  # not silif
            range_of_alpha, range_of_beta = DECAYS[self.parametrisation]
            decay_u = decay_u.clamp(*range_of_alpha)
            decay_w = decay_w.clamp(*range_of_beta)
        return decay_u, decay_w, self.a.clamp(*self.range_of_a), self.b.clamp(*RANGE_OF_B)

    def update(self, x: Tensor, z: Tensor, state: AdLIFState) -> AdLIFState:
        decay_u, decay_w, a, b = self.coefficients()
        r = state.u - self.theta * z
        w = decay_w * state.w + a * state.u + b * z
        return AdLIFState(decay_u * r + (1 - decay_u) * (self.current(x, z) - w), w)

    def blocks(self, state: AdLIFState, s: Tensor, z: Tensor) -> dict[str, Tensor]:
        _, _, a, b = self.coefficients()
        # the next w adds a u + b z; r = u - theta z
        return self.step_blocks(z, reset=-self.theta * s, by_u=a + b * s, leak=1.0)
