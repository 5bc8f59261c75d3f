r"""LIF, ALIF+ and ALIF± as neurons of snnTorch, and snnTorch's neurons as our cells.

Ours take a current of their own width (the input weights are the ``nn.Linear`` before them) and return ``spk, mem`` or
``spk, thr, mem``. With the decay ``beta``, the resting threshold ``threshold`` and a hidden ``recurrent.weight``,

.. math::
    U[t] &= \beta\, U[t-1] + I[t] + V S[t-1] - \vartheta[t-1] S[t-1] \\
    \vartheta[t] &= e^{-1/\tau_\vartheta} \vartheta[t-1]
                    + (1 - e^{-1/\tau_\vartheta})\,\text{threshold}
                    + \text{adaptation} \cdot S[t-1] \\
    S[t] &= H(U[t] - \vartheta[t])

which is eq. 49 of the paper in snnTorch's words; the LIF has the fixed threshold alone, as ``snntorch.RLeaky`` does. As
in snnTorch, a reset to zero also drops the input of its step.

In a wrapped layer of snnTorch the spike is a function of the membrane, spk = H(mem - threshold), and so is no state of
its own: inside a step it is computed anew, with its surrogate. Only with ``reset_delay=False`` the membrane has been
reset since, and the spike stays in the state.

Source: arXiv:2308.12075, eq. 49; the surface is that of snntorch 1.0.
"""

from typing import Any, ClassVar, Literal

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
from neurolsc.neurons.blocks import Spike, spike_function
from neurolsc.neurons.cell import AtOnce, Membrane, ResetSwitch, ScaledParameter, State, Thresholds
from neurolsc.neurons.derivatives import Derivatives
from neurolsc.neurons.neuronwise import NeuronwiseDerivatives
from neurolsc.neurons.parameters import parametrized_by
from neurolsc.neurons.spiking import Reset
from neurolsc.surrogate import Arctan
from neurolsc.validation import positive, whole

try:
    import snntorch as snn
except ImportError as error:
    raise ImportError("neurolsc.interop.snntorch needs snnTorch: pip install 'snntorch>=1.0' nir nirtorch.") from error

__all__ = ["LIF", "ALIFPlus", "ALIFPlusMinus", "reset"]

SHORTEST = 1e-3  # steps: the decay of a shorter time constant is zero in any dtype


