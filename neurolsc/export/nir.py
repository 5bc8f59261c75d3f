r"""Networks written as graphs of NIR, the neuromorphic intermediate representation, and read.

A node of NIR is a differential equation in seconds, of which readers take Euler steps of dt. A node with tau = dt / (1
- a) retains the share a of its state in a step; our cells retain a = exp(-1 / tau_v), with tau_v in steps.

- LIF is a ``CubaLIF`` with one time constant equal to dt. With reset to zero it is that of the current. With reset by
  subtraction it is that of the voltage, and the diagonal of the recurrent weights holds minus the threshold.
- ALIF with a static reset is a sub-graph. With A the rise of the threshold above its rest,

  .. math::
      v[t] &= a\, v[t-1] + W_{in} x[t] + b_v + (W_{rec} - \mathrm{diag}\,\vartheta_0)\, z[t-1] \\
      -A[t] &= -a_\vartheta A[t-1] - \beta z[t-1], \quad z[t] = H(v[t] - A[t] - \vartheta_0)

  v and -A are an ``LI`` each, and a ``Threshold`` reads their sum.
- A LIF without leak and with reset to zero is an ``IF`` with r = 1 / dt.
- LI, the readout, is a ``CubaLI``, or an ``LI`` if it has no current.

Source: Pedersen et al., Nature Communications 15, 8122 (2024), for the primitives; nir 1.0 and norse 1.1 for the steps.
"""

import io
from functools import cache
from os import PathLike, fspath
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from neurolsc.export.wrapped import NO_MEMORY, exportable, exported_kind
from neurolsc.hdf5 import HDF5
from neurolsc.interop.prepared import network_of
from neurolsc.interop.wrapped import warn_of
from neurolsc.io import atomic_write, check_finite, refusing
from neurolsc.network import Network
from neurolsc.neurons import ALIF, LI, LIF, ALIFPlus, CubaLIF
from neurolsc.neurons.cell import CELLS, step_of
from neurolsc.neurons.parameters import set_value
from neurolsc.surroundings import without_inference_mode
from neurolsc.validation import number

if TYPE_CHECKING:
    import nir

ALIF_EDGES = {
    *(("input", "membrane"), ("membrane", "threshold"), ("threshold", "adaptation"), ("adaptation", "threshold")),
    *(("threshold", "w_rec"), ("w_rec", "membrane"), ("threshold", "output")),
}
CLOSE = 1e-6  # relative difference that counts as rounding; other programs store float32
NO_LEAK = 1e30  # a time constant in steps so long that exp(-1/tau) is 1, and which a file can hold
NOT_YET = {"Conv1d", "Conv2d", "SumPool2d", "AvgPool2d", "Scale", "Delay"}  # nodes of NIR that cannot be read
MOST_NAMES = 8  # of nodes, in print
COPIES = 24  # bytes of memory of a weight while a layer is made: as float64 twice, as float32 twice


def load_nir() -> ModuleType:
    """Return the package nir, or say how to install it."""
    try:
        import nir
    except ImportError as error:
        raise ImportError("export to and from NIR needs the package nir: pip install 'nir>=1.0.8'.") from error
    return nir


