r"""Neurons that can be exported, each as Loihi's integers and as NIR nodes, both ways.

**Loihi.** LIF with reset to zero has its voltage in CUBA's voltage; with reset by subtraction in
CUBA's *current*: the reset is a synapse of -1 to itself, a bias one from an extra neuron that fires
at every step. CubaLIF is CUBA, ALIF with a static reset is ATRLIF, LI is CUBA that never fires.
Rows of weights are divided by their neuron's threshold (ALIF: by its step of adaptation), which
changes nothing.

**NIR** writes differential equations in seconds. Its readers take one Euler step of dt, so that a
node with time constant tau retains a = 1 - dt / tau of its state: tau = dt / (1 - a), with a =
exp(-1 / tau_v).

- LIF is a ``CubaLIF`` with one time constant equal to dt. Reset to zero: tau_syn = dt, w_in = 1,
  tau_mem = dt / (1 - a), r = 1 / (1 - a), v_reset = 0. Reset by subtraction: tau_mem = dt, r = 1,
  tau_syn = dt / (1 - a), w_in = 1 / (1 - a), and minus the threshold on the diagonal of the
  recurrent weights. Our CubaLIF has two longer ones.
- ALIF with a static reset is a sub-graph. With A the rise of the threshold above its rest,

  .. math::
      v[t] &= a\, v[t-1] + W_{in} x[t] + b_v + (W_{rec} - \mathrm{diag}\,\vartheta_0)\, z[t-1] \\
      -A[t] &= -a_\vartheta A[t-1] - \beta z[t-1], \quad z[t] = H(v[t] - A[t] - \vartheta_0)

  are an ``LI`` each for v and -A, summed in a ``Threshold``.
- LI, the readout, is a ``CubaLI``, without a current an ``LI``.

Source: Pedersen et al., "Neuromorphic intermediate representation", Nature Communications 15, 8122
(2024), for the primitives; nir 1.0 and norse 1.1's reader for the steps.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from neurolsc.export.fixed_point import (
    LONGEST,
    NEVER,
    UNIT,
    W_MAX,
    AtrlifLayer,
    CubaLayer,
    IntegerLayer,
    IntegratorLayer,
    check_threshold,
    decay_bits,
    even,
    exponent,
    largest,
    nearest,
    time_constant,
)
from neurolsc.neurons import ALIF, LI, LIF, ALIFPlus, Cell, CubaLIF, SpikingCell
from neurolsc.neurons.cell import CELLS, NO_STEP, step_of
from neurolsc.neurons.spiking import Reset, ResetName, StaticReset, ZeroReset
from neurolsc.positive import log_name, set_value

__all__ = ["NEURONS", "ExportedNeuron", "NirLayer", "exported_neuron"]

C = TypeVar("C", bound=Cell)

COARSE = 62  # fewest weight units per threshold of a LIF; with half as many rounding decides what fires
COARSE_ALIF, PLENTY = 16, 256  # of an ALIF, whose weights have an exponent; and the most that are of use
CLOSE = 1e-6  # relative; other programs store float32
NO_MEMORY = 1e-3  # a time constant in steps of which exp(-1/tau) is 0
POSITIVE = "Train neurolsc.ALIFPositive (--cell ALIFPositive), whose are positive, in place of ALIF+ or ALIF±."


@dataclass(frozen=True)
class NirLayer:
    """A layer of a NIR graph: weights, neurons, and recurrent weights."""

    name: str  # of the neurons; after reading with the names of the graphs around them before dots
    weight: Any  # Linear or Affine
    neuron: Any  # a node; after reading the first of several, before writing the sub-graph
    recurrent: Any | None = None  # Linear or Affine
    parts: dict[str, Any] = field(default_factory=dict)  # the nodes after the first one
    about: dict[str, Any] = field(default_factory=dict)  # our metadata

    @property
    def size(self) -> tuple[int, int]:
        """Neurons and inputs."""
        shape = np.shape(self.weight.weight)
        if len(shape) != 2:
            raise ValueError(f"the weights before {self.name} have shape {shape}, wanted a matrix.")
        return shape[0], shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """The weights' dtype."""
        return torch.float64 if np.asarray(self.weight.weight).dtype == np.float64 else torch.float32


