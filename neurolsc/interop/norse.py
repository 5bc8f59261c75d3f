r"""LIF, ALIF+ and ALIF± as recurrent modules of norse, and norse's neurons as our cells.

Ours take one step (``...Cell``) or a whole sequence. Each *is* our cell of the same neuron, so the same object goes
into norse's ``SequentialState`` and, for radii and pre-training, into :class:`neurolsc.Network`. Numbers are given in
norse's words: rates per second and a step of ``dt`` seconds. norse's steps are Euler steps, so a rate gives the decay

.. math:: e^{-1/\tau} = 1 - \mathrm{dt} \cdot \mathrm{tau\_inv}

and from there on the cell counts in steps. There is no synaptic current: an input reaches the voltage in its own step.

norse resets a voltage in the step that fires. The spike then cannot be computed from the voltage that is left, so the
state of a wrapped layer holds it. Time constants and thresholds lie in NamedTuples that norse neither registers nor
saves; the cell of a wrapped layer adds those that may be scaled to its own state_dict.

Source: arXiv:2308.12075, eq. 49; the surface is that of norse 1.1.
"""

import copy
import re
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from neurolsc import neurons
from neurolsc.interop.at_once import last_states, prepared
from neurolsc.interop.wrapped import (
    OWN_NEURON,
    UnsupportedLayerError,
    WrappedCell,
    borrowed,
    state_class,
    warn_of,
    weight_before,
)
from neurolsc.neurons.blocks import Spike
from neurolsc.neurons.cell import AtOnce, Membrane, ResetSwitch, ScaledParameter, State, Thresholds
from neurolsc.neurons.derivatives import Derivatives
from neurolsc.neurons.fast.scan import linear
from neurolsc.neurons.neuronwise import NeuronwiseDerivatives
from neurolsc.neurons.spiking import ResetName, SpikingCell
from neurolsc.validation import number, positive

try:
    from norse.torch.functional.leaky_integrator import LIState
    from norse.torch.functional.threshold import threshold
except ImportError as error:
    raise ImportError("neurolsc.interop.norse needs norse: pip install 'norse>=1.1'.") from error

# ---- our cells as modules of norse

WEIGHTS = {"w_in": "input_weights", "w_rec": "recurrent_weights"}  # our names and norse's


class LIFRecurrentState(NamedTuple):
    """State of a LIF module of this file, each (..., hidden_size)."""

    z: Tensor  # spikes of the last step
    v: Tensor


class ALIFRecurrentState(NamedTuple):
    """State of an ALIF module of this file, each (..., hidden_size)."""

    z: Tensor  # spikes of the last step
    v: Tensor
    theta: Tensor  # dynamic threshold