def to_nir(
    net: nn.Module,
    path: str | PathLike[str] | None = None,
    x: Any = None,
    *,
    dt: float,
    golden: Tensor | None = None,
) -> "nir.NIRGraph":
    """Describe a network as a graph of NIR, and write it to a file if there is a path.

    Nodes are ``w_in_1``, ``lif_1`` (or the sub-graph ``alif_1``), ``w_rec_1`` and so on, ``readout`` (or ``li_3``). In
    NIR recurrent connections have a latency of one step, all others none. ``layer_delay=1`` delays the input of every
    layer, also of the first. So in other readers layer l (counted from 1) spikes l steps earlier. Metadata let
    :func:`from_nir` restore every bit; surrogates are left out.

    Args:
        net: LIF layers with any reset, CubaLIF with reset to zero, ALIF layers with ``reset="static"``, and a linear
            readout or an LI at the end; or a module of snnTorch, norse or spikingjelly that has such layers.
        path: a file to write, usually ``*.nir``; written whole or not at all. Without it x may come second:
            ``to_nir(net, x, dt=1e-4)``.
        x: an example of what the module takes, which shows the order of its layers, as for
            :func:`neurolsc.interop.prepared.prepare`. Without x it must be their order of definition.
        dt: seconds per time step. snnTorch's reader supposes 1e-4.
        golden: samples (T, B, n_in) for checks of another reader. They, the spikes of each layer and the logits,
            without latency between layers, are written to ``<path>.data`` for ``nir.read_data``; a path is needed.

    Raises:
        TypeError: if a layer or the readout cannot be exported.
        ValueError: if something cannot be expressed; the message names the layer and the number.
        ImportError: if nir is not installed.
        OSError: if the file cannot be written.

    Example:
        >>> from neurolsc import LIF
        >>> graph = to_nir(Network([LIF(30, 8, reset="zero")], n_out=4), dt=1e-4)
        >>> list(graph.nodes)
        ['input', 'w_in_1', 'lif_1', 'w_rec_1', 'readout', 'output']
    """
    nir = load_nir()
    dt = number("dt", dt)
    if x is None and not isinstance(path, str | PathLike | None):  # to_nir(net, x, dt=dt): the second argument is x
        path, x = None, path
    if golden is not None and path is None:
        raise ValueError("golden samples are written beside the file: give a path as well.")
    network = exportable(network_of(net, x))
    if golden is not None and (golden.ndim != 3 or golden.shape[2] != network.n_in):
        raise ValueError(f"golden must have shape (T, B, {network.n_in}), got {tuple(golden.shape)}.")
    nodes: dict[str, Any] = {"input": nir.Input(np.array([network.n_in]))}
    edges: list[tuple[str, str]] = []
    source = "input"
    neurons_of = list[str]()
    cell: Any
    for i, cell in enumerate(network.cells, start=1):
        name, neurons, loop = _neurons(f"layer {i}", cell, dt, network.layer_delay)
        name = f"{name}_{i}"
        nodes |= {f"w_in_{i}": _linear(cell.w_in, cell.b_v), name: neurons}
        edges += [(source, f"w_in_{i}"), (f"w_in_{i}", name)]
        if loop is not None:
            nodes[f"w_rec_{i}"] = loop
            # before the edge to the next layer: norse takes the node that it reaches last for the output
            edges += [(name, f"w_rec_{i}"), (f"w_rec_{i}", name)]
        source = name
        neurons_of.append(name)
    if not network.cells[-1].integrator:  # after an integrator the readout is the identity, and needs no node
        readout: Any = network.readout
        nodes["readout"] = _linear(readout.weight, readout.bias)
        edges.append((source, "readout"))
        source = "readout"
    nodes["output"] = nir.Output(np.array([network.n_out]))
    edges.append((source, "output"))
    notes = {"dt": dt, "layer_delay": network.layer_delay}
    graph = _short_graph_class()(nodes, edges, metadata={"neurolsc": notes})
    data = io.BytesIO()
    if golden is not None:  # before the file is written, as the run may fail
        x = golden.to_dense().to(**network.dtype_and_device)
        with torch.no_grad():
            run = Network(list(network.cells), network.readout, layer_delay=0).run(x)  # as readers of NIR run it
        values = {"input": x} | dict(zip(neurons_of, run.spikes, strict=True))
        if source == "readout":  # else run.spikes already holds the output, the voltages of an integrator
            values["output"] = run.logits
        samples = {}
        for name, value in values.items():
            batch_first = value.transpose(0, 1).cpu().numpy()
            samples[name] = nir.NIRNodeData({"output": nir.TimeGriddedData(batch_first, dt)})
        nir.write_data(data, nir.NIRGraphData(samples))
    if path is not None:
        buffer = io.BytesIO()
        nir.write(buffer, graph)
        atomic_write(path, lambda file: file.write(buffer.getvalue()))
    if golden is not None and path is not None:
        atomic_write(f"{fspath(path)}.data", lambda file: file.write(data.getvalue()))
    return graph


@cache
def _short_graph_class() -> Any:
    """Return a subclass of NIR's graph that prints as one line in place of all its arrays.

    It is made in a function, as nir may not be installed.
    """
    nir = load_nir()

    class NIRGraph(nir.NIRGraph):  # nir.write stores the name of the class, which must be NIRGraph
        def __repr__(self) -> str:
            names = list(self.nodes)
            if len(names) > MOST_NAMES:
                names = [*names[: MOST_NAMES - 2], "...", names[-1]]
            return f"NIRGraph({len(self.nodes)} nodes: {', '.join(names)}; dt={_notes(self).get('dt')} s)"

        def __reduce__(self) -> Any:  # pickle finds no class that a function made: a copy is a plain nir.NIRGraph
            return nir.dict2NIRNode, (self.to_dict(),)

    return NIRGraph