class ExportedNeuron(ABC, Generic[C]):
    """One kind of neurons in Loihi's integers and in NIR, both ways; :data:`NEURONS` lists them.

    One of your own is one entry more: ``NEURONS[MyCell] = MyNeuron()``. Its cell needs ``w_in`` and
    ``tau_v``; ``w_rec``, ``b_v``, ``tau_theta`` and ``spike`` are used where it has them. Methods
    raise ``ValueError`` at what cannot be expressed, naming the layer or node and the number.
    """

    word: ClassVar[str]  # name of its NIR node, before the number of the layer
    starts: ClassVar[tuple[str, ...]]  # types of NIR node with which such neurons begin

    @abstractmethod
    def describe(self, cell: C) -> str:
        """What it was and what it became, for the report."""

    @abstractmethod
    def threshold(self, cell: C) -> Tensor:
        """Resting thresholds (n_hidden,)."""

    @abstractmethod
    def integers(self, name: str, cell: C, *, force: bool, halvings: int) -> IntegerLayer:
        """The cell in integers.

        Args:
            name: of the layer, for errors.
            cell: the cell; its tau_v fits 12 bits.
            force: accept few weight units per threshold.
            halvings: how often to halve the weight units, where its weights lose no bits.
        """

    def leak(self, cell: C, layer: IntegerLayer) -> Tensor:
        """The layer's decays of the cell's voltage (n_hidden,), 1 to 4096."""
        return layer.v_decay

    @abstractmethod
    def restore(self, cell: C, layer: IntegerLayer) -> None:
        """Set a float64 cell's parameters to the values of the integers."""

    @abstractmethod
    def nodes(self, layer: str, name: str, cell: C, dt: float, layer_delay: int) -> NirLayer:
        """The NIR nodes of a cell at dt seconds per step, under a name."""

    def inside(self, graph: Any, start: str) -> tuple[str, dict[str, str]]:
        """The node that fires, and by name all nodes after the first, in a `NirChain`."""
        return start, {}

    @abstractmethod
    def cell(self, layer: NirLayer, dt: float) -> Any:
        """The cell that computes the nodes' Euler steps of dt seconds; called without gradients."""