class LIF(snn.RLeaky):
    """Recurrent LIF for snnTorch: ``snntorch.RLeaky`` with an input of any dtype.

    Args:
        beta: decay of the voltage per step, clamped to [0, 1]; a number or (linear_features,).
        linear_features: number of neurons.
        threshold: the threshold, positive; a number or (linear_features,).
        spike_grad: surrogate, ours or snnTorch's; None means ``snntorch.surrogate.atan(2.0)``.
        init_hidden: store the states between calls and return the spikes alone.
        learn_beta: train beta; likewise learn_threshold and learn_graded_spikes_factor.
        learn_recurrent: train ``recurrent.weight`` (linear_features, linear_features); entry [i, j] leads from j to i.
        reset_mechanism: ``"subtract"``, ``"zero"`` or ``"none"``; it may be set later.
        output: with init_hidden, return the states too.
        graded_spikes_factor: factor of the spikes that the layer returns, not zero.
        reset_gradient: let a gradient through the reset. False detaches the whole term threshold · spk (snnTorch
            detaches spk alone); spikes are equal either way.

    Raises:
        TypeError: at a call, if not all states are passed, or any with ``init_hidden=True``.
        ValueError: if a number is out of range; at a call, if a state has another shape than the input.

    Example:
        >>> layer = LIF(beta=0.9, linear_features=3)
        >>> spk, mem = layer(torch.ones(2, 3))
        >>> spk, mem = layer(torch.ones(2, 3), spk, mem)
        >>> spk.sum().item()
        6.0
    """

    # snntorch.utils.reset knows nine classes, RLeaky among them: hence the base class. RLeaky's constructor is left
    # out: snntorch.export_nir takes the layer that it makes for a plain LIF.

    states: ClassVar[tuple[str, ...]] = ("spk", "mem")  # in the order in which they are returned
    beta: Tensor
    threshold: Tensor
    graded_spikes_factor: Tensor
    spike_grad: Spike

    def __init__(
        self,
        beta: float | Tensor = 0.9,
        linear_features: int | None = None,
        threshold: float | Tensor = 1.0,
        spike_grad: Spike | None = None,
        init_hidden: bool = False,
        learn_beta: bool = False,
        learn_threshold: bool = False,
        learn_recurrent: bool = True,
        reset_mechanism: Literal["subtract", "zero", "none"] = "subtract",
        output: bool = False,
        graded_spikes_factor: float | Tensor = 1.0,
        learn_graded_spikes_factor: bool = False,
        *,
        reset_gradient: bool = False,
    ) -> None:
        if linear_features is None:
            raise TypeError(f"{type(self).__name__} needs linear_features, its number of neurons.")
        n = whole("linear_features", linear_features)
        if spike_grad is None:
            spike = Arctan(dampening=1.0, sharpness=2.0)
        else:
            spike = spike_function("spike_grad", spike_grad)
        snn.LIF.__init__(
            self,
            beta=_numbers(beta),
            threshold=positive("threshold", _numbers(threshold)),  # type: ignore[arg-type]
            spike_grad=spike,
            init_hidden=init_hidden,
            learn_beta=learn_beta,
            learn_threshold=learn_threshold,
            reset_mechanism=reset_mechanism,
            output=output,
            graded_spikes_factor=_numbers(graded_spikes_factor),  # type: ignore[arg-type]
            learn_graded_spikes_factor=learn_graded_spikes_factor,
        )
        self.linear_features = n
        self.reset_gradient = reset_gradient
        self.recurrent = nn.Linear(n, n, bias=False)
        del self.recurrent.weight
        _register(self.recurrent, "weight", nn.init.xavier_uniform_(torch.empty(n, n)), learn_recurrent)
        for name in self.states:
            self.register_buffer(name, torch.zeros(0), persistent=False)  # empty at rest
        self._last_shape = torch.Size([0])  # of an input

    def rest(self, like: Tensor) -> tuple[Tensor, ...]:
        """Return the states at rest for an input, each of its shape, in the order in which forward returns them.

        Gradients reach the parameters on which the states depend.
        """
        return torch.zeros_like(like), torch.zeros_like(like)

    def step(self, input_: Tensor, spk: Tensor, mem: Tensor) -> tuple[Tensor, ...]:
        """Return the states after one step, in the order in which forward returns them.

        Args:
            input_: the current (..., linear_features).
            spk: the spikes of the step before; likewise the other states, each of the shape of the current.
            mem: the membrane after the step before, which is reset in this step.
        """
        mem = self._next_mem(input_, spk, mem, self.threshold)
        return self.emit(mem - self.threshold), mem

    def _next_mem(self, input_: Tensor, spk: Tensor, mem: Tensor, thr: Tensor) -> Tensor:
        """Return the membrane after leak, input, recurrence and the reset by the spikes of the step before.

        Args:
            input_: the current.
            spk: the spikes of the step before.
            mem: the membrane after the step before.
            thr: the threshold that these spikes crossed.
        """
        mem = self.beta.clamp(0, 1) * mem + input_ + self.recurrent(spk)
        if self._reset_mechanism == "none":
            return mem
        reset = Reset(self._reset_mechanism, self.reset_gradient)  # type: ignore[arg-type]
        # The reset comes after the input, as in snnTorch's RLeaky. It reads spikes of 0 or 1, without their factor.
        return reset.carry(mem, spk / self.graded_spikes_factor, thr)

    def emit(self, distance: Tensor) -> Tensor:
        """Return the spikes for distances mem - threshold, in their dtype (snnTorch's surrogates return float32)."""
        return self.spike_grad(distance).to(distance.dtype) * self.graded_spikes_factor

    def forward(  # type: ignore[override]
        self, input_: Tensor, *passed: Tensor | None, **named: Tensor | None
    ) -> Tensor | tuple[Tensor, ...]:
        """Take one step.

        Args:
            input_: the current (..., linear_features).
            *passed: the states from which the step starts, in the order in which they are returned. By default these
                are the states after the last call; as in snnTorch, an input of another shape starts from rest.
            **named: the same states by their names.

        Returns:
            Spikes and the other states, each of the shape of the current; with ``init_hidden=True`` the spikes alone,
            unless ``output=True``.
        """
        if len(passed) not in (0, len(self.states)) or not named.keys() <= set(self.states):
            raise TypeError(
                f"the states of {type(self).__name__} are passed as layer(input_, {', '.join(self.states)})."
            )
        states = dict(zip(self.states, passed, strict=False)) | named
        if self.init_hidden and any(state is not None for state in states.values()):
            raise TypeError(f"with init_hidden=True, {type(self).__name__} stores its states and takes one argument.")
        self._last_shape = input_.shape
        start = {name: getattr(self, name) for name in self.states}
        if any(state.shape != input_.shape for state in start.values()):
            start = dict(zip(self.states, self.rest(input_), strict=True))
        for name, state in states.items():
            if state is None or not state.numel():  # an empty one is at rest, as snnTorch initialises states
                continue
            if getattr(state, "at_rest", False) and state.shape != input_.shape:  # reset_mem's: at rest in any shape
                continue
            if state.shape != input_.shape:
                raise ValueError(f"{name} must have the input's shape {tuple(input_.shape)}, got {tuple(state.shape)}.")
            start[name] = state
        after = self.step(input_, **start)
        for name, state in zip(self.states, after, strict=True):
            setattr(self, name, state)
        if self.init_hidden and not self.output:
            return after[0]
        return after

    def reset_mem(self) -> tuple[Tensor, ...]:  # type: ignore[override]
        """Put all states to rest and return them in output order.

        They have the shape of the last input, and are empty if there has been none. The layer itself stores no state:
        where it rests depends on its thresholds, which may change before the next call.
        """
        for name in self.states:
            setattr(self, name, getattr(self, name).detach().new_zeros(0))
        stored = tuple(getattr(self, name) for name in self.states)
        if not self._last_shape.numel():  # no call yet
            return stored
        states = self.rest(stored[0].new_zeros(self._last_shape))
        for state in states:
            state.at_rest = True  # type: ignore[attr-defined]  # forward takes such a state at an input of any shape
        return states

    def init_rleaky(self) -> tuple[Tensor, Tensor]:
        """Put all states to rest, as ``snntorch.utils.reset`` does by this call, and return two empty tensors."""
        self.reset_mem()
        return self.spk, self.mem

    @classmethod
    def detach_hidden(cls) -> None:
        """Detach all states of all instances, for truncated backpropagation through time."""
        for layer in snn.SpikingNeuron.instances:
            if isinstance(layer, cls):
                for name in layer.states:
                    setattr(layer, name, getattr(layer, name).detach())

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        # The number of the reset is a buffer, and has been loaded; the name of the reset follows from it.
        self._reset_mechanism = list(self.reset_dict)[int(self.reset_mechanism_val)]

    def extra_repr(self) -> str:
        return f"{self.linear_features}, reset_mechanism={self._reset_mechanism!r}, init_hidden={self.init_hidden}"


