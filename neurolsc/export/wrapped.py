"""Networks of snnTorch, norse and spikingjelly in our own cells, and a step of delay per layer.

What each library computes in a step, with z the spikes and I the layer's input:

- snnTorch's Leaky: mem = beta mem + I - threshold z, or mem = beta (1 - z) mem + I: our LIF.
- snnTorch's Synaptic and norse's LIF: a current, then the voltage: our CubaLIF. norse's voltage takes the share dt
  tau_mem_inv of the current, which is a factor of all weights.
- norse's LI, and as the last layer snnTorch's Leaky and Synaptic without reset: our LI.
- spikingjelly's LIFNode: v = (1 - 1/tau) v + x / tau, or + x, above its rest: our LIF. It resets in the step that
  fires, so that what it subtracts leaks, and it fires at its threshold, too.
- snnTorch's resets to zero with ``reset_delay=True`` blank the whole step after a spike, its input included, in all
  layers but Leaky. Neither Loihi's CUBA nor NIR has that.
"""

import copy
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import pad

from neurolsc.export.neurons import exported_kind
from neurolsc.interop.foreign import ForeignCell
from neurolsc.io import CONVERTERS
from neurolsc.network import Network, eval_mode
from neurolsc.neurons import LI, LIF, Cell, CubaLIF

__all__ = ["delayed", "from_wrapped", "integrates"]

AFFINE = (nn.Linear, nn.Flatten, nn.Unflatten, nn.Identity, nn.Dropout, nn.BatchNorm1d)  # affine after training
NO_MEMORY = 1e-3  # a time constant in steps of which exp(-1/tau) is 0
FIRES = 1.04  # input of a bias neuron in each step, in thresholds: above 1 even after rounding


class _Neurons(NamedTuple):
    """A layer's neurons in the terms of our cells, each value a number or (n_hidden,)."""

    decay_v: Tensor
    threshold: Tensor
    reset: Literal["subtract", "zero", "none"]  # none: they never fire, and send their voltage
    decay_i: Tensor | None = None
    gain: Tensor | float = 1.0  # share of the input that reaches the current or voltage
    w_rec: Tensor | float = 0.0  # (n_hidden, n_hidden), or of one to one connections a number or (n_hidden,)
    bias: Tensor | None = None
    cancelled: Tensor | float = 0.0  # share of the threshold that a reset by subtraction leaves in the voltage
    fires_at_threshold: bool = False  # ours fire above it


def from_wrapped(network: Network) -> Network:
    """The same network in our own cells: layer by layer, with the same spikes.

    Linear layers before a neuron become its input weights, with Flatten, Dropout and BatchNorm1d in evaluation folded
    in; a Linear at the end becomes the readout, a leaky integrator at the end an LI. Surrogates are the default.

    Args:
        network: what :func:`neurolsc.wrap` returned. One of our own cells is returned as it is.

    Raises:
        TypeError: if a layer or module has no counterpart; the message names it.
        ValueError: if a setting of it has none; the message says what to change.
    """
    if not any(isinstance(cell, ForeignCell) for cell in network.cells):
        return network
    like = network.dtype_and_device
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        cells = [_cell(f"layer {i}", cell) for i, cell in enumerate(network.cells, start=1)]
        shape = getattr(network.readout, "shape", (cells[-1].n_hidden,))
        weight, bias = _affine("the readout", network.readout, shape, **like)
        readout = nn.Linear(weight.shape[1], weight.shape[0], bias=bool(bias.any()), **like)
        readout.weight.copy_(weight)
        if readout.bias is not None:
            readout.bias.copy_(bias)
        readout.requires_grad_(bool(list(network.readout.parameters())))
        return Network(cells, readout, layer_delay=network.layer_delay)  # type: ignore[arg-type]


def _saved(network: Network) -> Network:
    """The network as :func:`neurolsc.save` writes it."""
    instead = "A file cannot describe this model: keep its weights with torch.save(model.state_dict(), path)."
    for i, cell in enumerate(network.cells, start=1):
        layer: Any = cell.layer if isinstance(cell, ForeignCell) else None
        if not getattr(layer, "reset_delay", True) and getattr(layer, "reset_mechanism", "") == "subtract":
            raise TypeError(
                f"layer {i}: with reset_delay=False a reset by subtraction is ours only while no membrane passes twice its "
                f"threshold. {instead} Where none does, save neurolsc.export.from_wrapped(network)."
            )
    try:
        return from_wrapped(network)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{error} {instead}") from error