class ExportedLIF(ExportedNeuron[LIF]):
    """LIF with any reset, CubaLIF with reset to zero."""

    word, starts = "lif", ("LIF", "CubaLIF")

    def describe(self, cell: LIF) -> str:
        if isinstance(cell, CubaLIF):
            return "CubaLIF, reset to zero: CUBA, current in u and voltage in v"
        in_voltage = isinstance(cell.reset, ZeroReset)
        return "LIF, reset to zero: CUBA" if in_voltage else "LIF, reset by subtraction: CUBA, voltage in u"

    def threshold(self, cell: LIF) -> Tensor:
        return cell.theta

    def integers(self, name: str, cell: LIF, *, force: bool, halvings: int) -> CubaLayer:
        theta, reset = cell.theta.double(), reset_of(name, cell)
        if not (theta > 0).all():
            raise ValueError(f"{name}: thresholds must be positive, got {theta.min():g}.")
        i_decay = _current_bits(name, cell) if isinstance(cell, CubaLIF) else None
        rows = 1 / theta.unsqueeze(1)
        w_in, w_rec, b = cell.w_in.double() * rows, cell.w_rec.double() * rows, cell.b_v.double() / theta
        leak = decay_bits(cell.decay_v.double())
        if reset == "zero":
            scale = math.floor(W_MAX / largest(name, w_in, w_rec))
            return CubaLayer(
                weight=even(w_in * scale),
                weight_rec=even(w_rec * scale) if w_rec.any() else None,
                bias=_native_bias(name, b * scale),
                i_decay=torch.full_like(leak, 4096) if i_decay is None else i_decay,
                v_decay=leak.clamp(1, 4095),
                threshold=torch.full_like(leak, check_threshold(name, scale, COARSE, force)),
                unit=UNIT * scale / theta,
            )
        w_rec = w_rec - torch.eye(len(theta), dtype=theta.dtype, device=theta.device)
        scale = min(W_MAX, math.floor(W_MAX / largest(name, w_in, w_rec, b)))
        scale -= scale % 2
        scale -= 2 * (scale.bit_count() == 1)  # one-sign matrices down to a power of 2 are where readers go wrong
        layer = CubaLayer(
            weight=even(w_in * scale),
            weight_rec=even(w_rec * scale),
            bias=torch.zeros_like(leak),
            i_decay=leak.clamp(min=1),
            v_decay=torch.full_like(leak, 4095),
            threshold=torch.full_like(leak, check_threshold(name, scale, COARSE, force)),
            unit=UNIT * scale / theta,
        )
        if not b.any():
            return layer
        # one neuron more, the last, fires at every step, with weights b to the others
        extra = {"bias": scale + 1, "i_decay": 4096, "v_decay": 4095, "threshold": scale, "unit": UNIT * scale}
        vectors: dict[str, Any] = {name: pad(getattr(layer, name), (0, 1), value=v) for name, v in extra.items()}
        w_rec = torch.cat((even(w_rec * scale), even(b * scale).unsqueeze(1)), 1)
        return CubaLayer(weight=pad(layer.weight, (0, 0, 0, 1)), weight_rec=pad(w_rec, (0, 0, 0, 1)), **vectors)

    def leak(self, cell: LIF, layer: Any) -> Tensor:
        return layer.v_decay if isinstance(cell.reset, ZeroReset) else layer.i_decay[: cell.n_hidden]

    def restore(self, cell: LIF, layer: Any) -> None:
        n, m = cell.n_in, cell.n_hidden
        scale = layer.unit[:m] / UNIT
        rows = scale.unsqueeze(1)
        rec = torch.zeros_like(cell.w_rec) if layer.weight_rec is None else layer.weight_rec
        cell.theta.copy_(layer.threshold[:m] / scale)
        cell.w_in.copy_(layer.weight[:m, :n] / rows)
        cell.w_rec.copy_(rec[:m, :m] / rows)
        cell.tau_v = time_constant(self.leak(cell, layer))
        if isinstance(cell, CubaLIF):
            cell.tau_i = time_constant(layer.i_decay)
        if isinstance(cell.reset, ZeroReset):
            cell.b_v.copy_(layer.bias / scale)
        else:
            cell.w_rec.add_(torch.diag(cell.theta))
            cell.b_v.copy_(rec[:m, m:].sum(1) / scale)

    def nodes(self, layer: str, name: str, cell: LIF, dt: float, layer_delay: int) -> NirLayer:
        reset, decays = reset_of(layer, cell), {"tau_v": cell.decay_v}
        if isinstance(cell, CubaLIF):
            decays["tau_i"] = cell.decay_i
            if reset != "zero":
                raise ValueError(
                    f'{layer}: NIR resets a voltage to a constant; a CubaLIF needs reset="zero", got {reset!r}.'
                )
        _check_nir(layer, cell, decays, cell.theta, layer_delay)
        steps = nir_steps(cell.decay_v)
        one, zero = np.ones_like(steps), np.zeros_like(steps)
        current = one  # where the voltage is a node's voltage, its current has no memory
        if isinstance(cell, CubaLIF):
            current = nir_steps(cell.decay_i)
        elif reset != "zero":
            current, steps = steps, one
        node = load_nir().CubaLIF(
            tau_syn=dt * current,
            w_in=current,
            tau_mem=dt * steps,
            r=steps,
            v_leak=zero,
            v_threshold=array(cell.theta),
            v_reset=zero,
            metadata={"neurolsc": {"reset": reset} | {log_name(tau): _stored(cell, tau) for tau in decays}},
        )
        loop = None if reset == "zero" and not cell.w_rec.any() else _recurrent(cell, cell.theta)
        return NirLayer(name, linear(cell.w_in, cell.b_v), node, loop)

    def cell(self, layer: NirLayer, dt: float) -> LIF:
        node, (n, n_in) = layer.neuron, layer.size
        for name in ("v_leak", "v_reset"):
            _check_constant(layer.name, node, name, 0.0, n)
        reset: ResetName = "zero"
        lost_i = None  # the share that a current loses in a step, if the cell has one
        if hasattr(node, "tau"):
            lost = _lost_share(layer.name, node, "tau", dt, n)
            gain = lost * values(node, "r", n)
        else:
            lost, lost_i = (_lost_share(layer.name, node, name, dt, n) for name in ("tau_mem", "tau_syn"))
            gain = lost * lost_i * values(node, "r", n) * values(node, "w_in", n)
            noted = str(layer.about.get("reset", "zero"))
            in_current, in_voltage = np.allclose(lost, 1, rtol=CLOSE), np.allclose(lost_i, 1, rtol=CLOSE)
            if in_current and (not in_voltage or noted != "zero"):
                reset, lost, lost_i = "static" if noted == "static" else "subtract", lost_i, None
            elif in_voltage:
                lost_i = None
        cell = (LIF if lost_i is None else CubaLIF)(n_in, n, reset=reset).to(layer.dtype)
        fill(cell.theta, values(node, "v_threshold", n))
        _fill_voltage(cell, layer, lost, gain, cell.theta)
        if lost_i is not None:
            _fill_tau(cell, "tau_i", lost_i, layer.about)
        return cell