def _array(value: Tensor) -> np.ndarray:
    """Return a contiguous copy as an array."""
    return np.ascontiguousarray(value.detach().cpu().numpy()).copy()


def _linear(weight: Tensor, bias: Tensor | None = None) -> Any:
    """Return a ``Linear`` node, or an ``Affine`` node if the bias is not zero everywhere."""
    nir = load_nir()
    if bias is None or not bias.any():
        return nir.Linear(_array(weight))
    return nir.Affine(_array(weight), _array(bias))


def _neurons(layer: str, cell: Any, dt: float, layer_delay: int) -> tuple[str, Any, Any]:
    """Write a cell's neurons and recurrence as nodes.

    Args:
        layer: the layer in words, for errors.
        cell: a LIF, CubaLIF, ALIF or LI.
        dt: seconds per time step.
        layer_delay: the network's.

    Returns:
        ``"lif"``, ``"alif"`` or ``"li"``; the node of the neurons, of an ALIF a sub-graph that has its recurrence in
        it; the node of the recurrent weights, or None.
    """
    nir = load_nir()
    kind = exported_kind(cell)
    if layer_delay and cell.b_v.any():
        raise ValueError(
            f"{layer}: its bias (up to {cell.b_v.abs().max():.4g}) acts before the delayed input arrives, and NIR's "
            "readers have no latency between layers: use layer_delay=0, or no bias."
        )
    # metadata, from which `from_nir` restores what float arithmetic would round
    noted: dict[str, Any] = {name: _array(value) for name, value in cell.state_dict().items() if value.ndim == 1}
    noted["cell"] = type(cell).__name__
    metadata = {"neurolsc": noted}
    if kind is LIF and cell.reset.name == "zero" and (cell.decay_v == 1).all():  # without leak: an IF
        noted |= {"reset": "zero", "diagonal": _array(cell.w_rec.diagonal())}
        loop = None
        if cell.w_rec.any():
            loop = _linear(cell.w_rec)
        factor = np.full(cell.n_hidden, 1 / dt)  # a step of dt adds the whole input
        return "lif", nir.IF(r=factor, v_threshold=_array(cell.theta), metadata=metadata), loop
    steps: dict[str, np.ndarray] = {}  # time constants of NIR in steps, 1 / (1 - a)
    for name in ("v", "i", "theta"):
        decay = getattr(cell, f"decay_{name}", None)
        if decay is None:
            continue
        if (decay == 1).any():
            longest = getattr(cell, f"tau_{name}").max()
            raise ValueError(f"{layer}: tau_{name} reaches {longest:.3g} steps, a decay of 1 in {decay.dtype}.")
        steps[name] = 1 / (1 - _array(decay).astype(np.float64))
    membrane = steps["v"]
    one = np.ones_like(steps["v"])
    zero = np.zeros_like(steps["v"])
    # An Euler step adds dt r / tau of the input. With r = tau / dt, the time constant in steps, it adds all of the
    # input, as our cells do.
    if kind is LI:
        others = {"r": membrane, "v_leak": zero, "metadata": metadata}
        if (steps["i"] == 1).all():  # no current
            return "li", nir.LI(tau=dt * membrane, **others), None
        return "li", nir.CubaLI(tau_mem=dt * membrane, tau_syn=dt * steps["i"], w_in=steps["i"], **others), None
    if kind is ALIF:
        theta = cell.theta_rest
    else:
        theta = cell.theta
    reset = cell.reset.name
    noted |= {"reset": reset, "diagonal": _array(cell.w_rec.diagonal())}
    loop = None
    if reset != "zero" or cell.w_rec.any():
        # a reset by subtraction is a recurrent weight of each neuron to itself
        loop = _linear(cell.w_rec if reset == "zero" else cell.w_rec - torch.diag(theta))
    if kind is ALIF:
        size = np.array([cell.n_hidden])
        nodes = {
            "input": nir.Input(size),
            "membrane": nir.LI(tau=dt * membrane, r=membrane, v_leak=zero),
            "adaptation": nir.LI(tau=dt * steps["theta"], r=-_array(cell.adaptation) * steps["theta"], v_leak=zero),
            "threshold": nir.Threshold(_array(theta)),
            "w_rec": loop,
            "output": nir.Output(size),
        }
        return "alif", nir.NIRGraph(nodes, sorted(ALIF_EDGES), metadata=metadata), None
    current = steps.get("i", one)  # a LIF has no current: one with tau = 1 step retains nothing
    if reset != "zero":  # the node resets its voltage to zero, so its current is our voltage
        current = membrane
        membrane = one
    node = nir.CubaLIF(
        tau_syn=dt * current,
        w_in=current,
        tau_mem=dt * membrane,
        r=membrane,
        v_leak=zero,
        v_threshold=_array(theta),
        v_reset=zero,
        metadata=metadata,
    )
    return "lif", node, loop


