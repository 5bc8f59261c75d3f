"""What can be exported: LIF, CubaLIF, ALIF and LI; networks of snnTorch, norse and spikingjelly in these cells.

What each library computes in a step, with z the spikes and I the layer's input:

- snnTorch's Leaky: mem = beta mem + I - threshold z, or mem = beta (1 - z) mem + I: our LIF.
- snnTorch's Synaptic and norse's LIF: a current, then the voltage: our CubaLIF. norse's voltage takes the share dt
  tau_mem_inv of the current, which is a factor of all weights.
- norse's LI, and as the last layer snnTorch's Leaky and Synaptic without reset: our LI.
- spikingjelly's LIFNode: v = (1 - 1/tau) v + x / tau, or + x, above its rest: our LIF. It resets in the step in which
  it fires, so that what it subtracts leaks, and it also fires at its threshold.
- snnTorch's layers but Leaky, with reset to zero and ``reset_delay=True``, blank the whole step after a spike, its
  input included. Neither Loihi's CUBA nor NIR has that.
"""

import copy
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import pad

from neurolsc.interop.prepared import network_of
from neurolsc.interop.wrapped import WrappedCell
from neurolsc.io import CONVERTERS, check_finite
from neurolsc.network import Network, as_network
from neurolsc.neurons import ALIF, LI, LIF, Cell, CubaLIF
from neurolsc.neurons.cell import NO_STEP, step_of
from neurolsc.surroundings import eval_mode, without_inference_mode

EXPORTED = (LIF, CubaLIF, ALIF, LI)
AFFINE = (nn.Linear, nn.Flatten, nn.Unflatten, nn.Identity, nn.Dropout, nn.BatchNorm1d)  # affine in evaluation mode
NO_MEMORY = 1e-3  # a time constant in steps so short that exp(-1/tau) is 0
FIRES = 1.04  # input of a bias neuron in each step, in thresholds: above 1 even after rounding


def exported_kind(cell: Cell) -> type[Cell] | None:
    """Return which of LIF, CubaLIF, ALIF and LI defines the cell's step; None if none of them does."""
    step = step_of(type(cell))
    # an attribute of the instance that hides one of the class, such as a patched `update`, may change the step
    overridden = any(hasattr(type(cell), name) and name not in NO_STEP for name in vars(cell))
    if step in EXPORTED and not overridden:
        return step
    return None


def exportable(network: Network) -> Network:
    """Return the network in our own cells, if a chip and NIR have its neurons and its readout; else raise an error.

    Raises:
        TypeError: if a layer or the readout has no counterpart; the message names the layer.
        ValueError: if a number or a setting has no counterpart; likewise.
    """
    network = from_wrapped(network)
    check_finite(network.state_dict())
    refused: list[TypeError | ValueError] = []
    for i, cell in enumerate(network.cells, start=1):
        error = _refused_cell(i, cell, last=len(network.cells))
        if error is not None:
            refused.append(error)
    readout: Any = network.readout
    if not network.cells[-1].integrator:
        if not isinstance(readout, nn.Linear):
            refused.append(TypeError(f"the readout must be linear, got {type(readout).__name__}."))
    elif not _is_identity(readout):
        refused.append(TypeError(f"after an integrator the readout must be the identity, got {readout}."))
    _raise(refused)
    return network


def _is_identity(readout: nn.Module) -> bool:
    """True for an Identity, and for a Linear that has its weight and no bias."""
    if isinstance(readout, nn.Identity):
        return True
    if not isinstance(readout, nn.Linear) or readout.bias is not None:
        return False
    return torch.equal(readout.weight, torch.eye(readout.in_features).to(readout.weight))