class _ALIF(LIF):
    """The adaptive neurons: their threshold is a third state, through which a gradient passes.

    Args:
        *args: those of :class:`LIF`.
        tau_theta: as in :class:`ALIFPlus`.
        adaptation: as in :class:`ALIFPlus`; None: drawn by our cell.
        learn_tau_theta: as in :class:`ALIFPlus`.
        learn_adaptation: as in :class:`ALIFPlus`.
        **settings: those of :class:`LIF`.
    """

    states: ClassVar[tuple[str, ...]] = ("spk", "thr", "mem")
    cell: ClassVar[type[neurons.ALIF]]  # ours, whose adaptation is drawn
    tau_theta: Tensor
    adaptation: Tensor

    def __init__(
        self,
        *args: Any,
        tau_theta: float | Tensor = 100.0,
        adaptation: float | Tensor | None = None,
        learn_tau_theta: bool = True,
        learn_adaptation: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        n = self.linear_features
        tau_theta = positive("tau_theta", _numbers(tau_theta))
        if adaptation is None:
            adaptation = self.cell.draw_adaptation(1.8, n, n)  # 1.8: the paper's Table S1
        _register(self, "tau_theta", tau_theta.expand(n).clone(), learn_tau_theta)
        _register(self, "adaptation", _numbers(adaptation).expand(n).clone(), learn_adaptation)

    def rest(self, like: Tensor) -> tuple[Tensor, ...]:
        spk, mem = super().rest(like)
        return spk, self.threshold.to(like).expand_as(like).clone(), mem

    def step(self, input_: Tensor, spk: Tensor, thr: Tensor, mem: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        """Return spikes, threshold and membrane after one step, from the current and those of the step before."""
        mem = self._next_mem(input_, spk, mem, thr)
        rate = 1 / self.tau_theta.clamp(min=SHORTEST)
        thr = torch.exp(-rate) * thr + -torch.expm1(-rate) * self.threshold
        thr = thr + self.adaptation * (spk / self.graded_spikes_factor)  # without their factor spikes are 0 or 1
        return self.emit(mem - thr), thr, mem


class ALIFPlus(_ALIF):
    r"""ALIF+ for snnTorch: a spike raises its neuron's threshold, which carries a gradient.

    Args:
        *args: those of :class:`LIF`, of which ``threshold`` is the resting threshold.
        tau_theta: time constant of the threshold in steps, positive; a number or (linear_features,).
        adaptation: rise of the threshold at a spike; a number or (linear_features,). By default drawn from a truncated
            Gaussian of mean 1.8, always positive.
        learn_tau_theta: train tau_theta.
        learn_adaptation: train the adaptation.
        **settings: those of :class:`LIF`.

    Example:
        >>> layer = ALIFPlus(beta=0.9, linear_features=3, init_hidden=True)
        >>> net = nn.Sequential(nn.Linear(5, 3), layer)
        >>> net(torch.ones(2, 5)).shape
        torch.Size([2, 3])

    Source: arXiv:2308.12075, eq. 49 and App. H.
    """

    cell = neurons.ALIFPlus


class ALIFPlusMinus(_ALIF):
    r"""ALIF± for snnTorch: a spike may raise or lower the neuron's own threshold.

    Arguments and errors are those of :class:`ALIFPlus`, but the adaptation may be negative and is by default drawn from
    a Gaussian of mean 0 and deviation 1.8 / linear_features.

    Source: arXiv:2308.12075, eq. 49 and App. H.
    """

    cell = neurons.ALIFPlusMinus


def reset(net: nn.Module) -> None:
    """Put all states of a network's spiking layers, ours and snnTorch's, to rest, nested ones too.

    ``snntorch.utils.reset`` looks at the direct children of the network alone, and then resets every layer of their
    classes in the process.
    """
    for module in net.modules():
        if isinstance(module, snn.SpikingNeuron) and hasattr(module, "reset_mem"):
            module.reset_mem()  # type: ignore[operator]


def _numbers(value: float | Tensor) -> Tensor:
    """Return a copy of a number or tensor as a tensor of torch's default dtype, without its gradient."""
    return torch.as_tensor(value).detach().to(torch.get_default_dtype(), copy=True)


def _register(module: nn.Module, name: str, value: Tensor, learn: bool) -> None:
    """Register a value as a parameter if it is learnt, else as a buffer, as snnTorch does."""
    if learn:
        module.register_parameter(name, nn.Parameter(value))
    else:
        module.register_buffer(name, value)


def without_derivative(distance: Tensor) -> Tensor:
    """Return the spikes (0 or 1) for distances mem - threshold, without a surrogate: no gradient passes."""
    return (distance > 0).to(distance.dtype)


# The layers that are wrapped, and their state variables without the spikes.
VARIABLES = {
    **{"Leaky": ("mem",), "RLeaky": ("mem",), "Synaptic": ("syn", "mem"), "RSynaptic": ("syn", "mem")},
    **{"Alpha": ("syn_exc", "syn_inh", "mem"), "SLSTM": ("syn", "mem")},
}


def ignores_reset_delay(layer: Any) -> bool:
    """True for an RSynaptic of snnTorch 1.0 with ``reset_delay=False``.

    There the reset within the step acts on the arguments of ``forward``, not on the states of the layer: without
    arguments (``init_hidden=True``) it is an error, with them it has no effect. A later snnTorch may have mended that:
    so the layer takes a step in which all neurons fire, with and without the delay, and the membranes are compared.
    """
    if type(layer).__name__ != "RSynaptic" or layer.reset_delay:
        return False
    recurrent = layer.recurrent
    if hasattr(recurrent, "in_channels"):  # a convolution
        shape = (1, recurrent.in_channels, 1, 1)
    elif hasattr(recurrent, "in_features"):
        shape = (1, recurrent.in_features)
    else:  # one weight for each neuron
        shape = (1, layer.V.numel())
    x = layer.threshold.new_zeros(shape) + 10 * (1 + layer.threshold.max())  # far above the threshold: all fire
    membranes = []
    with torch.no_grad():
        for delay in (True, False):
            with borrowed(layer, init_hidden=False, output=False, reset_delay=delay):
                _, _, mem = layer.forward(x, *(torch.zeros_like(x) for _ in range(3)))
                membranes.append(mem)
    return torch.equal(*membranes)


def refuse_broken(layer: Any) -> None:
    """Refuse a layer that snnTorch itself cannot step.

    Raises:
        TypeError: if it is an RSynaptic of snnTorch 1.0 with ``init_hidden=True`` and ``reset_delay=False``.
    """
    if ignores_reset_delay(layer) and layer.init_hidden:
        raise UnsupportedLayerError(
            f"snnTorch's {type(layer).__name__} with reset_delay=False and init_hidden=True cannot be stepped, not even by "
            "snnTorch 1.0: its reset reads the spikes that were passed. Set reset_delay=True."
        )


class SnnTorchCell(WrappedCell):
    """A layer of snnTorch, or one of this file, as a cell.

    A layer whose membrane is read sends its mem, resets as ever, and is an integrator
    (:attr:`neurolsc.Cell.integrator`). In layers of this file a change of ``tau_theta`` leaves the resting threshold.

    Args:
        layer: the layer.
        before: as in :class:`~neurolsc.interop.wrapped.WrappedCell`.
        input_shape: as there.
        last: True if nothing follows the layer: then the cell is an integrator, if the layer is a Leaky or Synaptic
            without a reset that returns its membrane.

    Attributes:
        ours: True for a layer of this file.
        resets_late: True if snnTorch resets the layer a step later than its settings say.
        spike_is_state: True if the state holds the spike, since mem is reset in the step of the spike.
        state: the NamedTuple of the state variables, each (B, ...).

    Raises:
        TypeError: if it cannot be wrapped.
    """

    def __init__(self, layer: Any, before: list[nn.Module], input_shape: tuple[int, ...], *, last: bool) -> None:
        kind = type(layer)
        name = type(layer).__name__
        self.ours = kind in (LIF, ALIFPlus, ALIFPlusMinus)
        if not self.ours and (kind.__module__.partition(".")[0] != "snntorch" or name not in VARIABLES):
            raise UnsupportedLayerError(
                f"snnTorch's {name} cannot be wrapped: only {', '.join(VARIABLES)} themselves are. A subclass may step "
                f"otherwise, and a layer that computes a whole sequence at once has no state per step. {OWN_NEURON}"
            )
        if getattr(layer, "inhibition", False):
            raise UnsupportedLayerError(
                f"snnTorch's {name} with inhibition cannot be wrapped: its neurons are no longer independent."
            )
        if name == "SLSTM" and layer.hidden_size != layer.input_size:
            warn_of(
                "SLSTM: the derivative of the next state by the state is identically zero where hidden_size is not "
                "input_size: snnTorch starts each step from zero, and no pre-training can move that."
            )
        if getattr(layer.spike_grad, "__qualname__", "").startswith("triangular."):
            warn_of(
                f"{name}: the derivative of snnTorch's triangular surrogate is +1 below the threshold, -1 above it."
            )
        unreset = layer.reset_mechanism == "none"
        self.integrator = last and unreset and name in ("Leaky", "Synaptic") and (layer.output or not layer.init_hidden)
        self.resets_late = ignores_reset_delay(layer)
        if self.resets_late:
            warn_of(
                f"{name}: snnTorch's step ignores reset_delay=False where its states are passed; it resets in the next step, "
                "and so does the wrapped layer."
            )
        self.spike_is_state = not getattr(layer, "reset_delay", True) and not self.resets_late
        if self.ours:
            names = layer.states[1:]  # without the spikes
        else:
            names = VARIABLES[name]
        self.state = state_class(*names, *(["spk"] if self.spike_is_state else []))
        # snnTorch detaches the spikes by which it resets in the next step; a reset within the step carries gradient.
        if self.ours:
            self.reset_gradient = layer.reset_gradient
        else:
            self.reset_gradient = self.spike_is_state
        if unreset:
            self.reset_gradient = None
        if name == "SLSTM":
            weights = ["lstm_cell.weight_hh"]
            scaled = [ScaledParameter("layer.lstm_cell.weight_ih", "depth")]
        else:
            recurrent = getattr(layer, "recurrent", nn.Identity())  # an Identity has neither a weight nor a V
            learnt = (n for n in ("weight", "V") if n in recurrent._parameters or parametrized_by(recurrent, n))
            weights = [f"recurrent.{n}" for n in learnt]
            scaled = weight_before(before)
        decays = [name for name in ("alpha", "beta") if hasattr(layer, name)]
        scaled += [ScaledParameter(f"layer.{name}", "time", through="decay_factor") for name in decays]
        scaled += [ScaledParameter(f"layer.{name}", "time") for name in weights]
        if "thr" in names:
            scaled.append(ScaledParameter("layer.adaptation", "time"))
            scaled.append(ScaledParameter("layer.tau_theta", "time", through="decay"))
        if hasattr(getattr(layer, "recurrent", None), "V"):  # all_to_all=False
            self.recurrent_vectors = ("layer.recurrent.V",)
        super().__init__(layer, before, input_shape, scaled)

    def closed_form(self) -> Derivatives | None:
        """Return the derivatives neuron by neuron; None if a neuron reads others, or its state is quantised."""
        kind = type(self.layer).__name__
        recurrent = kind in ("RLeaky", "RSynaptic")
        if self.ours or self.layer.state_quant or kind == "SLSTM" or (recurrent and self.layer.all_to_all):
            return None
        return NeuronwiseDerivatives(self, one_to_one=recurrent)

    def thresholds(self) -> Thresholds | None:
        """Return a handle on thresholds and an ALIF's adaptation; None for an integrator, or if a threshold is <= 0."""
        if self.integrator or not (self.layer.threshold > 0).all():
            return None
        if "thr" in self.state._fields:
            names = ("threshold", "adaptation")
        else:
            names = ("threshold",)
        return Thresholds(self.layer, names)

    def membrane(self) -> Membrane | None:
        """Return a handle on the variable mem, which the next step resets; None for an integrator."""
        if self.integrator:
            return None
        return Membrane("mem", self._threshold_in, self._spike)

    def reset_switch(self) -> ResetSwitch | None:
        """Return the switch that detaches the reset; None if no gradient passes it.

        In a layer of snnTorch a gradient passes only where the reset acts within the step of its spike.
        """
        if not self.reset_gradient:
            return None
        if self.ours:
            return ResetSwitch(self.layer, "reset_gradient", False, "detach the reset (reset_gradient=False)")
        return ResetSwitch(self.layer, "spike_grad", without_derivative)

    def _threshold_in(self, state: State) -> Tensor:
        """Return the threshold in a state; of neurons without adaptation it is a parameter."""
        if "thr" in state._fields:
            return state.thr
        return self.layer.threshold

    def _spike(self, distance: Tensor) -> Tensor:
        """Return the spikes for distances mem - threshold, in their dtype (snnTorch's surrogates return float32)."""
        return self.layer.spike_grad(distance).to(distance.dtype) * self.layer.graded_spikes_factor

    def start(self, current: Tensor) -> State:
        """Return the state at rest for a current: all zero, but the threshold of our ALIF at its resting value."""
        if self.ours:
            return self.state(*self.layer.rest(current)[1:])  # without the spikes
        if hasattr(self.layer, "hidden_size"):  # SLSTM, whose state is not as wide as its input
            shape = (len(current), self.layer.hidden_size)
        else:
            shape = current.shape
        return self.state(*(current.new_zeros(shape) for _ in self.state._fields))

    def advance(self, current: Tensor, z: Tensor, state: State) -> State:
        """Return the state after a step of the layer's own forward. The layer holds the cell's state for this one step.

        Args:
            current: the layer's input (B, ...).
            z: what the cell sent in the step before (B, ...).
            state: the state after that step.
        """
        lent = state._asdict()
        if "spk" in self.layer._buffers:  # recurrent layers read their last spikes
            if self.integrator:
                lent["spk"] = self.spikes(state)  # z is the membrane of an integrator
            else:
                lent["spk"] = z
        spike = self.layer.spike_grad
        if not isinstance(spike, nn.Module):  # snnTorch's surrogates return float32
            lent["spike_grad"] = lambda v: spike(v).to(v.dtype)
        if self.resets_late:
            lent["reset_delay"] = True  # as snnTorch does with passed states; with stored ones False raises an error
        # With init_hidden the layer reads its states from its attributes, stores the next there, and returns spikes.
        with borrowed(self.layer, **lent, init_hidden=True, output=False):
            spk = self.layer.forward(current)  # not a call of the layer: hooks of its user must not see this step
            # Not every layer stores its spikes.
            after = [spk if name == "spk" else getattr(self.layer, name) for name in self.state._fields]
        return self.state(*after)

    def emitted(self, state: State) -> Tensor:
        if self.integrator:
            return state.mem
        return self.spikes(state)

    def run_at_once(self, x: Tensor, state: State, lengths: Tensor | None, late: Tensor | None) -> AtOnce:
        """Run all steps by a kernel, as :meth:`neurolsc.Cell.run` does; None if the layer needs plain steps."""
        kernel = prepared(self, x, state, late)
        if kernel is None:
            return None
        start = list(state)
        if self.spike_is_state:
            start.pop()  # the spikes, the last variable; they are no state of the kernel
        if "spk" in self.layer._buffers:  # kernels of recurrent layers take the last spikes first
            start.insert(0, self.spikes(state))
        z, after, ends = kernel.layer.run(kernel.currents, kernel.steps, start, kernel.layer.settings())
        if self.spike_is_state:
            after = (*after, z)
            ends = (*ends, z[-1])
        last = [last_states(*each, lengths) for each in zip(after, state, ends, strict=True)]
        sent = z
        if self.integrator:
            sent = after[self.state._fields.index("mem")]
        return sent.flatten(2), self.state(*last)

    def spikes(self, state: State) -> Tensor:
        """Return the spikes of a state, (B, ...)."""
        if self.spike_is_state:
            return state.spk
        return self._spike(state.mem - self._threshold_in(state))