@without_inference_mode()
def from_nir(
    source: "nir.NIRGraph | str | PathLike[str]", *, dt: float | None = None, layer_delay: Literal[0, 1] | None = None
) -> Network:
    """Make a network of a graph of NIR.

    A graph of :func:`to_nir` comes back with every parameter and ``layer_delay``, in its dtype. Other programs' graphs
    can be read if they are chains of ``Linear`` or ``Affine`` and ``LIF``, ``CubaLIF``, ``IF``, ``LI`` or ``CubaLI``
    nodes, of which those that fire may be recurrent. The cells take Euler steps of dt seconds, and layers read the
    layer below in the same step; ``Flatten`` changes nothing. If the graph has no readout, it is the identity.

    A node that leaves the factor on its input at 1 adds only a part of the input in a step: dt / tau_syn of it to the
    current of a ``CubaLIF``, dt of it to the voltage of an ``IF``. A ``UserWarning`` then gives the factor that adds
    all of it.

    Args:
        source: the graph, or the file that holds it.
        dt: seconds per time step, for files that do not say it: 1e-4 for files of snnTorch. norse 1.1 writes time
            constants that are too small by the factor dt: for its default dt of 1e-3 give 1e-6 here. It also leaves
            out the factors of ``LIFCell`` and ``IAFCell``: write these with :func:`to_nir`.
        layer_delay: 1 for layers that read the one below one step late, as on a chip; by default what the graph was
            written with, else 0.

    Raises:
        ValueError: if the file is damaged, dt is missing or contradicts the file, or no cell of ours computes what a
            node does; the message names the node and its type.
        TypeError: if the source is neither a graph nor a path.
        ImportError: if nir is not installed.
        OSError: if the file cannot be read.

    Example:
        >>> from neurolsc import LIF
        >>> network = Network([LIF(30, 8)], n_out=4)
        >>> again = from_nir(to_nir(network, dt=1e-4))
        >>> torch.equal(again.cells[0].w_rec, network.cells[0].w_rec)
        True
    """
    nir = load_nir()
    if dt is not None:
        dt = number("dt", dt)
    if isinstance(source, nir.NIRGraph):
        return _network(source, dt, layer_delay, memory=None)
    if not isinstance(source, str | PathLike):
        raise TypeError(f"wanted a NIRGraph or the path of a file, got {type(source).__name__}.")
    data = Path(source).read_bytes()
    with refusing(source, "damaged, or does not hold a graph of NIR"):
        with HDF5(data) as content:
            tree = content.tree("node")
        # nir's check refuses a batch axis, which other writers leave in; shapes are checked here
        graph = nir.dict2NIRNode(tree | {"type_check": False})
        if not isinstance(graph, nir.NIRGraph):
            raise ValueError(f"wanted a graph of NIR, got a {type(graph).__name__}.")
        return _network(graph, dt, layer_delay, content.memory)


