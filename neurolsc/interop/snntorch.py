r"""LIF, ALIF+ and ALIF± as neurons of snnTorch.

They take a current of their own width (the input weights are the ``nn.Linear`` before them) and return ``spk, mem`` or
``spk, thr, mem``. With the decay ``beta``, the resting threshold ``threshold`` and a hidden ``recurrent.weight``,

.. math::
    U[t] &= \beta\, U[t-1] + I[t] + V S[t-1] - \vartheta[t-1] S[t-1] \\
    \vartheta[t] &= e^{-1/\tau_\vartheta} \vartheta[t-1]
                    + (1 - e^{-1/\tau_\vartheta})\,\text{threshold}
                    + \text{adaptation} \cdot S[t-1] \\
    S[t] &= H(U[t] - \vartheta[t])

which is eq. 49 of the paper in snnTorch's words; the LIF has the fixed threshold alone, as ``snntorch.RLeaky`` does. As
in snnTorch, a reset to zero also drops the input of its step.

Source: arXiv:2308.12075, eq. 49; the surface is that of snntorch 1.0.
"""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from neurolsc import neurons
from neurolsc.neurons.spiking import Reset, Spike, spike_function
from neurolsc.surrogate import Arctan
from neurolsc.validation import positive, whole

try:
    import snntorch as snn
except ImportError as error:
    raise ImportError("neurolsc.interop.snntorch needs snnTorch: pip install 'snntorch>=1.0' nir nirtorch.") from error

__all__ = ["LIF", "ALIFPlus", "ALIFPlusMinus", "reset"]

SHORTEST = 1e-3  # steps: the decay of a shorter time constant is zero in any dtype


class LIF(snn.RLeaky):
    r"""Recurrent LIF for snnTorch: ``snntorch.RLeaky`` with an input of any dtype.

    Args:
        beta: decay of the voltage per step, clamped to [0, 1]; a number or (linear_features,).
        linear_features: number of neurons.
        threshold: the threshold, positive; a number or (linear_features,).
        spike_grad: surrogate, ours or snnTorch's; None means ``snntorch.surrogate.atan(2.0)``.
        init_hidden: store the states between calls and return the spikes alone.
        learn_beta: train beta.
        learn_threshold: train the threshold.
        learn_recurrent: train ``recurrent.weight`` (linear_features, linear_features); entry [i, j] leads from j to i.
        reset_mechanism: ``"subtract"``, ``"zero"`` or ``"none"``; it may be set later.
        output: with init_hidden, return the states too.
        graded_spikes_factor: factor of a spike where it leaves, not zero.
        learn_graded_spikes_factor: train that factor.
        reset_gradient: let a gradient through the reset. False detaches the whole term threshold · spk (snnTorch
            detaches the spike in it alone); spikes are equal either way.

    Raises:
        TypeError: if linear_features is missing, or states are given with ``init_hidden=True``.
        ValueError: if the threshold is not positive or a name is unknown; at a call, if a state has another shape than
            the input.

    Example:
        >>> layer = LIF(beta=0.9, linear_features=3)
        >>> spk, mem = layer(torch.ones(2, 3))
        >>> spk, mem = layer(torch.ones(2, 3), spk, mem)
        >>> spk.sum().item()
        6.0
    """

    # snntorch.utils.reset knows nine classes, RLeaky among them: hence the base class. Its constructor is left out: it
    # makes a layer that snntorch.export_nir takes for a plain LIF.

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
        spike = Arctan(dampening=1.0, sharpness=2.0) if spike_grad is None else spike_function("spike_grad", spike_grad)
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
        weight = nn.init.xavier_uniform_(torch.empty(n, n))
        del self.recurrent.weight
        _register(self.recurrent, "weight", weight, learn_recurrent)
        for name in self.states:
            self.register_buffer(name, torch.zeros(0), persistent=False)
        self._at_rest = True  # the buffers hold what a run will start from, not yet of the input's shape

    def rest(self, like: Tensor) -> tuple[Tensor, ...]:
        """The initial states, like an input and with the parameters' gradients."""
        return torch.zeros_like(like), torch.zeros_like(like)

    def step(self, input_: Tensor, spk: Tensor, mem: Tensor) -> tuple[Tensor, ...]:
        """The states after a step from other states."""
        mem = self._next_mem(input_, spk, mem, self.threshold)
        return self.emit(mem - self.threshold), mem

    def _next_mem(self, input_: Tensor, spk: Tensor, mem: Tensor, thr: Tensor) -> Tensor:
        mem = self.beta.clamp(0, 1) * mem + input_ + self.recurrent(spk)
        if self._reset_mechanism == "none":
            return mem
        reset = Reset(self._reset_mechanism, self.reset_gradient)  # type: ignore[arg-type]
        return reset.carry(mem, spk / self.graded_spikes_factor, thr)  # as in snnTorch, on all of it

    def emit(self, distance: Tensor) -> Tensor:
        """The spikes at a distance mem - threshold, of its dtype (snnTorch's surrogates return float32)."""
        return self.spike_grad(distance).to(distance.dtype) * self.graded_spikes_factor

    def _call(self, input_: Tensor, *given: Tensor | None) -> Tensor | tuple[Tensor, ...]:
        """A step from the states passed, else those of the last call, else those at rest.

        As in snnTorch, an input of another shape than that of the last call starts from rest.
        """
        if self.init_hidden and any(state is not None for state in given):
            raise TypeError(f"with init_hidden=True, {type(self).__name__} keeps its states and takes one argument.")
        stored = [getattr(self, name) for name in self.states]
        fresh = self._at_rest or any(state.shape != input_.shape for state in stored)
        start = list(self.rest(input_) if fresh else stored)
        for place, (name, state) in enumerate(zip(self.states, given, strict=True)):
            # what reset_mem returned may come back as an argument: it stands for any shape
            if state is None or (self._at_rest and state is stored[place]):
                continue
            if state.shape != input_.shape:
                raise ValueError(f"{name} must have the input's shape {tuple(input_.shape)}, got {tuple(state.shape)}.")
            start[place] = state
        after = self.step(input_, *start)
        for name, state in zip(self.states, after, strict=True):
            setattr(self, name, state)
        self._at_rest = False
        return after[0] if self.init_hidden and not self.output else after

    def forward(
        self, input_: Tensor, spk: Tensor | None = None, mem: Tensor | None = None
    ) -> Tensor | tuple[Tensor, ...]:
        """One step of a current (..., linear_features); states default to the last ones."""
        return self._call(input_, spk, mem)

    def reset_mem(self) -> tuple[Tensor, ...]:  # type: ignore[override]
        """Put all states to rest and return them, detached, in output order."""
        if self.spk.numel():
            with torch.no_grad():
                for name, state in zip(self.states, self.rest(self.spk), strict=True):
                    setattr(self, name, state)
        self._at_rest = True
        return tuple(getattr(self, name) for name in self.states)

    def init_rleaky(self) -> tuple[Tensor, Tensor]:
        """Reset all states, as ``snntorch.utils.reset`` does by this call, and return two."""
        spk, *_, mem = self.reset_mem()
        return spk, mem

    @classmethod
    def detach_hidden(cls) -> None:
        """Detach all states of all instances, for truncated backpropagation through time."""
        for layer in snn.SpikingNeuron.instances:
            if isinstance(layer, cls):
                for name in layer.states:
                    setattr(layer, name, getattr(layer, name).detach())

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._reset_mechanism = list(self.reset_dict)[int(self.reset_mechanism_val)]

    def extra_repr(self) -> str:
        return f"{self.linear_features}, reset_mechanism={self._reset_mechanism!r}, init_hidden={self.init_hidden}"


