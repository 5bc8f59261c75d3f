r"""Loihi's integer neurons CUBA and ATRLIF, step by step.

A state counts 64 units per weight unit; the input of a step is the sum of the weights of the last step's spikes. With

.. math::
    \mathrm{dec}(x, k) = \mathrm{sign}(x) \lfloor |x| (4096 - k) / 4096 \rfloor

CUBA, which has a current and a voltage that a spike resets to zero, computes

.. math::
    u = \mathrm{wrap}(\mathrm{dec}(u, k_u) + 64\,\mathit{in}), \quad
    v = \mathrm{clip}(\mathrm{dec}(v, k_v) + u + 64\,b), \quad
    z = [v > 64\,\vartheta], \quad v = 0 \text{ where } z

and ATRLIF (in files ALIF), whose threshold rises at a spike and whose reset is a synapse of each neuron to itself,

.. math::
    v = \mathrm{clip}(\mathrm{dec}(v, k_v) + 64\,\mathit{in} + b\,2^{e}), \quad
    \vartheta = \mathrm{dec}(\vartheta - \vartheta_0, k_\vartheta) + \vartheta_0, \quad
    z = [v \ge \vartheta], \quad \vartheta \mathrel{+}= 64\,\beta z.

Here k are decays, b is the bias, with e its exponent, and beta the rise of the threshold. The integers are held in
float64, where all that occur are exact (below 2^53). Gradients pass roundings unchanged, so that fine-tuning runs the
same equations.

Source: Lava 0.10.0, ``proc/lif/models.py`` and ``proc/atrlif/models.py`` (models tagged ``fixed_pt``).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

UNIT = 64  # state units per weight unit
LIMIT = 2**23  # a state stays below this in modulus
INPUT_LIMIT = 2**21  # 64 times the input of a step stays below this: the chip checks it, Lava does not
FULL_DECAY = 4096  # a decay k takes k / 4096 of a state in a step
NEVER = 2**17 - 1  # the largest threshold, in weight units

Spike = Callable[[Tensor], Tensor]  # 1 where its argument is positive, else 0; a surrogate has a derivative as well


class IntegerState(NamedTuple):
    """State of a layer between two steps, in state units; each tensor is (B, M)."""

    u: Tensor  # current; always 0 for ATRLIF
    v: Tensor  # voltage; 0 after a spike of CUBA
    theta: Tensor  # threshold; constant for CUBA


class StepValues(NamedTuple):
    """Integers of a step before they wrap or are clipped, in state units but for `drive`; each is (B, M)."""

    drive: Tensor  # input, in weight units
    u: Tensor | None  # current; None for ATRLIF
    v: Tensor  # voltage
    theta: Tensor | None  # threshold before a spike raises it; None where it is fixed
    distance: Tensor  # clipped voltage minus threshold


class IntegerStep(NamedTuple):
    """One step of all layers, first layer first."""

    spikes: tuple[Tensor, ...]  # of each layer (B, M); an integrator has its voltages here
    states: tuple[IntegerState, ...]  # after the step
    values: tuple[StepValues, ...]


@dataclass(frozen=True, kw_only=True, repr=False)
class IntegerLayer(ABC):
    """A layer of M neurons with N inputs. All tensors are float64; all but `unit` hold integers."""

    kind: ClassVar[str]  # the neuron's name in files
    variables: ClassVar[tuple[str, ...]]  # names of the state variables that change
    weight: Tensor  # (M, N), mantissas: a value is its mantissa times 2 to the exponent
    weight_rec: Tensor | None  # (M, M), mantissas; None without recurrence
    bias: Tensor  # (M,), per step
    v_decay: Tensor  # (M,), 0 to 4095
    threshold: Tensor  # (M,), at rest, weight units
    unit: Tensor  # (M,), state units per unit of the float network
    weight_exp: int = 0
    weight_rec_exp: int = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.weight.shape[1]}, {self.size})"

    @property
    def size(self) -> int:
        """Number of neurons M."""
        return self.weight.shape[0]

    def initial_state(self, batch: int) -> IntegerState:
        """Return the resting state of a batch of `batch` samples."""
        zero = self.weight.new_zeros(batch, self.size)
        return IntegerState(zero, zero, (UNIT * self.threshold).expand(batch, -1))

    @abstractmethod
    def step(self, drive: Tensor, state: IntegerState, spike: Spike) -> tuple[Tensor, IntegerState, StepValues]:
        """Do one time step.

        Args:
            drive: input of the step (B, M), weight units, as of :meth:`drive`.
            state: the state before the step.
            spike: the spike function; it takes distances from the threshold in units of the float network.

        Returns:
            Spikes (B, M), or voltages of an integrator; the state after the step; the integers before they wrap or are
            clipped.
        """

    def drive(self, below: Tensor, own: Tensor) -> Tensor:
        """Return the next input (B, M), weight units, from the spikes `below` (B, N) and the layer's `own` (B, M)."""
        drive = below @ self.weight.T * 2**self.weight_exp
        if self.weight_rec is None:
            return drive
        return drive + own @ self.weight_rec.T * 2**self.weight_rec_exp