class ExportedALIF(ExportedNeuron[ALIF]):
    """ALIF with ``reset="static"``; in integers with positive adaptation.

    The chip has one step of the threshold per layer, before the decay; ours comes after it.
    """

    word, starts = "alif", ()  # it starts with an LI, which ExportedLI hands over

    def describe(self, cell: ALIF) -> str:
        return "ALIF, static reset: ALIF (ATRLIF)"

    def threshold(self, cell: ALIF) -> Tensor:
        return cell.theta_rest

    def integers(self, name: str, cell: ALIF, *, force: bool, halvings: int) -> AtrlifLayer:
        if (found := reset_of(name, cell)) != "static":
            raise ValueError(f"{name}: an ALIF with reset={found!r} has no counterpart; train with reset='static'.")
        retention, rest = cell.decay_theta.double(), cell.theta_rest.double()
        if not (cell.adaptation > 0).all():
            raise ValueError(
                f"{name}: adaptation must be positive everywhere, got {cell.adaptation.min():g}: a layer has one step of "
                f"its threshold, and one that falls can never stop its neuron from firing. {POSITIVE}"
            )
        if not (rest > 0).all():
            raise ValueError(f"{name}: resting thresholds must be positive, got {rest.min():g}. {POSITIVE}")
        if (retention > LONGEST).any() or decay_bits(retention).max() > 4095:
            low, high = cell.tau_theta.min(), cell.tau_theta.max()
            raise ValueError(f"{name}: tau_theta is {low:g} to {high:g} steps, but 12 bits hold 0.12 to 4096 steps.")
        step = cell.adaptation.double() / retention
        rows = 1 / step.detach()
        w_in, w_rec = cell.w_in.double() * rows.unsqueeze(1), cell.w_rec.double() * rows.unsqueeze(1)

        # Weight units per step of adaptation: the fewest that are fine enough. They are a power of
        # 2 times the larger matrix's full range, of which the lowest threshold has enough, and the
        # smaller matrix its own full range, unless the highest threshold has plenty before, or
        # leaves 17 bits. Then halved `halvings` times, but never to less than that full range or
        # enough units for the step.
        peaks = [largest(name, w_in), w_rec.detach().abs().max().item()]
        low, high = (rest.detach() * rows).min().item(), (rest.detach() * rows).max().item()
        full = W_MAX / max(peaks)
        wanted = max(COARSE_ALIF / low, min(W_MAX / min(peak for peak in peaks if peak), PLENTY / high))
        doublings = min(math.ceil(math.log2(wanted / full)), math.floor(math.log2(NEVER / high / full)))
        fewest = min(doublings, math.ceil(math.log2(COARSE_ALIF / full)))
        scale = math.floor(full * 2 ** max(0, fewest, doublings - halvings))
        if scale < 1:
            raise ValueError(
                f"{name}: the step of the threshold rounds to 0: the adaptation is too small for the weights; "
                "train from a start that leaves it, such as BySource()."
            )
        weight_exp, rec_exp = (exponent(peak * scale, W_MAX) for peak in peaks)
        threshold = rest * rows * scale
        for units in (threshold.min(), threshold.max()):
            check_threshold(name, max(round(units.item()), halvings > 0), max(1, COARSE_ALIF >> halvings), force)
        reset_exp = exponent(threshold.max().item(), 255)  # 8 bits, as all resets of a layer have one sign
        reset = nearest(threshold / 2**reset_exp).clamp(min=1)
        if (reset * 2**reset_exp - threshold > (threshold + scale) / 2).any():  # against the threshold after a spike
            raise ValueError(
                f"{name}: resting thresholds, in steps of adaptation, reach from {threshold.min() / scale:g} to "
                f"{threshold.max() / scale:g}: too far apart for the 8 bits of the reset."
            )
        bias = UNIT * cell.b_v.double() * rows * scale
        bias_exp = exponent(bias.abs().max().item(), 4095)
        if bias_exp > 7:
            raise ValueError(f"{name}: a bias of {_extreme(bias):.0f} state units does not fit 13 bits shifted by 7.")
        return AtrlifLayer(
            weight=even(w_in * scale / 2**weight_exp),
            weight_rec=even(w_rec * scale / 2**rec_exp),
            bias=nearest(bias / 2**bias_exp),
            v_decay=decay_bits(cell.decay_v.double()).clamp(1, 4095),
            theta_decay=decay_bits(retention).clamp(min=1),
            threshold=nearest(threshold).clamp(min=1),
            theta_step=nearest(step * rows * scale),
            reset=reset,
            weight_exp=weight_exp,
            weight_rec_exp=rec_exp,
            bias_exp=bias_exp,
            reset_exp=reset_exp,
            unit=UNIT * scale * rows,
        )

    def restore(self, cell: ALIF, layer: Any) -> None:
        scale = layer.unit / UNIT
        rows = scale.unsqueeze(1)
        cell.w_in.copy_(layer.weight[:, : cell.n_in] * 2**layer.weight_exp / rows)
        cell.w_rec.copy_(layer.weight_rec * 2**layer.weight_rec_exp / rows)
        cell.b_v.copy_(layer.bias * 2**layer.bias_exp / layer.unit)
        cell.tau_v = time_constant(layer.v_decay)
        cell.tau_theta = time_constant(layer.theta_decay)
        cell.theta_rest = layer.threshold / scale
        set_value(cell, "adaptation", layer.theta_step * (1 - layer.theta_decay / 4096) / scale)

    def nodes(self, layer: str, name: str, cell: ALIF, dt: float, layer_delay: int) -> NirLayer:
        if (found := reset_of(layer, cell)) != "static":
            raise ValueError(
                f"{layer}: NIR cannot express an ALIF with reset={found!r}, as its nodes reset to a constant: "
                'train with reset="static", or save the network with neurolsc.save.'
            )
        decays = {"tau_v": cell.decay_v, "tau_theta": cell.decay_theta}
        _check_nir(layer, cell, decays, cell.theta_rest, layer_delay)
        nir, size = load_nir(), np.array([cell.n_hidden])
        steps, steps_theta = nir_steps(cell.decay_v), nir_steps(cell.decay_theta)
        zero = np.zeros_like(steps)
        nodes = {
            "input": nir.Input(size),
            "membrane": nir.LI(tau=dt * steps, r=steps, v_leak=zero),
            "adaptation": nir.LI(tau=dt * steps_theta, r=-array(cell.adaptation) * steps_theta, v_leak=zero),
            "threshold": nir.Threshold(array(cell.theta_rest)),
            "w_rec": _recurrent(cell, cell.theta_rest),
            "output": nir.Output(size),
        }
        edges = [("input", "membrane"), ("membrane", "threshold"), ("threshold", "output")]
        edges += [("threshold", "adaptation"), ("adaptation", "threshold")]
        edges += [("threshold", "w_rec"), ("w_rec", "membrane")]
        quantities = ("tau_v", "tau_theta", "b_theta", "adaptation")
        about: dict[str, Any] = {_storage(cell, quantity): _stored(cell, quantity) for quantity in quantities}
        graph = nir.NIRGraph(nodes, edges, metadata={"neurolsc": about | {"cell": type(cell).__name__}})
        return NirLayer(name, linear(cell.w_in, cell.b_v), graph)

    def inside(self, graph: Any, start: str) -> tuple[str, dict[str, str]]:
        threshold = graph.only(f"node after {graph.named(start)}", graph.after(start))
        graph.visit(threshold, ("Threshold",))
        others = graph.before(threshold) - {start}
        adaptation = graph.only(f"second node before {graph.named(threshold)}", others)
        graph.visit(adaptation, ("LI",))
        graph.check_loop(threshold, adaptation, threshold)
        return threshold, {"adaptation": adaptation, "threshold": threshold}

    def cell(self, layer: NirLayer, dt: float) -> ALIF:
        n, n_in = layer.size
        adaptation, threshold = layer.parts["adaptation"], layer.parts["threshold"]
        for node in (layer.neuron, adaptation):
            _check_constant(layer.name, node, "v_leak", 0.0, n)
        lost = _lost_share(layer.name, layer.neuron, "tau", dt, n)
        lost_theta = _lost_share(layer.name, adaptation, "tau", dt, n)
        known: Any = CELLS.get(str(layer.about.get("cell")), ALIFPlus)  # what is trained differs between them
        cell = (known if step_of(known) is ALIF else ALIFPlus)(n_in, n, reset="static").to(layer.dtype)
        _fill_tau(cell, "tau_theta", lost_theta, layer.about)
        set_value(cell, "adaptation", torch.tensor(-lost_theta * values(adaptation, "r", n)))
        cell.theta_rest = torch.tensor(values(threshold, "threshold", n))
        for quantity, derived in (("adaptation", "adaptation"), ("b_theta", "theta_rest")):
            if (stored := _storage(cell, quantity)) not in layer.about:
                continue
            parameter, in_graph = cell.get_parameter(stored), array(getattr(cell, derived))
            from_graph = parameter.clone()
            fill(parameter, layer.about[stored])
            if not _agree(array(getattr(cell, derived)), in_graph, from_graph):  # the graph was changed since
                parameter.copy_(from_graph)
        _fill_voltage(cell, layer, lost, lost * values(layer.neuron, "r", n), cell.theta_rest)
        return cell