def _network(graph: Any, dt: float | None, layer_delay: Literal[0, 1] | None, memory: Any) -> Network:
    """Make the network of a graph, as :func:`from_nir` describes.

    `memory` is the budget of an opened file, which refuses weights that would not fit; None for a graph in memory.
    """
    notes = _notes(graph)
    step_length = notes.get("dt", dt)
    if step_length is None:
        raise ValueError(
            "the graph does not say how long a step is: give dt in seconds (snnTorch's export takes 1e-4)."
        )
    step_length = number("dt", float(step_length))
    if dt is not None and not np.isclose(dt, step_length):
        raise ValueError(f"the graph was written with dt = {step_length:g} s, got dt = {dt:g} s.")
    if layer_delay is None:  # the argument, where given, overrides the graph: another simulator may have other delays
        layer_delay = 0
        if int(notes.get("layer_delay", 0)):
            layer_delay = 1
    nodes, edges = _without_flatten(graph)
    seen: set[str] = set()  # nodes on the way from the input so far

    def before(name: str) -> set[str]:
        return {a for a, b in edges if b == name}

    def after(name: str) -> set[str]:
        return {b for a, b in edges if a == name}

    def only_node(where: str, names: set[str], *kinds: str) -> str:
        """Return the only name in a set, and mark it as seen.

        ValueError if there is no name or more than one, if its node is of none of the kinds, or if it was seen before.
        `where` says in errors where in the graph the node is wanted.
        """
        found = sorted(names)
        if len(found) != 1 or type(nodes.get(found[0])).__name__ not in kinds or found[0] in seen:
            got = ", ".join(f"{name} ({type(nodes.get(name)).__name__})" for name in found) or "nothing"
            if len(found) == 1 and type(nodes.get(found[0])).__name__ in NOT_YET:
                raise ValueError(f"{got} cannot be read yet: layers must be dense, by Linear or Affine.")
            raise ValueError(f"wanted one {' or '.join(kinds)} {where}, got {got}: only chains of layers can be read.")
        seen.add(found[0])
        return found[0]

    def of_kind(kind: str) -> set[str]:
        return {name for name, node in nodes.items() if type(node).__name__ == kind}

    # walk along the chain: input, then weights and neurons of each layer, perhaps a readout, output
    source = only_node("in the graph", of_kind("Input"), "Input")
    output = only_node("in the graph", of_kind("Output"), "Output")
    onward = after(source)
    cells = []
    readout_node = None
    # new cells draw weights, which are then replaced: the caller's random numbers stay unused
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        while onward != {output}:
            weight = only_node(f"after {source}", onward, "Linear", "Affine")
            onward = after(weight)
            if onward == {output}:
                readout_node = nodes[weight]
                break
            source = only_node(f"after {weight}", onward, "LIF", "CubaLIF", "IF", "LI", "CubaLI", "NIRGraph")
            # a NIRGraph within the graph is an ALIF of ours, or a recurrent layer of snnTorch, which _cell refuses
            loop = before(source) - {weight}  # the node of recurrent weights, if there is one
            recurrent = None
            if loop:
                name = only_node(f"before {source}", loop, "Linear", "Affine")
                if before(name) | after(name) != {source}:
                    raise ValueError(f"{name} must lead from {source} to itself: only chains of layers can be read.")
                recurrent = nodes[name]
            onward = after(source) - loop
            cells.append(_cell(source, nodes[weight], nodes[source], recurrent, step_length, memory))
        if left := sorted(nodes.keys() - seen):
            raise ValueError(
                f"node {left[0]} ({type(nodes[left[0]]).__name__}) is on no way from the input to the output."
            )
        if not cells:
            raise ValueError("the graph has no layer of neurons.")
        n = cells[-1].n_hidden
        dtype = cells[-1].dtype_and_device["dtype"]
        if readout_node is None:
            matrix = np.eye(n)
        else:
            matrix = np.asarray(readout_node.weight)
        if matrix.ndim != 2 or matrix.shape[1] != n:
            raise ValueError(f"the weights of the readout have shape {matrix.shape}, wanted (classes, {n}).")
        bias = getattr(readout_node, "bias", None)
        readout = nn.Linear(n, len(matrix), bias=bias is not None, dtype=dtype)
        readout.weight.copy_(torch.tensor(matrix))
        if bias is not None:
            readout.bias.copy_(torch.tensor(bias))
        if readout_node is None and cells[-1].integrator:  # the identity only passes voltages on
            readout.requires_grad_(False)
        network = Network(cells, readout, layer_delay=layer_delay)
    check_finite(network.state_dict())
    return network


def _without_flatten(graph: Any) -> tuple[dict[str, Any], set[tuple[str, str]]]:
    """Return nodes by name and edges of a graph without its Flatten nodes, as our cells read flat inputs.

    The nodes before a Flatten are connected with those after it. ValueError if a Flatten leaves more than one axis.
    """
    nodes = dict(graph.nodes)
    edges = {(a, b) for a, b in graph.edges}
    for name, node in graph.nodes.items():
        if type(node).__name__ != "Flatten":
            continue
        shape = node.output_type["output"]
        if shape is not None and max(shape, default=1) != np.prod(shape):  # two axes are longer than 1
            raise ValueError(f"node {name} (Flatten) leaves the shape {tuple(map(int, shape))}, wanted one axis.")
        before = {a for a, b in edges if b == name}
        after = {b for a, b in edges if a == name}
        edges = {edge for edge in edges if name not in edge} | {(a, b) for a in before for b in after}
        del nodes[name]
    return nodes, edges