CONVERTERS.append(_saved)


def _cell(name: str, cell: Cell) -> Cell:
    if not isinstance(cell, ForeignCell):
        return cell.copy()
    like, layer, n = cell.dtype_and_device, cell.layer, cell.n_hidden
    library, kind = type(layer).__module__.partition(".")[0], type(layer).__name__
    read = {"snntorch": _snntorch, "norse": _norse, "spikingjelly": _spikingjelly}.get(library)
    if read is None:
        raise TypeError(f"{name} is a {library} {kind}, which has no counterpart: use LIF or ALIF of neurolsc.")
    weight, bias = _affine(f"before {name}", cell.before, cell.input_shape, **like)
    name = f"{name} ({library} {kind})"
    if cell.integrator and getattr(layer, "reset_mechanism", "none") != "none":
        raise ValueError(f'{name}: its membrane is read, and its spikes reset it: train with reset_mechanism="none".')
    neurons = read(name, layer, cell.integrator)
    own = getattr(layer, "input_weights", getattr(cell, "w_in", None))
    if own is not None:
        w: Tensor = own.detach().to(**like)
        weight, bias = w @ weight, w @ bias

    def each(value: Any) -> Tensor:
        return torch.as_tensor(value).detach().to(**like).expand(n)

    gain = each(neurons.gain)
    if neurons.reset == "none":
        made: Any = LI(cell.n_in, n)
    else:
        made = (LIF if neurons.decay_i is None else CubaLIF)(cell.n_in, n, reset=neurons.reset)
    made = made.to(**like)
    made.w_in.copy_(weight * gain.unsqueeze(1))
    made.b_v.copy_(gain * (bias if neurons.bias is None else bias + each(neurons.bias)))
    for what, decay in (("v", neurons.decay_v), ("i", neurons.decay_i)):
        if hasattr(made, f"tau_{what}"):
            retained = each(0.0 if decay is None else decay).double()
            wrong = (retained < 0) | (retained >= 1)
            if wrong.any():
                raise ValueError(
                    f"{name}: a state retains {retained[wrong][0]:g} of itself in a step, wanted 0 to < 1."
                )
            setattr(made, f"tau_{what}", (-1 / retained.log()).clamp(min=NO_MEMORY).to(gain.dtype))
    if isinstance(made, LI):
        return made
    theta = each(neurons.threshold)
    if neurons.fires_at_threshold:
        theta = torch.nextafter(theta, torch.zeros_like(theta))
    if not (theta > 0).all():
        raise ValueError(f"{name}: thresholds must be positive, got {theta.min():g}.")
    w_rec = torch.as_tensor(neurons.w_rec).detach().to(**like)
    w_rec = w_rec if w_rec.ndim == 2 else torch.diag(each(w_rec))  # of one to one connections
    made.w_rec.copy_(w_rec * gain.unsqueeze(1) + torch.diag(each(neurons.cancelled) * theta))
    made.theta.copy_(theta)
    return made


def _affine(name: str, module: nn.Module, shape: tuple[int, ...], **like: Any) -> tuple[Tensor, Tensor]:
    """Matrix and bias of modules, found by passing unit vectors through them in float64."""
    for part in module.modules():
        if not isinstance(part, AFFINE) and not list(part.children()) and not isinstance(part, nn.Sequential):
            known = ", ".join(kind.__name__ for kind in AFFINE)
            raise TypeError(f"{name}: {type(part).__name__} cannot be exported; a layer's weights are dense: {known}.")
    n = int(torch.Size(shape).numel())
    tensors = {k: v.detach().cpu().double() for k, v in module.state_dict().items() if v.is_floating_point()}
    units = torch.cat((torch.zeros(1, n), torch.eye(n))).double().view(-1, *shape)
    with eval_mode(module):
        out = functional_call(module, tensors, (units,)).flatten(1)
    return (out[1:] - out[0]).T.to(**like), out[0].to(**like)