class ExportedLI(ExportedNeuron[LI]):
    """A leaky integrator as the readout; its rows have one scale: their voltages are compared."""

    word, starts = "li", ("LI", "CubaLI")

    def describe(self, cell: LI) -> str:
        return "LI: CUBA that never fires, its voltage is read"

    def threshold(self, cell: LI) -> Tensor:
        return torch.ones_like(cell.b_v)

    def integers(self, name: str, cell: LI, *, force: bool, halvings: int) -> IntegratorLayer:
        i_decay, weight = _current_bits(name, cell), cell.w_in.double()
        scale = W_MAX / largest(name, weight) / 2**halvings
        v_decay = decay_bits(cell.decay_v.double())
        return IntegratorLayer(
            weight=nearest(weight * scale) if halvings else even(weight * scale),  # odd ones fit up to 127
            weight_rec=None,
            bias=_native_bias(name, cell.b_v.double() * scale),
            i_decay=i_decay,
            v_decay=v_decay.clamp(1, 4095),
            threshold=torch.full_like(v_decay, NEVER),
            unit=torch.full_like(v_decay, UNIT * scale),
        )

    def restore(self, cell: LI, layer: Any) -> None:
        scale = layer.unit / UNIT
        cell.w_in.copy_(layer.weight[:, : cell.n_in] / scale.unsqueeze(1))
        cell.b_v.copy_(layer.bias / scale)
        cell.tau_v, cell.tau_i = time_constant(layer.v_decay), time_constant(layer.i_decay)

    def nodes(self, layer: str, name: str, cell: LI, dt: float, layer_delay: int) -> NirLayer:
        _check_nir(layer, cell, {"tau_v": cell.decay_v, "tau_i": cell.decay_i}, torch.ones(1), layer_delay)
        nir, steps, current = load_nir(), nir_steps(cell.decay_v), nir_steps(cell.decay_i)
        about = {log_name(tau): _stored(cell, tau) for tau in ("tau_v", "tau_i")}
        rest: dict[str, Any] = {"r": steps, "v_leak": np.zeros_like(steps), "metadata": {"neurolsc": about}}
        if (current == 1).all():
            node = nir.LI(tau=dt * steps, **rest)
        else:
            node = nir.CubaLI(tau_mem=dt * steps, tau_syn=dt * current, w_in=current, **rest)
        return NirLayer(name, linear(cell.w_in, cell.b_v), node)

    def inside(self, graph: Any, start: str) -> tuple[str, dict[str, str]]:
        if graph.after(start) == {graph.output}:
            return start, {}
        if type(graph.nodes[start]).__name__ == "LI":
            return ExportedALIF().inside(graph, start)
        raise ValueError(f"{graph.named(start)} sends a voltage: it can only stand before the output.")

    def cell(self, layer: NirLayer, dt: float) -> ALIF | LI:
        if layer.parts:
            return ExportedALIF().cell(layer, dt)
        node, (n, n_in), cuba = layer.neuron, layer.size, hasattr(layer.neuron, "tau_syn")
        _check_constant(layer.name, node, "v_leak", 0.0, n)
        if layer.recurrent is not None:
            raise ValueError(f"node {layer.name} ({type(node).__name__}) is the readout, and reads itself.")
        lost = _lost_share(layer.name, node, "tau_mem" if cuba else "tau", dt, n)
        lost_i = _lost_share(layer.name, node, "tau_syn", dt, n) if cuba else np.ones(n)
        gain = lost * lost_i * values(node, "r", n) * (values(node, "w_in", n) if cuba else 1)
        cell = LI(n_in, n).to(layer.dtype)
        _fill_tau(cell, "tau_i", lost_i, layer.about)
        _fill_voltage(cell, layer, lost, gain, torch.ones(1))
        return cell