class _ALIF(LIF):
    """The adaptive neurons: a third state, the threshold, with a gradient through it."""

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
        start = self.cell.draw_adaptation(1.8, n, n) if adaptation is None else adaptation  # Table S1
        _register(self, "tau_theta", tau_theta.expand(n).clone(), learn_tau_theta)
        _register(self, "adaptation", _numbers(start).expand(n).clone(), learn_adaptation)

    def rest(self, like: Tensor) -> tuple[Tensor, ...]:
        spk, mem = super().rest(like)
        return spk, self.threshold.to(like).expand_as(like).clone(), mem

    def step(self, input_: Tensor, spk: Tensor, thr: Tensor, mem: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        mem = self._next_mem(input_, spk, mem, thr)
        rate = 1 / self.tau_theta.clamp(min=SHORTEST)
        thr = torch.exp(-rate) * thr + -torch.expm1(-rate) * self.threshold
        thr = thr + self.adaptation * (spk / self.graded_spikes_factor)
        return self.emit(mem - thr), thr, mem

    def forward(  # type: ignore[override]
        self, input_: Tensor, spk: Tensor | None = None, thr: Tensor | None = None, mem: Tensor | None = None
    ) -> Tensor | tuple[Tensor, ...]:
        """One step of a current (..., linear_features); states default to the last ones.

        Raises:
            TypeError: for spk without mem, as Leaky and RLeaky are called.
        """
        if spk is not None and mem is None:
            raise TypeError(f"{type(self).__name__} has three states: spk, thr, mem = layer(input_, spk, thr, mem).")
        return self._call(input_, spk, thr, mem)


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

    Raises:
        TypeError: as a :class:`LIF`, and at a call with spk and without mem.
        ValueError: as a :class:`LIF`, and if tau_theta is not positive.

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
    """Put the states of a network's spiking layers, ours and snnTorch's, to rest, nested ones too.

    ``snntorch.utils.reset`` resets the direct children of the network, and then every layer of their classes in the
    process; this one leaves other networks alone, and resets all states of a layer (``RSynaptic.spk`` too).
    """
    for module in net.modules():
        if isinstance(module, snn.SpikingNeuron) and hasattr(module, "reset_mem"):
            module.reset_mem()  # type: ignore[operator]


def _numbers(value: float | Tensor) -> Tensor:
    """A copy in torch's default dtype."""
    return torch.as_tensor(value).detach().to(torch.get_default_dtype(), copy=True)


def _register(module: nn.Module, name: str, value: Tensor, learn: bool) -> None:
    """Register a learnt value as a parameter, another as a buffer, as snnTorch does."""
    if learn:
        module.register_parameter(name, nn.Parameter(value))
    else:
        module.register_buffer(name, value)