@dataclass(frozen=True, kw_only=True, repr=False)
class CubaLayer(IntegerLayer):
    """Neurons with a current, and a voltage that is reset to zero. The bias is in weight units.

    With v_decay 4095 the voltage follows the current, which then stands for the voltage of a LIF with reset by
    subtraction. An integrator, the readout of a network, never fires and sends its voltage in place of spikes.
    """

    kind = "CUBA"
    variables = ("u", "v")
    i_decay: Tensor  # (M,), 1 to 4096
    integrates: bool = False

    def step(self, drive: Tensor, state: IntegerState, spike: Spike) -> tuple[Tensor, IntegerState, StepValues]:
        raw_u = decay(state.u, self.i_decay) + UNIT * drive
        u = wrap(raw_u)
        raw_v = decay(state.v, self.v_decay) + u + UNIT * self.bias
        v = clip(raw_v)
        distance = v - UNIT * self.threshold
        z = spike(distance / self.unit)
        after = state._replace(u=u, v=v * (1 - z.detach()))  # the reset carries no gradient
        return after.v if self.integrates else z, after, StepValues(drive, raw_u, raw_v, None, distance)


@dataclass(frozen=True, kw_only=True, repr=False)
class AtrlifLayer(IntegerLayer):
    """Neurons whose threshold rises at a spike, which subtracts a constant from the voltage.

    The bias is in state units. Weights, bias and reset have an exponent each.
    """

    kind = "ALIF"
    variables = ("v", "theta")
    weight_rec: Tensor
    theta_decay: Tensor  # (M,), 1 to 4095
    theta_step: Tensor  # (M,), rise of the threshold at a spike, weight units; equal for all neurons
    reset: Tensor  # (M,), mantissas of what a spike subtracts, weight units
    bias_exp: int
    reset_exp: int

    def drive(self, below: Tensor, own: Tensor) -> Tensor:
        # the reset is a synapse of each neuron to itself, through which no gradient passes
        return super().drive(below, own) - own.detach() * self.reset * 2**self.reset_exp

    def step(self, drive: Tensor, state: IntegerState, spike: Spike) -> tuple[Tensor, IntegerState, StepValues]:
        """Return spikes of a step, the state after it, and its integers; `drive` holds the reset by the last spikes."""
        raw_v = decay(state.v, self.v_decay) + UNIT * drive + self.bias * 2**self.bias_exp  # the bias is in state units
        v = clip(raw_v)
        rest = UNIT * self.threshold
        theta = decay(state.theta - rest, self.theta_decay) + rest
        distance = v - theta
        z = spike((distance + 0.5) / self.unit)  # distances are whole: with a half added, 0 fires too
        after = state._replace(v=v, theta=theta + UNIT * self.theta_step * z)
        return z, after, StepValues(drive, u=None, v=raw_v, theta=theta, distance=distance)