def _refused_cell(i: int, cell: Any, *, last: int) -> TypeError | ValueError | None:
    """Return the error if cell i of `last`, counted from 1, cannot be exported; else None."""
    kind = exported_kind(cell)
    if kind is None:
        # a subclass of an exported cell that changes the step
        but = "".join(f", whose step is not that of {k.__name__}" for k in EXPORTED if isinstance(cell, k))
        names = ", ".join(k.__name__ for k in EXPORTED)
        return TypeError(f"layer {i} is a {type(cell).__name__}{but}; only {names} can be exported.")
    if kind is LI:
        if i == 1 or i < last:
            return TypeError(f"layer {i} is an integrator, which sends no spikes: it must be the last of several.")
        return None
    wanted = {LIF: cell.reset.name, CubaLIF: "zero", ALIF: "static"}[kind]  # a LIF may have any reset
    if cell.reset.name != wanted:
        name = f"{kind.__name__} with reset={cell.reset.name!r}"
        return ValueError(f"layer {i}: {name} has no counterpart; train with reset={wanted!r}.")
    if kind is ALIF:
        theta = cell.theta_rest
    else:
        theta = cell.theta
    if not (theta > 0).all():
        cure = ""
        if kind is ALIF:
            cure = " Train neurolsc.ALIFPositive in place of ALIF+ or ALIF±."
        return ValueError(f"layer {i}: thresholds must be positive, got {theta.min():g}.{cure}")
    return None


def _raise(errors: list[TypeError | ValueError]) -> None:
    """Raise all errors as one, a line each, a TypeError if any of them is; without errors do nothing."""
    if len(errors) == 1:  # it keeps its traceback
        raise errors[0]
    if errors:
        kind = ValueError
        if any(isinstance(error, TypeError) for error in errors):
            kind = TypeError
        raise kind("\n".join(map(str, errors)))


def refusals(net: nn.Module, x: Any = None) -> tuple[str, ...]:
    """List what :func:`to_netx` and :func:`to_nir` would refuse of a network, before it is trained; a line each.

    The values of weights and thresholds are not checked: only after training it is known whether integers hold them.

    Args:
        net: a network, or a module of snnTorch, norse or spikingjelly.
        x: an example of what the module takes, as for :func:`to_nir`.

    Raises:
        TypeError: if the module cannot be wrapped.
        ValueError: likewise.

    Example:
        >>> from neurolsc import ALIFPlus, LIF
        >>> print(*refusals(Network([LIF(8, 4), ALIFPlus(4, 4)], n_out=2)))
        layer 2: ALIF with reset='subtract' has no counterpart; train with reset='static'.
    """
    network = network_of(net, x)
    try:
        exportable(network)
    except (TypeError, ValueError) as error:
        return tuple(str(error).splitlines())
    return ()


class _Neurons(NamedTuple):
    """A layer's neurons in the terms of our cells, each value a number or (n_hidden,)."""

    decay_v: Tensor  # share of its voltage that a neuron retains in a step
    threshold: Tensor  # above the potential at rest
    reset: Literal["subtract", "zero", "none"]  # none: they never fire, and send their voltage
    decay_i: Tensor | None = None  # share of its current that a neuron retains; None: it has no current
    gain: Tensor | float = 1.0  # factor on all that a neuron reads: its input, bias and recurrence
    w_rec: Tensor | float = 0.0  # (n_hidden, n_hidden); a number or (n_hidden,) if each neuron reads only itself
    bias: Tensor | None = None  # added to the input before the gain; None: 0
    cancelled: Tensor | float = 0.0  # share of the threshold that our cells subtract at a spike, and these do not
    fires_at_threshold: bool = False  # True: spikes at v = threshold as well; ours spike above it only


@without_inference_mode()
def from_wrapped(network: Network) -> Network:
    """Return the same network in our own cells: layer by layer, with the same spikes.

    Linear layers before a neuron become its input weights, with Flatten, Dropout and BatchNorm1d in evaluation folded
    in. A final Linear becomes the readout, and a final leaky integrator becomes an LI. Surrogates become the default.

    Args:
        network: what :func:`neurolsc.wrap` returned. A network of our own cells is returned as it is.

    Raises:
        TypeError: if a layer or module has no counterpart; the message names it.
        ValueError: if a setting has no counterpart; the message says what to change.
    """
    network = as_network(network)
    if not any(isinstance(cell, WrappedCell) for cell in network.cells):
        return network
    like = network.dtype_and_device
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        cells: list[Cell] = []
        refused: list[TypeError | ValueError] = []
        for i, cell in enumerate(network.cells, start=1):
            try:
                cells.append(_our_cell(f"layer {i}", cell))
            except (TypeError, ValueError) as error:  # all layers that are refused are named at once
                refused.append(error)
        shape = (network.cells[-1].n_hidden,)
        weight_and_bias: tuple[Tensor, Tensor] | None = None
        try:
            weight_and_bias = _affine("the readout", network.readout, shape, **like)
        except TypeError as error:
            refused.append(error)
        _raise(refused)
        assert weight_and_bias is not None
        weight, bias = weight_and_bias
        readout = nn.Linear(weight.shape[1], weight.shape[0], bias=bool(bias.any()), **like)
        readout.weight.copy_(weight)
        if readout.bias is not None:
            readout.bias.copy_(bias)
        # a readout without parameters, such as Identity, is not trained as a Linear either
        readout.requires_grad_(bool(list(network.readout.parameters())))
        return Network(cells, readout, layer_delay=network.layer_delay)  # type: ignore[arg-type]