class _Recurrent(SpikingCell):
    """A spiking cell of ours with norse's names of weights, a forward, and norse's states, which hold the spikes z.

    Args:
        input_size: number of inputs.
        hidden_size: number of neurons.
        spike: this and all further arguments are described in :class:`LIFRecurrentCell`.
    """

    state_class: ClassVar[type[Any]]
    input_weights: nn.Parameter
    recurrent_weights: nn.Parameter
    absent: Tensor | None  # True where there is no connection (hidden_size, hidden_size)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        spike: Spike | None = None,
        tau_mem_inv: float | Tensor = 100.0,
        reset: ResetName = "subtract",
        reset_gradient: bool = False,
        input_weights: Tensor | None = None,
        recurrent_weights: Tensor | None = None,
        autapses: bool = False,
        dt: float = 0.001,
    ) -> None:
        super().__init__(input_size, hidden_size, spike=spike, reset=reset, reset_gradient=reset_gradient)
        self.autapses = autapses
        self.dt = number("dt", dt)
        self.tau_v = self._tau_in_steps("tau_mem_inv", tau_mem_inv)
        self.recurrent_synapses = hidden_size - (not autapses)  # of each neuron
        for ours, theirs in WEIGHTS.items():
            self.register_parameter(theirs, self._parameters.pop(ours))
        for attribute in ("scaled_parameters", "paper_scaled_parameters"):  # name the weights as norse does
            scaled = [replace(s, parameter=WEIGHTS.get(s.parameter, s.parameter)) for s in getattr(self, attribute)]
            setattr(self, attribute, tuple(scaled))
        if autapses:
            absent = None
        else:
            absent = torch.eye(hidden_size, dtype=torch.bool)
        self.register_buffer("absent", absent, persistent=False)
        with torch.no_grad():
            if input_weights is not None:
                self.input_weights.copy_(input_weights)
            if recurrent_weights is not None:
                self.recurrent_weights.copy_(recurrent_weights)
            if not autapses:
                self.recurrent_weights.fill_diagonal_(0)

    def _tau_in_steps(self, name: str, rate: float | Tensor) -> Tensor:
        """Turn norse's inverse time constants, in 1/s, into time constants tau in steps: exp(-1/tau) = 1 - dt * rate.

        Args:
            name: norse's name of the rate, for errors.
            rate: a number or (hidden_size,).

        Raises:
            ValueError: if a rate is not positive, or loses all of a voltage in one step.
        """
        lost = self.dt * positive(name, rate).double()
        if not (lost < 1).all():
            raise ValueError(
                f"dt {name} must be below 1, got {lost.max().item():g}: the step is too long for that rate."
            )
        return (-1 / torch.log1p(-lost)).to(torch.get_default_dtype())

    @property
    def w_in(self) -> Tensor:  # type: ignore[override]
        """Our name of the input weights (hidden_size, input_size)."""
        return self.input_weights

    @property
    def w_rec(self) -> Tensor:  # type: ignore[override]
        """Our name of the recurrent weights; without autapses the diagonal is not read."""
        weights = self.recurrent_weights
        if self.absent is None:
            return weights
        return weights.masked_fill(self.absent, 0)

    def initial_state(self, batch: int | Tensor) -> Any:
        """Return the state at rest.

        Args:
            batch: a number of samples B, for the state of our cell, each variable (B, hidden_size); or an input
                (..., input_size) of one step, for norse's state with z, each variable (..., hidden_size).
        """
        if isinstance(batch, int):
            return super().initial_state(batch)
        rest = super().initial_state(1)
        leaves = (self.output(rest), *rest)
        return self.state_class(*(leaf[0].to(batch).expand(*batch.shape[:-1], -1).contiguous() for leaf in leaves))

    def forward(self, input_tensor: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Take one step.

        Args:
            input_tensor: the input (..., input_size).
            state: the state after the step before; None: at rest.

        Returns:
            Spikes (..., hidden_size) and the state.
        """
        if state is None:
            state = self.initial_state(input_tensor)
        after = self.update(input_tensor, state.z, state)
        z = self.output(after)
        return z, self.state_class(z, *after)

    def extra_repr(self) -> str:
        sizes = f"input_size={self.n_in}, hidden_size={self.n_hidden}, autapses={self.autapses}, dt={self.dt}"
        return f"{sizes}, reset={self.reset.name!r}, reset_gradient={self.reset.gradient}"


class _OverTime(_Recurrent):
    """The module for one step, run over a sequence.

    Args:
        *args: those of the module for one step.
        record_states: return the states after all steps, not the last one.
        **kwargs: those of the module for one step.
    """

    def __init__(self, *args: Any, record_states: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.record_states = record_states

    def initial_state(self, batch: int | Tensor) -> Any:
        """Return the state at rest, as for one step; but an input is a sequence here, (T, ..., input_size)."""
        return super().initial_state(batch if isinstance(batch, int) else batch[0])

    def forward(self, input_tensor: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Run over a sequence.

        Args:
            input_tensor: the input (T, ..., input_size).
            state: the state before the first step; None: at rest.

        Returns:
            Spikes (T, ..., hidden_size) and the last state; with ``record_states`` the states after all steps, each
            variable (T, ..., hidden_size), instead of the last.
        """
        spikes = []
        states = []
        for x in input_tensor.unbind(0):
            if state is None:
                state = super().initial_state(x)
            z, state = super().forward(x, state)
            spikes.append(z)
            if self.record_states:
                states.append(state)
        if self.record_states:
            state = self.state_class(*(torch.stack(variable) for variable in zip(*states, strict=True)))
        return torch.stack(spikes), state


class LIFRecurrentCell(_Recurrent, neurons.LIF):
    r"""One step of recurrent leaky integrate-and-fire neurons, for norse.

    Args:
        input_size: number of inputs.
        hidden_size: number of neurons.
        v_th: the threshold, positive.
        **settings: ``tau_mem_inv``, the rate of the voltage's leak in 1/s (100.0); ``dt``, the length of a step in s
            (0.001); ``spike``, the surrogate (``FastSigmoid()``; one of norse's is ``lambda x: threshold(x, "super",
            100.0)``); ``reset``, ``"subtract"``, ``"static"`` (here the same) or ``"zero"``; ``reset_gradient``, to let
            a gradient through the reset (False); ``input_weights`` (hidden_size, input_size) and ``recurrent_weights``
            (hidden_size, hidden_size), entry [i, j] from j to i, both by default Glorot uniform; ``autapses``, to allow
            connections of a neuron to itself (False: the diagonal is zero and stays so).

    Raises:
        ValueError: if a size or a number is not positive, or a step is not shorter than the time constant.

    Example:
        >>> cell = LIFRecurrentCell(2, 4)
        >>> z, state = cell(torch.ones(5, 2))
        >>> z, state = cell(torch.ones(5, 2), state)
        >>> z.shape, state.v.shape
        (torch.Size([5, 4]), torch.Size([5, 4]))
    """

    state_class = LIFRecurrentState

    def __init__(self, input_size: int, hidden_size: int, *, v_th: float = 1.0, **settings: Any) -> None:
        super().__init__(input_size, hidden_size, **settings)
        self.theta.fill_(number("v_th", v_th))


class LIFRecurrent(_OverTime, LIFRecurrentCell):
    """A sequence (T, ..., input_size) through :class:`LIFRecurrentCell`; takes its arguments and ``record_states``.

    Example:
        >>> z, state = LIFRecurrent(2, 4, record_states=True)(torch.ones(10, 5, 2))
        >>> z.shape, state.v.shape
        (torch.Size([10, 5, 4]), torch.Size([10, 5, 4]))
    """


class _ALIFRecurrentCell(_Recurrent, neurons.ALIF):
    """One step of recurrent neurons with an adaptive threshold, for norse; its arguments: ALIFPlusRecurrentCell."""

    state_class = ALIFRecurrentState

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        v_th: float = 1.0,
        tau_adapt_inv: float | Tensor = 10.0,
        beta: float | Tensor | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(input_size, hidden_size, **settings)
        self.tau_theta = self._tau_in_steps("tau_adapt_inv", tau_adapt_inv)
        self.theta_rest = positive("v_th", v_th)
        if beta is not None:
            with torch.no_grad():
                self.adaptation.copy_(torch.as_tensor(beta))


class ALIFPlusRecurrentCell(_ALIFRecurrentCell, neurons.ALIFPlus):
    r"""One step of recurrent ALIF+ neurons, for norse: a spike raises the neuron's own threshold.

    Args:
        input_size: number of inputs.
        hidden_size: number of neurons.
        v_th: the resting threshold, where a run starts.
        tau_adapt_inv: rate at which the threshold returns to rest, 1/s; 10 is the paper's 100 steps of a millisecond.
        beta: rise of the threshold at a spike, a number or (hidden_size,); by default drawn as the paper does, from a
            truncated Gaussian of mean 1.8.
        **settings: those of :class:`LIFRecurrentCell`; here ``reset="static"`` subtracts the resting threshold.

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

    As :class:`ALIFPlusRecurrentCell`, but beta may be negative and is by default drawn from a Gaussian of mean 0 and
    deviation 1.8 / input_size.

    Source: arXiv:2308.12075, eq. 49 and App. H.
    """


class ALIFPlusMinusRecurrent(_OverTime, ALIFPlusMinusRecurrentCell):
    """A sequence through :class:`ALIFPlusMinusRecurrentCell`, as :class:`LIFRecurrent` runs it."""


# ---- norse's layers as our cells

WRAPPED = re.compile("(LIF|LIFBox|LSNN|IAF|LI|LIBox)(Recurrent)?(Cell)?|LILinearCell")
# norse's rates tau_inv in 1/s, and our name of the decay factor 1 - dt tau_inv of each
RATES = {"tau_mem_inv": "decay_mem", "tau_syn_inv": "decay_syn", "tau_adapt_inv": "decay_adapt"}
SLOWEST = 1e-5  # share of an adaptation that decays in a step; at less, under a hundredth decays in 1,000 steps


class NeuronParameter:
    """A field of a layer's neuron parameters p as an attribute of its cell; for a rate, the decay 1 - dt tau_inv."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, cell: Any, owner: type | None = None) -> Any:
        if cell is None:  # read from the class
            return self
        value = torch.as_tensor(getattr(cell.layer.p, self.name))
        if self.name in RATES:
            return 1 - cell.layer.dt * value
        return value

    def __set__(self, cell: Any, value: Tensor) -> None:
        if self.name in RATES:
            value = (1 - value) / cell.layer.dt
        set_parameter(cell.layer, self.name, value)


def set_parameter(layer: Any, name: str, value: Tensor) -> None:
    """Set a field of a layer's neuron parameters p: a parameter in place, another one by a new p."""
    before = getattr(layer.p, name)
    if isinstance(before, nn.Parameter):
        with torch.no_grad():
            before.copy_(value)
    else:  # a new tensor: norse's own defaults are shared by all layers of the process
        layer.p = layer.p._replace(**{name: value.detach().clone()})


class NorseCell(WrappedCell):
    """A layer of norse as a cell: one of norse's cells, or a layer with time, which reads sequences of one step.

    Args:
        layer: the layer.
        before: as in :class:`~neurolsc.interop.wrapped.WrappedCell`.
        input_shape: as there.

    Attributes:
        has_time: True for a layer with time.
        rates: the rates among the fields of p that the layer has.
        threshold_names: the fields of p that scaling the threshold scales; empty if no threshold can be scaled.
        state_of_layer: the NamedTuple of norse's state.
        sent: name of the variable of our state that holds the output: v of an integrator, z if norse's state has it,
            else ``"sent"``.
        state: the NamedTuple of our state: norse's variables, and ``sent`` if it is none of them.

    Raises:
        TypeError: if it cannot be wrapped.
    """

    decay_mem = NeuronParameter("tau_mem_inv")
    decay_syn = NeuronParameter("tau_syn_inv")
    decay_adapt = NeuronParameter("tau_adapt_inv")
    v_th = NeuronParameter("v_th")
    beta = NeuronParameter("beta")

    def __init__(self, layer: Any, before: list[nn.Module], input_shape: tuple[int, ...]) -> None:
        check_layer(layer)
        p = layer.p
        name = type(layer).__name__
        kind = name.removesuffix("Cell").removesuffix("Linear")
        self.has_time = kind == name
        self.integrator = kind in ("LI", "LIBox")
        if self.integrator:
            self.reset_gradient = None
        else:  # norse detaches the spikes that reset a neuron in these two kinds of layers alone
            self.reset_gradient = kind not in ("LIFRecurrent", "LSNNRecurrent")
        self.rates = [rate for rate in RATES if hasattr(p, rate)]
        self.threshold_names: tuple[str, ...] = ()
        if hasattr(p, "v_th") and (torch.as_tensor(p.v_th) > 0).all():  # a factor above 1 would not raise others
            self.threshold_names = tuple(n for n in ("v_th", "beta") if hasattr(p, n))
        start = _at_rest(layer, torch.zeros(1, 1, 1))  # of any shape: its class and fields alone are used
        self.state_of_layer = type(start)
        if self.integrator:
            self.sent = "v"
        elif "z" in start._fields:  # of recurrent layers
            self.sent = "z"
        else:
            self.sent = "sent"
        self.state = state_class(*dict.fromkeys((*start._fields, self.sent)))
        scaled = weight_before(before)
        if hasattr(layer, "input_weights"):
            scaled = [ScaledParameter("layer.input_weights", "depth")]
        # The spikes of an LSNN do not depend on the input of the same step: no radius through depth follows from its
        # input weights. `input_matrices` names them, since they are matrices of the network all the same.
        if kind.startswith("LSNN"):
            self.input_matrices = tuple(each.parameter for each in scaled)
            scaled = []
        if hasattr(layer, "recurrent_weights"):
            scaled.append(ScaledParameter("layer.recurrent_weights", "time"))
        # a multiplier scales a rate tau_inv by way of its decay 1 - dt tau_inv
        scaled += (ScaledParameter(RATES[rate], "time", through="decay_factor") for rate in self.rates)
        super().__init__(layer, before, input_shape, scaled)

    def closed_form(self) -> Derivatives | None:
        """Return the derivatives neuron by neuron; None if neurons read each other, or the layer has input weights."""
        has_weights = hasattr(self.layer, "recurrent_weights") or hasattr(self.layer, "input_weights")
        if has_weights or not hasattr(self.layer, "state_fallback"):  # the second: LILinearCell
            return None
        return NeuronwiseDerivatives(self)

    def thresholds(self) -> Thresholds | None:
        """Return a handle on v_th and an LSNN's beta; None without a threshold, or if any v_th is <= 0."""
        if self.threshold_names:
            return Thresholds(self, self.threshold_names)
        return None

    def membrane(self) -> Membrane | None:
        """Return a handle on v, which a spike has reset already; None where :meth:`thresholds` is."""

        def theta(state: State) -> Tensor:  # v_th, or the dynamic threshold b of an LSNN
            if "b" in state._fields:
                return state.b
            return self.v_th

        def spike(distance: Tensor) -> Tensor:
            return threshold(distance, self.layer.p.method, torch.as_tensor(self.layer.p.alpha))  # type: ignore[arg-type]

        if self.threshold_names:
            return Membrane("v", theta, spike)
        return None

    def reset_switch(self) -> ResetSwitch | None:
        """Return the switch that detaches the reset; None if no gradient passes it.

        norse has no such setting: the switch takes away the surrogate, through which the gradient of the reset passes.
        """
        if not self.reset_gradient or not hasattr(self.layer.p, "method"):
            return None
        return ResetSwitch(self.layer, "p", self.layer.p._replace(method="heaviside"))

    def start(self, current: Tensor) -> State:
        """Return the layer's own state at rest for a current, each variable (B, ...) in the dtype of the parameters."""
        hidden = getattr(self.layer, "hidden_size", None)
        if hidden is None:
            shape = current.shape
        else:
            shape = (len(current), int(hidden))
        # norse's variables, and a zero for `sent`, which is cut off where it is one of norse's
        variables = [*_at_rest(self.layer, current[None] if self.has_time else current), torch.zeros(())]
        variables = variables[: len(self.state._fields)]
        like = self.dtype_and_device
        return self.state(*(variable.detach().to(**like).expand(shape).clone() for variable in variables))

    def advance(self, current: Tensor, z: Tensor, state: State) -> State:
        """Return the state after a step of the layer's own forward, from a current and the last output z (B, ...)."""
        if not self.integrator:  # z itself, so that derivatives by the last output and by the state are separate
            state = state._replace(**{self.sent: z})
        before = self.state_of_layer(*state[: len(self.state_of_layer._fields)])
        with borrowed(self.layer, record_states=False):
            sent, after = self.layer.forward(current[None] if self.has_time else current, before)
        variables = [*after, sent[0] if self.has_time else sent]
        return self.state(*variables[: len(state)])  # `sent` is cut off where it is one of norse's

    def emitted(self, state: State) -> Tensor:
        return getattr(state, self.sent)

    def run_at_once(self, x: Tensor, state: State, lengths: Tensor | None, late: Tensor | None) -> AtOnce:
        """Run all steps by a kernel, as :meth:`neurolsc.Cell.run` does; None if the layer needs plain steps."""
        kernel = prepared(self, x, state, late)
        if kernel is None:
            return None
        # Kernels number the spikes z 0, and the states v, i, b from 1. Only recurrent layers start from spikes, too.
        start = [getattr(state, ("z", "v", "i", "b")[output]) for output in kernel.layer.outputs]
        currents = kernel.currents
        if hasattr(self.layer, "input_weights"):
            currents = linear(currents, self.layer.input_weights)
        z, after, ends = kernel.layer.run(currents, kernel.steps, start, kernel.layer.settings())
        sent = after[0] if self.integrator else z
        # of each variable its values after all steps, and after the last; zip stops after the kernel's last state
        variables: dict[str, tuple[Tensor, Tensor]] = dict(zip("vib", zip(after, ends, strict=True), strict=False))
        variables[self.sent] = (sent, sent[-1])
        last = []
        for name in state._fields:
            over_time, end = variables[name]
            last.append(last_states(over_time, getattr(state, name), end, lengths))
        return sent.flatten(2), self.state(*last)

    def get_extra_state(self) -> Tensor:
        """Return the rates and thresholds that may be scaled, stacked along axis 0; empty if there are none."""
        values = [torch.as_tensor(getattr(self.layer.p, n)).detach() for n in (*self.rates, *self.threshold_names)]
        if values:
            return torch.stack(torch.broadcast_tensors(*values))
        return torch.empty(0)

    def set_extra_state(self, state: Tensor) -> None:
        for name, value in zip((*self.rates, *self.threshold_names), state, strict=True):
            set_parameter(self.layer, name, value)


def check_layer(layer: Any) -> None:
    """Raise a TypeError for a layer that cannot be wrapped; warn if its adaptation never decays."""
    name = type(layer).__name__
    of_norse = type(layer).__module__.startswith("norse.")
    if not of_norse or not WRAPPED.fullmatch(name):
        why = "only LIF, LIFBox, IAF, LSNN, LI and LIBox are, recurrent or not, as cells too, and LILinearCell"
        if name == "LIFCorrelation":
            why = "it takes its weights with every call"
        if not of_norse:
            why += f". {OWN_NEURON.removesuffix('.')}"
        raise UnsupportedLayerError(f"norse's {name} cannot be wrapped: {why}.")
    if "adjoint" in getattr(getattr(layer, "activation", None), "__name__", ""):
        raise UnsupportedLayerError(
            f"norse's {name} with adjoint cannot be wrapped: its backward is not the step's derivative."
        )
    rate = torch.as_tensor(getattr(layer.p, "tau_adapt_inv", 1.0)).max().item()  # 1.0: no adaptation
    if rate * layer.dt < SLOWEST:
        warn_of(
            f"{name}: at tau_adapt_inv = {rate:g} and dt = {layer.dt:g} the adaptation never decays (norse's default "
            "is 800 s), which holds the radius through time at 1."
        )


def _at_rest(layer: Any, current: Tensor) -> Any:
    """Return norse's state in which a layer starts, for a current (B, ...), or (T, B, ...) if the layer has time."""
    if not hasattr(layer, "state_fallback"):  # LILinearCell
        return LIState(torch.as_tensor(layer.p.v_leak), current.new_zeros(()))
    with torch.no_grad(), borrowed(layer, p=copy.deepcopy(layer.p)):  # some starts mark shared parameters as learnable
        return layer.state_fallback(current)