def integer_steps(
    layers: Sequence[IntegerLayer], x: Tensor, spikes: Sequence[Spike] | None = None
) -> Iterator[IntegerStep]:
    """Run layers over time. Each layer reads the one below it, and the first layer the input, one step late.

    Args:
        layers: first layer first.
        x: input spikes (T, B, N), any dtype; a step at a time becomes float64.
        spikes: a spike function for each layer; by default the step function, which has no gradient.

    Yields:
        One :class:`IntegerStep` per time step.
    """
    spikes = spikes or [lambda distance: (distance > 0).to(distance.dtype)] * len(layers)
    states = [layer.initial_state(x.shape[1]) for layer in layers]
    drives = [layer.weight.new_zeros(x.shape[1], layer.size) for layer in layers]
    for frame in x.unbind(0):
        sent = []
        values = []
        below = frame.to(layers[0].weight)
        for i, layer in enumerate(layers):
            z, states[i], value = layer.step(drives[i], states[i], spikes[i])
            drives[i] = layer.drive(below, z)  # of the next step
            below = z
            sent.append(z)
            values.append(value)
        yield IntegerStep(tuple(sent), tuple(states), tuple(values))


def decay(x: Tensor, k: Tensor) -> Tensor:
    """Return x (4096 - k) / 4096, rounded towards zero; gradients pass the rounding unchanged."""
    exact = x * (FULL_DECAY - k) / FULL_DECAY
    return exact + (exact.trunc() - exact).detach()


def wrap(u: Tensor) -> Tensor:
    """Return u in 24 bits: values above 2^23 wrap around to the lowest, values of -2^23 or less to the highest.

    Values must be less than 3 times 2^23 in modulus: they wrap once.
    """
    return u - 2 * LIMIT * (u.detach() > LIMIT) + 2 * LIMIT * (u.detach() <= -LIMIT)


def clip(v: Tensor) -> Tensor:
    """Return v clipped below 2^23 in modulus."""
    return v.clamp(1 - LIMIT, LIMIT - 1)


@dataclass(frozen=True)
class Extremes:
    """The largest moduli of a layer's integers, and counts of overflows and of ties with the threshold."""

    drive: int = 0  # input of a step, in weight units (limit 32767)
    u: int = 0  # current, in state units (limit 2^23)
    v: int = 0  # voltage, in state units
    theta: int = 0  # threshold, in state units
    overflows: int = 0  # currents that wrap, voltages and thresholds that are clipped, inputs of 32768 units or more
    ties: int = 0  # voltages equal to the threshold: ALIF fires, CUBA and the float network do not

    @staticmethod
    def of(step: StepValues) -> "Extremes":
        """Return the extremes of one step, over samples and neurons."""
        peaks = {"drive": int(step.drive.abs().max())}
        overflows = int((UNIT * step.drive.abs() >= INPUT_LIMIT).sum())
        for name in ("u", "v", "theta"):
            state = getattr(step, name)
            if state is not None:
                peaks[name] = int(state.abs().max())
                overflows += int((state.abs() >= LIMIT).sum())
        return Extremes(**peaks, overflows=overflows, ties=int((step.distance == 0).sum()))

    def __or__(self, other: "Extremes") -> "Extremes":
        """Return the extremes of two steps, or runs, taken together."""
        return Extremes(
            drive=max(self.drive, other.drive),
            u=max(self.u, other.u),
            v=max(self.v, other.v),
            theta=max(self.theta, other.theta),
            overflows=self.overflows + other.overflows,
            ties=self.ties + other.ties,
        )

    @property
    def reach(self) -> float:
        """The largest share of its limit that a state or an input reaches; at 1 it overflows."""
        return max(self.u / LIMIT, self.v / LIMIT, self.theta / LIMIT, UNIT * self.drive / INPUT_LIMIT)