def _saved(network: Network) -> Network:
    """Return the network as :func:`neurolsc.save` writes it: in our own cells."""
    try:
        return from_wrapped(network)
    except (TypeError, ValueError) as error:
        cure = "A file cannot describe this network: save the module that was wrapped, neurolsc.save(net, path)."
        raise TypeError(f"{error} {cure}") from error


CONVERTERS.append(_saved)  # `neurolsc.save` calls it


def _our_cell(name: str, cell: Cell) -> Cell:
    """Return a cell of ours that sends the same spikes as a wrapped cell, or a copy of a cell that is ours.

    `name` says in errors which layer it is.
    """
    if not isinstance(cell, WrappedCell):
        return cell.copy()
    like = cell.dtype_and_device
    layer = cell.layer
    n = cell.n_hidden
    library = type(layer).__module__.partition(".")[0]
    kind = type(layer).__name__
    describe = {"snntorch": _snntorch, "norse": _norse, "spikingjelly": _spikingjelly}.get(library)
    if describe is None:
        raise TypeError(f"{name} is a {library} {kind}, which has no counterpart: use LIF or ALIF of neurolsc.")
    weight, bias = _affine(f"before {name}", cell.before, cell.input_shape, **like)
    name = f"{name} ({library} {kind})"
    neurons = describe(name, layer, cell.integrator)
    # input weights of the layer itself: of norse's recurrent layers, and of spikingjelly's LinearRecurrentContainer
    inner = getattr(layer, "input_weights", getattr(cell, "w_in", None))
    if inner is not None:
        w: Tensor = inner.detach().to(**like)
        weight = w @ weight
        bias = w @ bias

    def of_each_neuron(value: Any) -> Tensor:
        return torch.as_tensor(value).detach().to(**like).expand(n)

    gain = of_each_neuron(neurons.gain)

    def time_constant(decay: Any) -> Tensor:
        """Return tau in steps (n,) of neurons that retain this share of a state in a step."""
        retained = of_each_neuron(decay).double()
        if not ((retained >= 0) & (retained < 1)).all():
            raise ValueError(f"{name}: a state retains {retained.max():g} of itself in a step, wanted 0 to < 1.")
        return (-1 / retained.log()).clamp(min=NO_MEMORY).to(gain.dtype)

    if neurons.reset == "none":
        ours: Any = LI(cell.n_in, n)
    else:
        ours = (LIF if neurons.decay_i is None else CubaLIF)(cell.n_in, n, reset=neurons.reset)
    ours = ours.to(**like)
    ours.w_in.copy_(weight * gain.unsqueeze(1))
    if neurons.bias is not None:
        bias = bias + of_each_neuron(neurons.bias)
    ours.b_v.copy_(gain * bias)
    ours.tau_v = time_constant(neurons.decay_v)
    if hasattr(ours, "tau_i"):
        ours.tau_i = time_constant(0.0 if neurons.decay_i is None else neurons.decay_i)
    if isinstance(ours, LI):  # without spikes, threshold and recurrence
        return ours
    theta = of_each_neuron(neurons.threshold)
    if neurons.fires_at_threshold:  # ours fire above a threshold only: the next lower number lets them fire at theta
        theta = torch.nextafter(theta, torch.zeros_like(theta))
    w_rec = torch.as_tensor(neurons.w_rec).detach().to(**like)
    if w_rec.ndim < 2:
        w_rec = torch.diag(of_each_neuron(w_rec))
    # a neuron of ours subtracts the whole threshold at a spike: its weight to itself adds back what it should keep
    kept = torch.diag(of_each_neuron(neurons.cancelled) * theta)
    ours.w_rec.copy_(w_rec * gain.unsqueeze(1) + kept)
    ours.theta.copy_(theta)
    return ours


