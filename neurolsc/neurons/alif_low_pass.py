"""ALIF whose threshold is a low pass of its spikes: the neuron of the paper's released code."""

from typing import Literal, TypedDict, Unpack

import torch
from torch import Tensor

from neurolsc.neurons.alif import ALIF, ALIFPlus, ALIFState, checked_rest
from neurolsc.neurons.cell import Answer
from neurolsc.neurons.equations import Constants, advance, next_threshold
from neurolsc.neurons.leaky import ANSWERS, OTHER_NEURONS
from neurolsc.neurons.linearised import Linearised
from neurolsc.neurons.registry import register
from neurolsc.neurons.reset import ResetName
from neurolsc.neurons.spiking import Spike
from neurolsc.neurons.synapses import is_frozen
from neurolsc.neurons.thresholds import Thresholds
from neurolsc.positive import set_value


class ALIFOptions(TypedDict, total=False):
    """Keywords of an ALIF that are handed on."""

    spike: Spike | None
    tau_v: float
    tau_theta: float
    b_theta: float
    adaptation: float
    reset: ResetName
    reset_gradient: bool
    recurrent_init: Literal["glorot", "orthogonal"]


@register
class ALIFLowPass(ALIFPlus):
    r"""ALIF+ with a low-pass threshold: the neuron of the paper's *released code*, not of its text.

    With :math:`d_\vartheta = e^{-1/\tau_\vartheta}`,

    .. math::
        \vartheta[t] &= d_\vartheta \vartheta[t-1] + (1 - d_\vartheta) (b_\vartheta + \beta z[t-1])
        \\
        v[t] &= e^{-1/\tau_v} v[t-1] + W_{rec} z[t-1] + W_{in} x[t] + b_v - \vartheta[t] z[t-1] \\
        z[t] &= H(v[t] - \vartheta[t])

    The code writes the threshold as :math:`b_\vartheta + \beta a[t]` with a trace :math:`a[t] =
    d_\vartheta a[t-1] + (1 - d_\vartheta) z[t-1]` from 0, which is the same. Three things differ
    from :class:`ALIFPlus`:

    - a spike raises the threshold by :math:`(1 - d_\vartheta) \beta` and the resting threshold is
      :math:`b_\vartheta` itself, wherever tau_theta moves: with the same starting values both are
      about a hundred times as low;
    - the reset ``"subtract"`` takes off the new threshold, which the spike has raised already;
    - no neuron hears itself: the diagonal of w_rec starts as 0 and is not read.

    With :math:`b_\vartheta' = (1 - d_\vartheta) b_\vartheta` and :math:`\beta' = (1 - d_\vartheta)
    \beta` for an ALIF+ without self-connections, thresholds are equal, and so are, with reset
    ``"static"`` or ``"zero"``, voltages, spikes and derivatives. With ``"subtract"`` and the reset
    detached the derivatives at equal states are equal, and a spike takes off :math:`(1 -
    d_\vartheta) (b_\vartheta + \beta - \vartheta[t-1])` more than there. Where tau_v = tau_theta
    there is an ALIF+ of the same spikes then, too: with the constant input :math:`b_v'' = (1 -
    d_\vartheta) \beta'` and self-connections of :math:`-b_v''`, with :math:`b_\vartheta'' =
    b_\vartheta' + b_v''` and :math:`\beta'' = d_\vartheta \beta'`, started at :math:`v =
    \beta'`.

    It runs step by step, and is exported to no chip.

    Args:
        n_in: number of inputs.
        n_hidden: number of neurons.
        **options: keywords of :class:`neurolsc.neurons.alif.ALIF`. Of these ``b_theta`` is the mean
            starting resting threshold, ``adaptation`` the mean starting rise of the threshold of a
            neuron that fires at every step, and ``reset`` is ``"subtract"`` the new threshold, the
            resting one (``"static"``), or to ``"zero"``; ``recurrent_init`` is before the diagonal
            is taken out.

    Attributes:
        b_theta: resting threshold (n_hidden,), trainable.
        theta_rest: the same.
        adaptation: rise of the threshold of a neuron that fires at every step (n_hidden,),
            trainable.
        kept: share of the threshold that is kept, exp(-1/tau_theta) (n_hidden,); setting it sets
            tau_theta, and holds what a spike adds by moving the adaptation. Frozen ones stay.

    Raises:
        ValueError: if a size or a starting value is not positive, or a name is unknown.

    Source: the released code of Herranz-Celotti & Rouat, arXiv:2308.12075.

    Example:
        >>> cell = ALIFLowPass(3, 2)
        >>> bool((cell.initial_state(1).theta == cell.b_theta).all())
        True
    """

    answers = (*ANSWERS, Answer("adaptation", "time"), Answer("kept", "time", through="share"))
    paper_answers = ALIF.paper_answers
    recurrent_synapses: int | None = OTHER_NEURONS
    derivatives = ALIF.derivatives
    membrane = ALIF.membrane

    def __init__(self, n_in: int, n_hidden: int, **options: Unpack[ALIFOptions]) -> None:
        super().__init__(n_in, n_hidden, **options)
        with torch.no_grad():
            self.w_rec.fill_diagonal_(0)

    @property
    def theta_rest(self) -> Tensor:  # type: ignore[override]
        """The resting threshold, b_theta, shape (n_hidden,)."""
        return self.b_theta

    @theta_rest.setter
    def theta_rest(self, value: Tensor | float) -> None:
        set_value(self, "b_theta", checked_rest(value, self.b_theta))

    @property
    def kept(self) -> Tensor:
        """Share of the threshold that is kept; setting it holds what a spike adds."""
        return self.decay_theta

    @kept.setter
    def kept(self, value: Tensor) -> None:
        if is_frozen(self, "tau_theta"):
            return
        added = self._new_share * self.adaptation
        tiny = torch.finfo(self.adaptation.dtype).tiny
        self.tau_theta = -1 / torch.log(value.clamp(min=tiny))
        if not is_frozen(self, "adaptation"):
            set_value(self, "adaptation", (added / self._new_share).detach())

    @property
    def _new_share(self) -> Tensor:
        """1 - exp(-1/tau_theta), what is not kept of the threshold."""
        return -torch.expm1(-1 / self.tau_theta)

    def constants(self) -> Constants:
        """Those of the ALIF+ that has the same thresholds."""
        c, new = super().constants(), self._new_share
        w_rec = c.w_rec - torch.diag(c.w_rec.diagonal())
        return c._replace(w_rec=w_rec, b_theta=new * self.b_theta, adaptation=new * self.adaptation)

    def update(self, x: Tensor, z: Tensor, state: ALIFState) -> ALIFState:
        c = self.constants()
        theta = _raised(c, state.theta, z)
        v, _ = advance(self.reset, c._replace(threshold=_subtracted(c, theta)), x, z, state.v, None)
        return ALIFState(v, theta)

    def linearised(self, state: ALIFState) -> Linearised:
        """The step at B states, differentiated."""
        c = self.constants()
        assert c.adaptation is not None and c.decay_theta is not None
        s, z = self.spike_derivative(state), self.output(state).detach()
        subtracted = _subtracted(c, _raised(c, state.theta, z))
        d, e, r = self.reset.derivatives(c.decay_v, state.v, z, subtracted)
        # e is by the threshold that is subtracted, which the last one and the spikes have made
        return Linearised(c.w_rec, s, d, e * c.decay_theta, r - e * c.adaptation, c.adaptation, c.decay_theta)

    def thresholds(self) -> Thresholds:
        """b_theta and adaptation: the whole threshold is a sum of multiples of them."""
        return Thresholds(self, ("b_theta", "adaptation"), rest="theta_rest")


def _raised(c: Constants, theta: Tensor, z: Tensor) -> Tensor:
    """The next threshold."""
    assert c.decay_theta is not None and c.b_theta is not None and c.adaptation is not None
    return next_threshold(theta, z, c.decay_theta, c.b_theta, c.adaptation)


def _subtracted(c: Constants, theta: Tensor) -> Tensor:
    """What a spike takes off the voltage, if the next threshold is theta."""
    return theta if c.threshold is None else c.threshold