def _warn_of_a_part(named: str, factor: str, part: float, wanted: str) -> None:
    """Warn that a node adds only a part of its input in a step, because its factor on the input is 1.

    Args:
        named: the node in words.
        factor: name of the factor.
        part: the part of the input that is added.
        wanted: the value with which all of the input would be added, in words.
    """
    warn_of(
        f"{named}: {factor} is 1, so that a step adds {part:.3g} of its input. Programs that leave {factor} out, as norse "
        f"1.1 does, add all of it: set {factor} of the node to {wanted}, or write the module with to_nir.",
        UserWarning,
    )


def _notes(node: Any) -> dict[str, Any]:
    """Return what to_nir noted in the metadata of a node or graph; empty if another program wrote it."""
    found = node.metadata.get("neurolsc", {})
    if isinstance(found, dict):
        return found
    return {}


def _cell(name: str, weight: Any, node: Any, recurrent: Any | None, dt: float, memory: Any) -> Any:
    """Make the cell that computes Euler steps of dt seconds of a node of neurons, with its weights.

    Args:
        name: name of the node.
        weight: the node of the input weights, ``Linear`` or ``Affine``.
        node: the node of the neurons, or the sub-graph of an ALIF.
        recurrent: the node of the recurrent weights, or None.
        dt: seconds per step.
        memory: as for :func:`_network`.

    Raises:
        ValueError: if no cell of ours computes these steps; the message names the node.
    """
    inner = getattr(node, "nodes", {})  # of the sub-graph of an ALIF; else empty
    about = _notes(node)
    w_in = np.asarray(weight.weight)
    if inner:
        if {(a, b) for a, b in node.edges} != ALIF_EDGES:
            raise ValueError(f"node {name} is a graph, of which only an ALIF of neurolsc can be read.")
        node = inner["membrane"]
        recurrent = inner["w_rec"]
    n, n_in = w_in.shape
    if memory is not None:
        memory.take(COPIES * n * (n + n_in), f"the weights of {name}")
    named = f"node {name} ({type(node).__name__})"

    def values(node: Any, key: str) -> np.ndarray:
        """Return a parameter of a node (n,); a single number stands for all neurons."""
        value = np.asarray(getattr(node, key), dtype=np.float64)
        if value.size != 1 and value.shape != (n,):
            raise ValueError(f"{named}: {key} has shape {value.shape}, wanted {(n,)}.")
        return np.broadcast_to(value.reshape(()) if value.size == 1 else value, (n,))

    def lost_share(node: Any, key: str) -> np.ndarray:
        """Return dt / tau (n,), the share of a state that a step loses, in (0, 1]."""
        with np.errstate(divide="ignore"):
            lost = dt / values(node, key)
        if not ((lost > 0) & (lost <= 1 + CLOSE)).all():
            shortest = getattr(node, key).min()
            raise ValueError(f"{named}: {key} must be at least dt = {dt:g} s and finite, got {shortest:g} s.")
        return np.minimum(lost, 1)

    def time_constant(lost: np.ndarray) -> Tensor:
        """Return the time constant in steps (n,) of our cell, exp(-1/tau) = 1 - lost."""
        with np.errstate(divide="ignore"):
            return torch.tensor(np.clip(-1 / np.log1p(-lost), NO_MEMORY, NO_LEAK))

    for each in (node, *inner.values()):
        for key in ("v_leak", "v_reset"):
            if hasattr(each, key) and not np.allclose(value := values(each, key), 0):
                raise ValueError(f"{named}: {key} must be 0, as our cells have it, got {value[value != 0][0]:g}.")
    leakless = type(node).__name__ == "IF"
    if hasattr(node, "tau_syn"):
        lost_i = lost_share(node, "tau_syn")
    else:  # without a current
        lost_i = np.ones(n)
    # gain: the share of the input that a step adds, a factor on all weights of a neuron
    if leakless:
        lost = np.zeros(n)
        gain = dt * values(node, "r")
        # other programs may have left r at its default
        if not about and (values(node, "r") == 1).all() and dt != 1:
            _warn_of_a_part(named, "r", dt, "1 / dt")
    else:
        lost = lost_share(node, "tau_mem" if hasattr(node, "tau_mem") else "tau")
        gain = lost * lost_i * values(node, "r")
    if hasattr(node, "w_in"):
        factor = values(node, "w_in")
        gain = gain * factor
        if type(node).__name__ == "CubaLIF" and not about and (factor == 1).all() and lost_i.min() < 1 - CLOSE:
            _warn_of_a_part(named, "w_in", lost_i.min(), "tau_syn / dt")
    reset = str(about.get("reset", "zero"))
    integrator = not inner and not hasattr(node, "v_threshold")
    in_current = np.allclose(lost, 1, rtol=CLOSE)  # True: the voltage retains nothing, any memory is in the current
    in_voltage = np.allclose(lost_i, 1, rtol=CLOSE)  # True: the current retains nothing, any memory is in the voltage
    cell: Any
    if inner:
        known: Any = CELLS.get(str(about.get("cell")), ALIFPlus)  # classes of ALIF differ in what is trained
        cell = (known if step_of(known) is ALIF else ALIFPlus)(n_in, n, reset="static")
    elif integrator:
        cell = LI(n_in, n)
    elif in_current and (not in_voltage or reset != "zero"):  # a spike leaves the node's current, which is our voltage
        cell = LIF(n_in, n, reset="static" if reset == "static" else "subtract")
        lost = lost_i
    else:
        cell = (LIF if in_voltage else CubaLIF)(n_in, n, reset="zero")
    cell = cell.to(torch.float64 if w_in.dtype == np.float64 else torch.float32)
    cell.tau_v = time_constant(lost)
    if hasattr(cell, "tau_i"):
        cell.tau_i = time_constant(lost_i)
    if inner:
        lost_theta = lost_share(inner["adaptation"], "tau")
        cell.tau_theta = time_constant(lost_theta)
        set_value(cell, "adaptation", torch.tensor(-lost_theta * values(inner["adaptation"], "r")))
        cell.theta_rest = torch.tensor(values(inner["threshold"], "threshold"))
    elif not integrator:
        cell.theta.copy_(torch.tensor(values(node, "v_threshold")))
    if np.allclose(gain, 1, rtol=CLOSE, atol=0):  # weights come back bit by bit
        rows = np.ones((n, 1))
    else:
        rows = gain[:, None]
    cell.w_in.copy_(torch.tensor(w_in * rows))
    biased = [each for each in (weight, recurrent) if getattr(each, "bias", None) is not None]
    cell.b_v.copy_(torch.tensor(rows[:, 0] * sum((values(each, "bias") for each in biased), np.zeros(n))))

    exact = cell.copy()  # with the parameters in our metadata, unless the graph was changed since
    exact.load_state_dict({key: torch.as_tensor(about[key]) for key in cell.state_dict() if key in about}, strict=False)
    rounding = 8 * torch.finfo(cell.w_in.dtype).eps  # a few roundings lie between a parameter and the node it became
    keys = ("b_v", "theta", "theta_rest", "adaptation", "decay_v", "decay_i", "decay_theta")
    pairs = [(getattr(exact, key), getattr(cell, key)) for key in keys if hasattr(cell, key)]
    if all(torch.allclose(a, b, rtol=rounding, atol=rounding) for a, b in pairs):
        cell = exact
    if recurrent is None:
        loop = np.zeros((n, n))
    elif integrator:
        raise ValueError(f"{named} reads itself, as no integrator of ours does.")
    elif (loop := np.asarray(recurrent.weight)).shape != (n, n):
        raise ValueError(f"the recurrent weights of {name} have shape {loop.shape}, wanted {(n, n)}.")
    if not integrator:
        cell.w_rec.copy_(torch.tensor(loop * rows))
        if cell.reset.name != "zero":  # take the reset, minus the threshold, out of the recurrent weights
            theta = cell.theta_rest if inner else cell.theta
            diagonal = cell.w_rec.diagonal()  # a view: writing to it changes w_rec
            # the diagonal before it was rounded, if it fits; without a note NaN, which is equal to nothing
            noted = torch.as_tensor(about.get("diagonal", np.full(n, np.nan)), dtype=theta.dtype)
            diagonal.copy_(torch.where(noted - theta == diagonal, noted, diagonal + theta))
    return cell