def _snntorch(name: str, layer: Any, integrator: bool) -> _Neurons:
    """Leaky, RLeaky and Synaptic of snnTorch."""
    kind = type(layer).__name__
    if kind not in ("Leaky", "RLeaky", "Synaptic"):
        raise TypeError(f"{name} has no counterpart: use Leaky, RLeaky or Synaptic.")
    if (layer.graded_spikes_factor != 1).any():
        raise ValueError(f"{name}: its spikes are graded by {layer.graded_spikes_factor}, wanted 1.")
    for setting in ("inhibition", "state_quant"):
        if getattr(layer, setting):
            raise ValueError(f"{name}: {setting} has no counterpart: train without it.")
    recurrent = getattr(layer, "recurrent", None)
    if isinstance(recurrent, nn.Conv2d):
        raise TypeError(f"{name}: its recurrence is a convolution; use linear_features=.")
    w_rec, bias = getattr(recurrent, "weight", getattr(recurrent, "V", 0.0)), getattr(recurrent, "bias", None)
    reset, current = layer.reset_mechanism, kind == "Synaptic"
    decay = layer.beta.detach().clamp(0, 1)
    decay_i = layer.alpha.detach().clamp(0, 1) if current else None
    if integrator:
        return _Neurons(decay, layer.threshold, "none", decay_i)
    if reset == "zero" and kind != "Leaky" and layer.reset_delay:
        raise ValueError(
            f'{name}: reset_mechanism="zero" with reset_delay=True drops the input of the step after a spike, which no chip '
            "does: train with reset_delay=False."
        )
    if reset != "zero" and current:
        raise ValueError(
            f'{name}: reset_mechanism="{reset}" with a current of its own has no counterpart: a chip resets a voltage to zero, '
            'train with reset_mechanism="zero" and reset_delay=False, or use Leaky.'
        )
    cancelled: Tensor | float = 1.0 if reset == "none" else 0.0
    if reset == "subtract" and not layer.reset_delay:
        cancelled = 1 - decay  # it leaks from the step of the spike on
    ours = "zero" if reset == "zero" else "subtract"
    return _Neurons(decay, layer.threshold, ours, decay_i, w_rec=w_rec, bias=bias, cancelled=cancelled)


def _norse(name: str, layer: Any, integrator: bool) -> _Neurons:
    """LIF, LIFRecurrent, LIFBox and the integrators of norse."""
    kind = type(layer).__name__.removesuffix("Cell")
    if not integrator and kind not in ("LIF", "LIFRecurrent", "LIFBox"):
        raise TypeError(f"{name} has no counterpart: use LIF, LIFRecurrent, LIFBox, or LI as the last layer.")
    p = layer.p
    leak = torch.as_tensor(p.v_leak)
    gain = (layer.dt * torch.as_tensor(p.tau_mem_inv)).double()  # a share of 1 - gain in float32 is another
    decay_i = None if kind.endswith("Box") else 1 - (layer.dt * torch.as_tensor(p.tau_syn_inv)).double()
    if integrator:
        if leak.any():
            raise ValueError(f"{name}: its v_leak is {leak}: a chip leaks to 0, train with v_leak=0.")
        return _Neurons(1 - gain, torch.ones(()), "none", decay_i, gain)
    v_reset = torch.as_tensor(p.v_reset)
    if (leak != v_reset).any():
        raise ValueError(
            f"{name}: v_reset is {v_reset} and v_leak {leak}: a chip resets to rest, train with both equal."
        )
    return _Neurons(1 - gain, p.v_th - leak, "zero", decay_i, gain, getattr(layer, "recurrent_weights", 0.0))


def _spikingjelly(name: str, layer: Any, integrator: bool) -> _Neurons:
    """LIFNode and ParametricLIFNode of spikingjelly, alone or in a LinearRecurrentContainer."""
    recurrent = hasattr(layer, "rc")
    node = layer.sub_module if recurrent else layer
    if type(node).__name__ not in ("LIFNode", "ParametricLIFNode"):
        raise TypeError(f"{name} has no counterpart: use LIFNode or ParametricLIFNode, which leak.")
    moved = torch.sigmoid(node.w.double()) if hasattr(node, "w") else torch.tensor(1 / node.tau, dtype=torch.float64)
    return _Neurons(
        1 - moved,
        torch.tensor(node.v_threshold - (node.v_reset or 0.0), dtype=torch.float64),
        "subtract" if node.v_reset is None else "zero",
        gain=moved if node.decay_input else 1.0,
        w_rec=layer.rc.weight[:, -layer.sub_module_out_features :] if recurrent else 0.0,
        bias=layer.rc.bias if recurrent else None,
        cancelled=moved if node.v_reset is None else 0.0,
        fires_at_threshold=True,
    )