NEURONS: dict[type[Cell], ExportedNeuron[Any]] = {
    LIF: ExportedLIF(),
    CubaLIF: ExportedLIF(),
    ALIF: ExportedALIF(),
    LI: ExportedLI(),
}  # by the class that defines the step: a subclass with a step of its own is another neuron


def exported_neuron(layer: str, cell: Cell) -> ExportedNeuron[Any]:
    """The entry of a cell in :data:`NEURONS`; a TypeError names the layer if there is none."""
    step = step_of(type(cell))
    changed = [name for name in vars(cell) if hasattr(type(cell), name) and name not in NO_STEP]
    if step in NEURONS and not changed:
        return NEURONS[step]
    related = next((known.__name__ for known in NEURONS if isinstance(cell, known)), None)
    own = f", whose step is not that of {related}" if related else ""
    own += f" (it has its own {', '.join(changed)})" if changed else ""
    names = ", ".join(known.__name__ for known in NEURONS)
    raise TypeError(f"{layer} is a {type(cell).__name__}{own}; only {names} can be exported.")


def reset_of(layer: str, cell: SpikingCell) -> ResetName:
    """The name of a cell's reset; a ValueError names the layer if it is of another class."""
    known: dict[type[Reset], ResetName] = {Reset: "subtract", StaticReset: "static", ZeroReset: "zero"}
    if type(cell.reset) not in known:
        names = ", ".join(each.__name__ for each in known)
        raise ValueError(f"{layer}: its reset is {cell.reset!r}, only {names} can be exported.")
    return known[type(cell.reset)]


