r"""LIF, ALIF+ and ALIF± as recurrent modules of norse: one step (``...Cell``) or a whole sequence.

Each *is* our cell of the same neuron, so the same object goes into norse's ``SequentialState`` and, for radii and
pre-training, into :class:`neurolsc.Network`. Numbers are given in norse's words: rates per second and a step of ``dt``
seconds. norse's steps are Euler steps, so a rate gives the decay

.. math:: e^{-1/\tau} = 1 - \mathrm{dt} \cdot \mathrm{tau\_inv}

and from there on the cell counts in steps. There is no synaptic current: an input reaches the voltage in its own step.

Source: arXiv:2308.12075, eq. 49; the surface is that of norse 1.1.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from neurolsc import neurons
from neurolsc.neurons.cell import ScaledParameter
from neurolsc.neurons.spiking import ResetName, Spike, SpikingCell
from neurolsc.validation import positive, tensor

try:
    import norse.torch  # noqa: F401  a missing package is named here, not in the first network
except ImportError as error:
    raise ImportError("neurolsc.interop.norse needs norse: pip install 'norse>=1.1'.") from error

__all__ = [
    "ALIFPlusMinusRecurrent",
    "ALIFPlusMinusRecurrentCell",
    "ALIFPlusRecurrent",
    "ALIFPlusRecurrentCell",
    "ALIFRecurrentState",
    "LIFRecurrent",
    "LIFRecurrentCell",
    "LIFRecurrentState",
]


class LIFRecurrentState(NamedTuple):
    """State of a LIF module of this file."""

    z: Tensor  # spikes of the last step (..., hidden_size)
    v: Tensor  # membrane potential (..., hidden_size)


class ALIFRecurrentState(NamedTuple):
    """State of an ALIF module of this file."""

    z: Tensor  # spikes of the last step (..., hidden_size)
    v: Tensor  # membrane potential (..., hidden_size)
    theta: Tensor  # dynamic threshold (..., hidden_size)


def _renamed(scaled: tuple[ScaledParameter, ...]) -> tuple[ScaledParameter, ...]:
    names = {"w_in": "input_weights", "w_rec": "recurrent_weights"}
    return tuple(dataclasses.replace(each, parameter=names.get(each.parameter, each.parameter)) for each in scaled)


class _Recurrent(SpikingCell):
    """norse's surface for a cell of ours: names of weights, states with z, and a forward."""

    state_class: ClassVar[type[Any]]
    input_weights: nn.Parameter
    recurrent_weights: nn.Parameter
    absent: Tensor | None  # True where there is no connection (hidden_size, hidden_size)

    def _take_names(
        self, input_weights: Tensor | None, recurrent_weights: Tensor | None, autapses: bool, dt: float
    ) -> None:
        """Register the weights under norse's names, with the values passed."""
        self.autapses, self.dt = autapses, dt
        self.recurrent_synapses = self.n_hidden - (not autapses)
        passed = {"input_weights": ("w_in", input_weights), "recurrent_weights": ("w_rec", recurrent_weights)}
        for name, (ours, given) in passed.items():
            weights: Any = self._parameters.pop(ours)
            if given is not None and tensor(name, given).shape != weights.shape:
                raise ValueError(f"{name} must have shape {tuple(weights.shape)}, got {tuple(given.shape)}.")
            self.register_parameter(name, weights if given is None else nn.Parameter(given.detach().clone()))
        absent = None if autapses else torch.eye(self.n_hidden, dtype=torch.bool)
        self.register_buffer("absent", absent, persistent=False)
        if not autapses:
            with torch.no_grad():
                self.recurrent_weights.fill_diagonal_(0)

    @property
    def w_in(self) -> Tensor:  # type: ignore[override]
        """Our name of the input weights (hidden_size, input_size)."""
        return self.input_weights

    @property
    def w_rec(self) -> Tensor:  # type: ignore[override]
        """Our name of the recurrent weights; without autapses the diagonal is not read."""
        weights = self.recurrent_weights
        return weights if self.absent is None else weights.masked_fill(self.absent, 0)

    def initial_state(self, batch: int | Tensor) -> Any:
        """The state at rest: ours for a number of samples, norse's for one step's input (..., input_size)."""
        if isinstance(batch, int):
            return super().initial_state(batch)
        rest = super().initial_state(1)
        leaves = (self.output(rest), *rest)
        return self.state_class(*(leaf[0].to(batch).expand(*batch.shape[:-1], -1).contiguous() for leaf in leaves))

    def forward(self, input_tensor: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """One step of an input (..., input_size), by default from rest: spikes (..., hidden_size) and the state after.

        Raises:
            ValueError: if the input or the state has another shape.
        """
        if input_tensor.shape[-1:] != (self.n_in,):
            raise ValueError(f"input_tensor must have shape (..., {self.n_in}), got {tuple(input_tensor.shape)}.")
        state = self.initial_state(input_tensor) if state is None else state
        wanted = (*input_tensor.shape[:-1], self.n_hidden)
        if state.v.shape != wanted:
            came = f"an input {tuple(input_tensor.shape)} has leaves {wanted}, got {tuple(state.v.shape)}"
            raise ValueError(f"the state of {came}.")
        after = self.update(input_tensor, state.z, state)
        z = self.output(after)
        return z, self.state_class(z, *after)

    def extra_repr(self) -> str:
        sizes = f"input_size={self.n_in}, hidden_size={self.n_hidden}, autapses={self.autapses}, dt={self.dt}"
        return f"{sizes}, reset={self.reset_name!r}, reset_gradient={self.reset.gradient}"


class _OverTime(_Recurrent):
    """The same module over a sequence."""

    def __init__(self, *args: Any, record_states: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.record_states = record_states

    def initial_state(self, batch: int | Tensor) -> Any:
        return super().initial_state(batch if isinstance(batch, int) else batch[0])

    def forward(self, input_tensor: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """A run over an input (T, ..., input_size): spikes (T, ..., hidden_size) and the last state.

        With ``record_states`` the states after all steps, each leaf (T, ..., hidden_size), come instead of the last.

        Raises:
            ValueError: if the input or the state has another shape.
        """
        state = self.initial_state(input_tensor) if state is None else state
        spikes, states = [], []
        for x in input_tensor.unbind(0):
            z, state = super().forward(x, state)
            spikes.append(z)
            if self.record_states:
                states.append(state)
        if self.record_states:
            state = self.state_class(*(torch.stack(leaves) for leaves in zip(*states, strict=True)))
        return torch.stack(spikes), state


class LIFRecurrentCell(_Recurrent, neurons.LIF):
    r"""One step of recurrent leaky integrate-and-fire neurons, for norse.

    Args:
        input_size: number of inputs.
        hidden_size: number of neurons.
        spike: the surrogate; by default a new ``FastSigmoid()``. One of norse's is
            ``lambda x: threshold(x, "super", 100.0)``.
        tau_mem_inv: rate of the voltage's leak, 1/s.
        v_th: the threshold, positive.
        reset: ``"subtract"``, ``"static"`` (here the same) or ``"zero"``.
        reset_gradient: let a gradient through the reset term.
        input_weights: (hidden_size, input_size); by default Glorot uniform.
        recurrent_weights: (hidden_size, hidden_size), entry [i, j] leads from j to i; by default Glorot uniform.
        autapses: allow connections of a neuron to itself; without, the diagonal is zero and stays so.
        dt: length of a step, s.

    Raises:
        ValueError: if a size or a number is not positive, a step is not shorter than the time constant, or weights have
            another shape.

    Example:
        >>> cell = LIFRecurrentCell(2, 4)
        >>> z, state = cell(torch.ones(5, 2))
        >>> z, state = cell(torch.ones(5, 2), state)
        >>> z.shape, state.v.shape
        (torch.Size([5, 4]), torch.Size([5, 4]))
    """

    state_class = LIFRecurrentState
    scaled_parameters = _renamed(neurons.LIF.scaled_parameters)
    paper_scaled_parameters = _renamed(neurons.LIF.paper_scaled_parameters)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        spike: Spike | None = None,
        tau_mem_inv: float | Tensor = 100.0,
        v_th: float = 1.0,
        reset: ResetName = "subtract",
        reset_gradient: bool = False,
        input_weights: Tensor | None = None,
        recurrent_weights: Tensor | None = None,
        autapses: bool = False,
        dt: float = 0.001,
    ) -> None:
        super().__init__(
            input_size, hidden_size, spike=spike, threshold=v_th, reset=reset, reset_gradient=reset_gradient
        )
        self.tau_v = _steps("tau_mem_inv", tau_mem_inv, dt, hidden_size)
        self._take_names(input_weights, recurrent_weights, autapses, dt)


class LIFRecurrent(_OverTime, LIFRecurrentCell):
    """A sequence (T, ..., input_size) through :class:`LIFRecurrentCell`; takes its arguments and ``record_states``.

    Example:
        >>> z, state = LIFRecurrent(2, 4, record_states=True)(torch.ones(10, 5, 2))
        >>> z.shape, state.v.shape
        (torch.Size([10, 5, 4]), torch.Size([10, 5, 4]))
    """


class _ALIFRecurrentCell(_Recurrent, neurons.ALIF):
    """One step of recurrent neurons with an adaptive threshold, for norse."""

    state_class = ALIFRecurrentState
    scaled_parameters = _renamed(neurons.ALIF.scaled_parameters)
    paper_scaled_parameters = _renamed(neurons.ALIF.paper_scaled_parameters)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        spike: Spike | None = None,
        tau_mem_inv: float | Tensor = 100.0,
        tau_adapt_inv: float | Tensor = 10.0,
        v_th: float = 1.0,
        beta: float | Tensor | None = None,
        reset: ResetName = "subtract",
        reset_gradient: bool = False,
        input_weights: Tensor | None = None,
        recurrent_weights: Tensor | None = None,
        autapses: bool = False,
        dt: float = 0.001,
    ) -> None:
        super().__init__(input_size, hidden_size, spike=spike, reset=reset, reset_gradient=reset_gradient)
        self.tau_v = _steps("tau_mem_inv", tau_mem_inv, dt, hidden_size)
        self.tau_theta = _steps("tau_adapt_inv", tau_adapt_inv, dt, hidden_size)
        self.theta_rest = positive("v_th", v_th)
        if beta is not None:
            with torch.no_grad():
                self.adaptation.copy_(_one_or_each("beta", torch.as_tensor(beta), hidden_size))
        self._take_names(input_weights, recurrent_weights, autapses, dt)


class ALIFPlusRecurrentCell(_ALIFRecurrentCell, neurons.ALIFPlus):
    r"""One step of recurrent ALIF+ neurons, for norse: a spike raises the neuron's own threshold.

    Takes the arguments of :class:`LIFRecurrentCell`, of which ``v_th`` is the resting threshold, where a run starts,
    and

    Args:
        tau_adapt_inv: rate at which the threshold returns to rest, 1/s; 10 is the paper's 100 steps of a millisecond.
        beta: rise of the threshold at a spike, a number or (hidden_size,); by default drawn as the paper does, from a
            truncated Gaussian of mean 1.8.
        reset: ``"subtract"`` the current threshold, ``"static"``: the resting one, or to ``"zero"``.

    Example:
        >>> from norse.torch import LILinearCell, Lift, SequentialState
        >>> network = Lift(SequentialState(ALIFPlusRecurrentCell(2, 4), LILinearCell(4, 3)))
        >>> out, states = network(torch.ones(10, 5, 2))
        >>> out.shape
        torch.Size([10, 5, 3])

    Source: arXiv:2308.12075, eq. 49 and App. H.
    """


class ALIFPlusRecurrent(_OverTime, ALIFPlusRecurrentCell):
    """A sequence through :class:`ALIFPlusRecurrentCell`, as :class:`LIFRecurrent` runs it."""


class ALIFPlusMinusRecurrentCell(_ALIFRecurrentCell, neurons.ALIFPlusMinus):
    """One step of recurrent ALIF± neurons, for norse: a spike moves its threshold up or down.

    Arguments and errors are those of :class:`ALIFPlusRecurrentCell`, but beta may be negative and
    is by default drawn from a Gaussian of mean 0 and deviation 1.8 / input_size.

    Source: arXiv:2308.12075, eq. 49 and App. H.
    """


class ALIFPlusMinusRecurrent(_OverTime, ALIFPlusMinusRecurrentCell):
    """A sequence through :class:`ALIFPlusMinusRecurrentCell`, as :class:`LIFRecurrent` runs it."""


def _steps(name: str, rate: float | Tensor, dt: float, n: int) -> Tensor:
    """The time constants in steps (n,), positive, whose decay exp(-1/tau) is 1 - dt rate."""
    lost = positive("dt", dt) * _one_or_each(name, positive(name, rate), n).double()
    if not (lost < 1).all():
        raise ValueError(f"dt {name} must be below 1, got {lost.max().item():g}: the step is too long for that rate.")
    return (-1 / torch.log1p(-lost)).to(torch.get_default_dtype()).expand(n)


def _one_or_each(name: str, value: Tensor, n: int) -> Tensor:
    """The value, if it is one number or one per neuron."""
    if value.shape not in ((), (1,), (n,)):
        raise ValueError(f"{name} must be one number or {n}, got the shape {tuple(value.shape)}.")
    return value