def integrates(network: Network) -> bool:
    """True if the readout is a leaky integrator: the last cell, with nothing after it.

    Raises:
        TypeError: if an integrator is followed by something, or the readout is not linear.
    """
    for i, cell in enumerate(network.cells, start=1):
        if cell.integrator and (i == 1 or i < len(network.cells)):
            raise TypeError(f"layer {i} is an integrator, which sends no spikes: it can only be the last of several.")
    readout: Any = network.readout
    if not network.cells[-1].integrator:
        if not isinstance(readout, nn.Linear):
            raise TypeError(f"the readout must be linear, got {type(readout).__name__}.")
        return False
    weight = getattr(readout, "weight", torch.zeros(1, 1))
    identity = torch.equal(weight, torch.eye(*weight.shape).to(weight)) and getattr(readout, "bias", None) is None
    if not isinstance(readout, nn.Identity) and not identity:
        raise TypeError(f"after an integrator the readout must be the identity, got {readout}.")
    return True


def delayed(network: Network) -> Network:
    """The same network with ``layer_delay=1``: layer l, counted from 1, spikes l steps later.

    Its logits come as many steps later as it has layers, an LI included. Biases must not act before the input arrives:
    if there are any, each layer gets one neuron more, the last, whose synapses are the biases. It fires in every step
    from the one on in which the layer below could first fire, woken by the one below. The bias of an LI comes from a
    second such neuron, which the first one wakes.

    Args:
        network: LIF and CubaLIF layers (without biases any), and a linear readout or an LI.

    Raises:
        TypeError: if there are biases and a layer is another cell, or the readout is not linear.
    """
    leaky = integrates(network)
    if network.layer_delay:
        return network
    cells: list[Any] = [cell.copy() for cell in network.cells]
    readout: Any = copy.deepcopy(network.readout)
    tail = cells.pop() if leaky else None
    weight, bias = (readout.weight, readout.bias) if tail is None else (tail.w_in, tail.b_v)
    bias = torch.zeros(1) if bias is None else bias
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        if bias.any() or any(cell.b_v.any() for cell in cells if hasattr(cell, "b_v")):
            count = [1] * (len(cells) - 1) + [1 + (leaky and bool(bias.any()))]
            cells = [_with_bias_neurons(f"layer {i + 1}", cell, i > 0, count[i]) for i, cell in enumerate(cells)]
            weight = pad(weight, (0, count[-1]))
            weight[:, -1] = bias
        if tail is not None:
            tail.n_in, tail.w_in = weight.shape[1], nn.Parameter(weight)
            tail.b_v.zero_()
            return Network([*cells, tail], readout, layer_delay=1)
        plain = nn.Linear(weight.shape[1], network.n_out, bias=False, **network.dtype_and_device)
        plain.weight.copy_(weight)
        return Network(cells, plain, layer_delay=1)


def _with_bias_neurons(name: str, cell: Cell, wider: bool, count: int) -> Cell:
    """A cell with `count` neurons more; if `wider`, the one of the layer below wakes the first."""
    kind: Any = exported_kind(name, cell)
    if kind not in (LIF, CubaLIF):
        raise TypeError(f"{name} is a {type(cell).__name__}: only biases of LIF and CubaLIF layers can be delayed.")
    old: Any = cell
    n, like, zero = cell.n_hidden, cell.dtype_and_device, old.reset.name == "zero"
    made: Any = kind(cell.n_in + wider, n + count, reset="zero" if zero else "subtract").to(**like)
    for matrix, before in ((made.w_in, old.w_in), (made.w_rec, old.w_rec)):
        matrix.zero_()
        matrix[:n, : before.shape[1]] = before
    made.w_rec[:n, n] = old.b_v
    if wider:
        made.w_in[n, -1] = FIRES
    made.w_rec[n:, n:] = torch.eye(count) * (not zero)  # which cancels the reset
    made.w_rec[n + 1 :, n] = FIRES  # the second is woken by the first
    made.b_v.zero_()
    made.b_v[n] = 0.0 if wider else FIRES
    made.theta.copy_(torch.cat((old.theta, torch.ones(count, **like))))
    made.spike = old.spike
    for tau in ("tau_v", "tau_i") if kind is CubaLIF else ("tau_v",):
        setattr(made, tau, torch.cat((getattr(old, tau), torch.full((count,), NO_MEMORY, **like))))
    return made