def _current_bits(name: str, cell: CubaLIF | LI) -> Tensor:
    """The 12-bit decay of a current of its own."""
    if isinstance(cell, CubaLIF) and not isinstance(cell.reset, ZeroReset):
        raise ValueError(f'{name}: CUBA resets its voltage to zero, and so can a CubaLIF only with reset="zero".')
    if (cell.decay_i.double() > LONGEST).any():
        raise ValueError(
            f"{name}: tau_i is {cell.tau_i.max():g} steps, but a decay has 12 bits, for at most 4096 steps."
        )
    if cell.b_v[cell.decay_i > 1e-6].any():  # without memory the current is the voltage's input
        raise ValueError(f"{name}: a bias of the current needs layer_delay=0, where a neuron of its own brings it.")
    return decay_bits(cell.decay_i.double()).clamp(min=1)


def _native_bias(name: str, b: Tensor) -> Tensor:
    bias = nearest(b)
    if (bias < -4096).any() or (bias > 4095).any():
        raise ValueError(f"{name}: a bias of {_extreme(bias):.0f} weight units does not fit 13 bits (-4096 to 4095).")
    return bias


def _extreme(x: Tensor) -> float:
    return x.detach().flatten()[x.detach().abs().argmax()].item()


# NIR's numbers


def load_nir() -> ModuleType:
    """The optional module ``nir``."""
    try:
        import nir
    except ImportError as error:
        raise ImportError("export to and from NIR needs the package nir: pip install 'nir>=1.0.7'.") from error
    return nir


def array(value: Tensor) -> np.ndarray:
    """A contiguous copy of a tensor's values."""
    return np.ascontiguousarray(value.detach().cpu().numpy()).copy()


def fill(tensor: Tensor, value: Any) -> None:
    """Copy numbers into a tensor."""
    tensor.copy_(torch.from_numpy(np.array(value)))


def linear(weight: Tensor, bias: Tensor | None = None) -> Any:
    """A ``Linear`` node, or ``Affine`` if there is a bias that is not zero."""
    nir = load_nir()
    return nir.Linear(array(weight)) if bias is None or not bias.any() else nir.Affine(array(weight), array(bias))


def notes(node: Any) -> dict[str, Any]:
    """Our metadata of a node."""
    found = node.metadata.get("neurolsc", {})
    return found if isinstance(found, dict) else {}


def nir_steps(decay: Tensor) -> np.ndarray:
    """A time constant of NIR in steps, 1 / (1 - a) of the share a that a step retains, float64."""
    return 1 / (1 - array(decay).astype(np.float64))


def values(node: Any, name: str, n: int) -> np.ndarray:
    """A parameter of a node in float64, (n,); one number stands for all neurons."""
    value = np.asarray(getattr(node, name), dtype=np.float64)
    if value.size != 1 and value.shape != (n,):
        raise ValueError(f"{name} of a {type(node).__name__} has shape {value.shape}, wanted {(n,)}.")
    return np.broadcast_to(value.reshape(()) if value.size == 1 else value, (n,))


def _check_nir(layer: str, cell: Any, decays: dict[str, Tensor], threshold: Tensor, layer_delay: int) -> None:
    """Refuse what NIR cannot express of a leaky voltage."""
    for name, value in cell.state_dict().items():
        if not value.isfinite().all():
            raise ValueError(f"{layer}: {name} must be finite, got {value[~value.isfinite()][0].item()}.")
    if cell.w_in.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"{layer} has the dtype {cell.w_in.dtype}; wanted torch.float32 or torch.float64.")
    for name, decay in decays.items():
        if (decay == 1).any():
            raise ValueError(
                f"{layer}: {name} reaches {getattr(cell, name).max():.3g} steps, of which {decay.dtype} makes a "
                "decay of 1: the time constant in seconds would be infinite."
            )
    if not (threshold > 0).all():
        raise ValueError(f"{layer}: thresholds must be positive, got {threshold.min():.4g}.")
    if layer_delay and cell.b_v.any():
        raise ValueError(
            f"{layer}: its bias (up to {cell.b_v.abs().max():.4g}) acts from the first step on, before the "
            "delayed input arrives, and NIR's readers have no latency between layers: use layer_delay=0, or no bias."
        )