def _affine(name: str, module: nn.Module, shape: tuple[int, ...], **like: Any) -> tuple[Tensor, Tensor]:
    """Return the matrix (n_out, n_in) and the bias (n_out,) that affine modules compute together.

    They are found by passing 0 and the unit vectors through the modules in float64.

    Args:
        name: where the modules stand, for errors.
        module: the modules.
        shape: shape of one sample of their input, n_in numbers.
        like: dtype and device of what is returned.
    """
    for path, part in module.named_modules():
        if "parametrizations" in path.split("."):  # such as weight_norm, which computes the weight of a module
            continue
        if not isinstance(part, AFFINE) and not list(part.children()) and not isinstance(part, nn.Sequential):
            known = ", ".join(kind.__name__ for kind in AFFINE)
            raise TypeError(f"{name}: {type(part).__name__} cannot be exported; a layer's weights are dense: {known}.")
    n = int(torch.Size(shape).numel())
    tensors = {k: v.detach().cpu().double() for k, v in module.state_dict().items() if v.is_floating_point()}
    zero_and_units = torch.cat((torch.zeros(1, n), torch.eye(n))).double().view(-1, *shape)
    with eval_mode(module):
        out = functional_call(module, tensors, (zero_and_units,)).flatten(1)
    bias = out[0]
    weight = (out[1:] - bias).T
    return weight.to(**like), bias.to(**like)


def _snntorch(name: str, layer: Any, integrator: bool) -> _Neurons:
    """Describe a Leaky, RLeaky or Synaptic of snnTorch; refuse other layers, and settings without a counterpart.

    With `integrator` the layer's membrane is read in place of its spikes.
    """
    kind = type(layer).__name__
    reset = layer.reset_mechanism
    recurrent = getattr(layer, "recurrent", None)
    if kind not in ("Leaky", "RLeaky", "Synaptic") or isinstance(recurrent, nn.Conv2d):
        raise TypeError(f"{name} has no counterpart: use Leaky, RLeaky with linear_features= or Synaptic.")
    if (layer.graded_spikes_factor != 1).any() or layer.inhibition or layer.state_quant:
        raise ValueError(f"{name}: graded spikes, inhibition and state_quant have no counterpart: train without them.")
    w_rec = getattr(recurrent, "weight", getattr(recurrent, "V", 0.0))  # of a Linear, one to one, or no recurrence
    bias = getattr(recurrent, "bias", None)
    decay_i = None
    if kind == "Synaptic":
        decay_i = layer.alpha.detach().clamp(0, 1)  # as snnTorch clamps alpha and beta in each step
    neurons = _Neurons(
        decay_v=layer.beta.detach().clamp(0, 1),
        threshold=layer.threshold,
        reset="none",
        decay_i=decay_i,
        w_rec=w_rec,
        bias=bias,
    )
    if integrator:
        if reset != "none":
            raise ValueError(
                f'{name}: its membrane is read, and its spikes reset it: train with reset_mechanism="none".'
            )
        return neurons
    if reset == "zero":
        if kind != "Leaky" and layer.reset_delay:
            raise ValueError(
                f'{name}: reset_mechanism="zero" with reset_delay=True drops the input of the step after a spike, which '
                "no chip does: train with reset_delay=False."
            )
        return neurons._replace(reset="zero")
    if kind == "Synaptic":
        raise ValueError(
            f'{name}: with a current of its own a chip resets the voltage to zero: train with reset_mechanism="zero" and '
            "reset_delay=False, or use Leaky."
        )
    if reset == "subtract" and not layer.reset_delay:
        raise ValueError(f"{name}: it subtracts twice from a high membrane: train with reset_delay=True.")
    # without a reset it is a LIF by subtraction whose recurrent weights add back all that a spike subtracts
    return neurons._replace(reset="subtract", cancelled=float(reset == "none"))