def _storage(cell: Any, quantity: str) -> str:
    """The name of the parameter of a quantity: its own, or that of its logarithm."""
    return quantity if quantity in cell._parameters else log_name(quantity)


def _stored(cell: Any, quantity: str) -> np.ndarray:
    return array(cell.get_parameter(_storage(cell, quantity)))


def _recurrent(cell: SpikingCell, threshold: Tensor) -> Any:
    """Recurrent weights with the reset on their diagonal, which is noted as it was."""
    if isinstance(cell.reset, ZeroReset):
        return linear(cell.w_rec)
    about = {"neurolsc": {"diagonal": array(cell.w_rec.diagonal())}}
    return load_nir().Linear(array(cell.w_rec - torch.diag(threshold)), metadata=about)


def _lost_share(layer: str, node: Any, name: str, dt: float, n: int) -> np.ndarray:
    """The share of a state that a step loses, dt / tau, in (0, 1], shape (n,)."""
    tau = values(node, name, n)
    with np.errstate(divide="ignore"):
        lost = dt / tau
    if not ((lost > 0) & (lost <= 1 + CLOSE)).all():
        raise ValueError(
            f"node {layer} ({type(node).__name__}): {name} must be at least dt = {dt:g} s and finite, got "
            f"{tau.min():g} to {tau.max():g} s."
        )
    return np.minimum(lost, 1)


def _check_constant(layer: str, node: Any, name: str, wanted: float, n: int) -> None:
    value = values(node, name, n)
    if not np.allclose(value, wanted):
        odd = value[~np.isclose(value, wanted)][0]
        raise ValueError(
            f"node {layer} ({type(node).__name__}): {name} must be {wanted:g}, as our cells have it, got {odd:g}."
        )


def _fill_voltage(cell: Any, layer: NirLayer, lost: np.ndarray, gain: np.ndarray, threshold: Tensor) -> None:
    """Set weights, bias and time constant of a cell whose threshold is set.

    A step loses a share of the voltage, and a unit of input adds the gain to it, each (n_hidden,).
    """
    n = cell.n_hidden
    if np.allclose(gain, 1, rtol=CLOSE, atol=0):
        gain = np.ones(n)
    rows = 1 if (gain == 1).all() else gain[:, None]
    _fill_tau(cell, "tau_v", lost, layer.about)
    fill(cell.w_in, np.asarray(layer.weight.weight) * rows)
    biased = [node for node in (layer.weight, layer.recurrent) if getattr(node, "bias", None) is not None]
    fill(cell.b_v, gain * sum((values(node, "bias", n) for node in biased), np.zeros(n)))
    if isinstance(cell, SpikingCell):
        loop = np.zeros((n, n)) if layer.recurrent is None else np.asarray(layer.recurrent.weight)
        if loop.shape != (n, n):
            raise ValueError(f"the recurrent weights of {layer.name} have shape {loop.shape}, wanted {(n, n)}.")
        fill(cell.w_rec, loop * rows)
        if not isinstance(cell.reset, ZeroReset):  # take the reset out of the recurrent weights
            noted = None if layer.recurrent is None else notes(layer.recurrent).get("diagonal")
            diagonal = cell.w_rec.diagonal()
            exact = diagonal + threshold
            if noted is not None:
                before = torch.as_tensor(np.asarray(noted), dtype=diagonal.dtype)
                exact = torch.where(before - threshold == diagonal, before, exact)
            diagonal.copy_(exact)
    if not (threshold > 0).all():
        raise ValueError(f"node {layer.name}: thresholds must be positive, got {threshold.min():g}.")
    for name, value in cell.state_dict().items():
        if not value.isfinite().all():
            raise ValueError(f"node {layer.name}: {name} would not be finite.")


def _fill_tau(cell: Any, name: str, lost: np.ndarray, about: dict[str, Any]) -> None:
    """Set a time constant by the share that a step loses; the noted one if they agree."""
    with np.errstate(divide="ignore"):
        tau = np.maximum(-1 / np.log1p(-lost), NO_MEMORY)
    parameter = cell.get_parameter(log_name(name))
    fill(parameter, np.log(tau))
    noted = about.get(log_name(name))
    if noted is not None and _agree(np.exp(-np.exp(-np.asarray(noted, np.float64))), 1 - lost, parameter):
        fill(parameter, noted)


def _agree(noted: Any, found: np.ndarray, like: Tensor) -> bool:
    """Whether noted numbers are those of the graph, but for rounding."""
    few = 8 * torch.finfo(like.dtype).eps
    return np.shape(noted) == found.shape and np.allclose(noted, found, rtol=few, atol=few)