def _norse(name: str, layer: Any, integrator: bool) -> _Neurons:
    """Describe a LIF, LIFRecurrent or LIFBox of norse, or with `integrator` a layer whose voltage is read."""
    kind = type(layer).__name__.removesuffix("Cell")
    p = layer.p
    if not integrator and kind not in ("LIF", "LIFRecurrent", "LIFBox"):
        raise TypeError(f"{name} has no counterpart: use LIF, LIFRecurrent, LIFBox, or LI as the last layer.")
    v_leak = torch.as_tensor(p.v_leak)  # the potential at rest
    wanted = torch.as_tensor(0.0 if integrator else p.v_reset)
    if (v_leak != wanted).any():
        raise ValueError(
            f"{name}: v_leak is {v_leak}, wanted {wanted}, {'0' if integrator else 'its v_reset'}, as on a chip."
        )
    gain = (layer.dt * torch.as_tensor(p.tau_mem_inv)).double()  # in float32 1 - gain would be rounded
    decay_i = None
    if not kind.endswith("Box"):  # a LIFBox has no current
        decay_i = 1 - (layer.dt * torch.as_tensor(p.tau_syn_inv)).double()
    if integrator:
        return _Neurons(decay_v=1 - gain, threshold=torch.ones(()), reset="none", decay_i=decay_i, gain=gain)
    w_rec = getattr(layer, "recurrent_weights", 0.0)
    return _Neurons(decay_v=1 - gain, threshold=p.v_th - v_leak, reset="zero", decay_i=decay_i, gain=gain, w_rec=w_rec)


def _spikingjelly(name: str, layer: Any, integrator: bool) -> _Neurons:
    """Describe a LIFNode or ParametricLIFNode of spikingjelly, alone or in a LinearRecurrentContainer.

    Its spikes are always read, so that `integrator` is not used.
    """
    recurrent = hasattr(layer, "rc")
    node = layer.sub_module if recurrent else layer
    if type(node).__name__ not in ("LIFNode", "ParametricLIFNode"):
        raise TypeError(f"{name} has no counterpart: use LIFNode or ParametricLIFNode, which leak.")
    # leak: the share of its distance from rest that a voltage loses in a step
    if hasattr(node, "w"):  # a ParametricLIFNode, which trains w
        leak = torch.sigmoid(node.w.double())
    else:
        leak = 1 / torch.as_tensor(node.tau, dtype=torch.float64)
    subtracts = node.v_reset is None
    rest = 0.0 if subtracts else node.v_reset
    return _Neurons(
        decay_v=1 - leak,
        threshold=torch.as_tensor(node.v_threshold - rest, dtype=torch.float64),
        reset="subtract" if subtracts else "zero",
        gain=leak if node.decay_input else 1.0,
        w_rec=layer.rc.weight[:, -layer.sub_module_out_features :] if recurrent else 0.0,  # the columns of its spikes
        bias=layer.rc.bias if recurrent else None,
        cancelled=leak if subtracts else 0.0,  # it subtracts in the step that fires, and what it subtracts leaks
        fires_at_threshold=True,
    )


def delayed(network: Network) -> Network:
    """Return the same network in our own cells with ``layer_delay=1``: layer l, counted from 1, spikes l steps later.

    Its logits come as many steps later as it has layers, an LI included. A bias must not act before the delayed input
    arrives. So if there is a bias, each layer gets a bias neuron, whose synapses are the biases. That of the first
    layer fires in every step; that of a layer above is switched on by the bias neuron of the layer below.

    The bias of an LI at the end must come one step later still, as the LI is one more layer and remembers what comes
    too early. The layer below sends it from a second bias neuron, which the first one switches on. A linear readout
    remembers nothing, and needs no second bias neuron.

    :class:`neurolsc.export.QuantizationAware` trains the synapses of bias neurons, which are the biases, but not what
    makes them fire. :func:`neurolsc.save` keeps them as neurons like others.

    Args:
        network: what :func:`quantize` accepts, biases of LIF and CubaLIF only. With ``layer_delay=1`` it is returned as
            it is.

    Raises:
        TypeError: if a layer or the readout cannot be exported, or there are biases and a layer is an ALIF.
        ValueError: if a number or a setting cannot be exported.
    """
    network = as_network(network)
    if network.layer_delay:
        return network
    network = exportable(network)
    like = network.dtype_and_device
    cells: list[Any] = [cell.copy() for cell in network.cells]
    li: Any = cells.pop() if network.cells[-1].integrator else None
    # the weights and biases through which the last layer that spikes is read
    if li is None:
        readout: Any = network.readout
        weight = readout.weight
        bias = readout.bias
    else:
        weight = li.w_in
        bias = li.b_v
    if bias is None:
        bias = torch.zeros(1)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):  # new layers draw weights, which are then replaced
        if bias.any() or any(cell.get_buffer("b_v").any() for cell in cells):
            last = len(cells) - 1
            second = li is not None and bool(bias.any())
            cells = [_with_bias_neurons(cell, i, second=second and i == last) for i, cell in enumerate(cells)]
            added = cells[last].n_hidden - weight.shape[1]
            weight = pad(weight, (0, added))
            weight[:, -1] = bias  # from the last layer's bias neuron, or from its second one
        if li is None:
            readout = nn.Linear(weight.shape[1], network.n_out, bias=False, **like)
            readout.weight.copy_(weight)
            return Network(cells, readout, layer_delay=1)
        li.n_in = weight.shape[1]
        li.w_in = nn.Parameter(weight)
        li.b_v.zero_()
        return Network([*cells, li], copy.deepcopy(network.readout), layer_delay=1)


def _with_bias_neurons(cell: Any, layer: int, *, second: bool) -> Any:
    """Return a LIF or CubaLIF whose biases are the synapses of one more neuron, its last or last but one.

    Args:
        cell: the layer.
        layer: its place, from 0. The bias neuron of layer 0 fires in every step; others read one input more, which is
            the bias neuron of the layer below, and fire one step after it.
        second: add, as the last neuron, a second bias neuron, which fires one step after the first and has no synapse
            to other neurons of the layer.

    Raises:
        TypeError: if the layer is an ALIF.
    """
    kind: Any = exported_kind(cell)
    if kind is ALIF:
        raise TypeError(f"layer {layer + 1} is an ALIF: only biases of LIF and CubaLIF layers can be delayed.")
    n = cell.n_hidden
    added = 2 if second else 1
    n_in = cell.n_in
    if layer > 0:
        n_in += 1
    resets_to_zero = cell.reset.name == "zero"
    extended = kind(n_in, n + added, reset="zero" if resets_to_zero else "subtract").to(**cell.dtype_and_device)
    for matrix, before in ((extended.w_in, cell.w_in), (extended.w_rec, cell.w_rec)):
        matrix.zero_()
        matrix[:n, : before.shape[1]] = before
    extended.w_rec[:n, n] = cell.b_v
    if not resets_to_zero:
        extended.w_rec[n:, n:] = torch.eye(added)  # cancels the threshold of 1 that the reset subtracts
    extended.w_rec[n + 1 :, n] = FIRES  # the first bias neuron switches on the second, if there is one
    extended.b_v.zero_()
    if layer > 0:
        extended.w_in[n, -1] = FIRES
    else:
        extended.b_v[n] = FIRES
    extended.theta.copy_(pad(cell.theta, (0, added), value=1.0))
    extended.spike = cell.spike
    for tau in ("tau_v", "tau_i") if kind is CubaLIF else ("tau_v",):
        setattr(extended, tau, pad(getattr(cell, tau), (0, added), value=NO_MEMORY))
    extended.bias_rows = {name: values.detach()[n:].clone() for name, values in extended.named_parameters()}
    return extended


def bias_neurons(cell: Cell) -> int:
    """Return how many neurons, the last ones of a cell, :func:`delayed` has added to stand for biases."""
    rows: dict[str, Tensor] = getattr(cell, "bias_rows", {})
    return len(rows["w_in"]) if rows else 0


@torch.no_grad()
def restore_bias_neurons(cell: Cell) -> None:
    """Give the bias neurons of a cell back, in place, the parameters with which they fire at every step.

    An optimizer's weight decay, or a bound on the weights, changes also what has no gradient. What is right is not
    written, as a gradient that is yet to be computed may need it.
    """
    rows: dict[str, Tensor] = getattr(cell, "bias_rows", {})
    for name, wanted in rows.items():
        present = cell.get_parameter(name)[-len(wanted) :]
        if not torch.equal(present, wanted.to(present)):
            present.copy_(wanted)
