"""What a cell is: its state, its pure step, what it says about itself, and the table of names."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from itertools import chain
from operator import attrgetter
from typing import Any, Literal, NamedTuple, Self, TypeVar, get_args

import torch
from torch import Tensor, nn

from neurolsc import surrogate
from neurolsc.neurons.derivatives import Derivatives, flat
from neurolsc.neurons.parameters import set_value
from neurolsc.surrogate import Surrogate
from neurolsc.validation import meant, one_of, shown, tensor, whole

State = Any  # of a cell: a NamedTuple of tensors (B, ...)
AtOnce = tuple[Tensor, State] | None  # outputs of all steps (T, B, n_hidden) and the last state; None: take plain steps
Radius = Literal["time", "depth"]
Through = Literal["value", "decay", "decay_factor"]


@dataclass(frozen=True)
class ScaledParameter:
    """A parameter that a multiplier of a radius scales.

    Attributes:
        parameter: its name on the cell; dotted, ``"layer.weight"``, where it belongs to a module of the cell.
        radius: the radius that depends on it, through ``"time"`` or ``"depth"``.
        through: what a multiplier multiplies. ``"value"``: the parameter. ``"decay"``: exp(-1/tau) of a time constant
            tau in steps. ``"decay_factor"``: the parameter, which is a decay and stays below 1.
        sign: +1 where the radius grows with the parameter, -1 where it shrinks: a multiplier k acts as k**sign.
        limit: name of a method of the cell that returns the largest magnitude to which a multiplier may raise the
            parameter; beyond it the radius would change in the other direction. None: no limit.

    Raises:
        TypeError: if parameter is no text.
        ValueError: if radius, through or sign is none of these.
    """

    parameter: str
    radius: Radius
    through: Through = "value"
    sign: int = 1
    limit: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.parameter, str):
            raise TypeError(f"parameter must be the name of one, got {shown(self.parameter)}.")
        one_of("radius", self.radius, get_args(Radius))
        one_of("through", self.through, get_args(Through))
        if self.sign not in (1, -1):
            raise ValueError(f"sign must be 1 or -1, got {self.sign!r}.")


@dataclass(frozen=True)
class Membrane:
    """The voltage of a cell, which spikes where it is above the threshold."""

    name: str  # the state variable that is the voltage; if a spike resets it at once, as in norse, after the reset
    threshold: Callable[[Any], Tensor]  # the threshold in a state, (B, n_hidden) or broadcast to it
    spike: Callable[[Tensor], Tensor]  # the output at a distance v - theta, elementwise

    def voltage(self, state: Any) -> Tensor:
        """The voltage of every neuron in a state (B, n_hidden)."""
        return getattr(state, self.name).flatten(1)

    def thresholds(self, state: Any) -> Tensor:
        """The threshold of every neuron in a state (B, n_hidden)."""
        return self.threshold(state).expand_as(getattr(state, self.name)).flatten(1)

    def moved(self, state: Any, by: float | Tensor) -> Any:
        """The same state with `by` added to the voltage."""
        return state._replace(**{self.name: getattr(state, self.name) + by})


class Bound(NamedTuple):
    """A condition on the parameters of each neuron; a neuron that does not meet it is unstable below threshold."""

    violated: str  # what holds where the condition does not, such as "a < -(1 - beta)"
    margin: Tensor  # (n_hidden,), positive where the condition holds
    cure: str  # what to change where it does not


class ResetSwitch(NamedTuple):
    """An attribute, and the value with which a cell's reset passes no gradient while its spikes stay the same."""

    owner: Any  # the object to set it on
    name: str  # the attribute
    value: Any
    cure: str = ""  # what a user writes for it; empty if the value serves measurements alone


class Thresholds:
    """The present thresholds of a cell, which can be set in place to any multiple of them.

    Args:
        cell: the cell.
        names: attributes of the cell; multiplying all of them by a factor multiplies the thresholds by it.
        rest_name: attribute that is the resting threshold, if a time constant changes it as well; else None.
    """

    def __init__(self, cell: nn.Module, names: tuple[str, ...], rest_name: str | None = None) -> None:
        self._cell = cell
        self._rest = rest_name
        self.names = names
        self._start = {name: getattr(cell, name).detach().clone() for name in names}

    def scale(self, factor: float) -> None:
        """Set the thresholds to a multiple of what they were when this object was made."""
        with torch.no_grad():
            for name, value in self._start.items():
                set_value(self._cell, name, value * factor)

    def rest(self) -> Tensor | None:
        """A copy of the resting threshold (n_hidden,); None without a `rest_name`."""
        if self._rest is None:
            return None
        return getattr(self._cell, self._rest).detach().clone()

    def set_rest(self, value: Tensor) -> None:
        """Set the resting threshold (n_hidden,), where :meth:`rest` is not None."""
        setattr(self._cell, self._rest, value)  # type: ignore[arg-type]


class Cell(nn.Module, ABC):
    """A recurrent layer, one step at a time.

    A cell holds parameters and no state. With h the state, a NamedTuple of tensors (B, ...), real or complex:

    - ``output(h)`` is what it sends to others, shape (B, n_hidden), a function of the state alone;
    - ``update(x, z, h)`` is the next state, from the input x (B, n_in) and the own last output z = ``output(h)`` (an
      argument so that a time loop does not compute it twice);
    - ``step(x, h)`` is both: the next output and the next state.

    All three are pure and differentiable, and with :meth:`initial_state` they are all that a new neuron needs.
    :meth:`run_at_once`, a faster run, and :meth:`closed_form`, the derivatives of the step, are used only for the step
    of the class that defines them: where a subclass, or a function set on the instance, overrides any part of that step
    (:func:`step_of`), the cell runs step by step and autograd differentiates it.

    Attributes:
        state_type: the class of a state.
        settings: names of attributes that are further arguments of the constructor, for :meth:`config`.
        scaled_parameters: the parameters that multipliers scale, chosen from the derivatives of the step.
        paper_scaled_parameters: those that the paper's multipliers scale, Sec. II-D and App. H.
        recurrent_synapses: the number of neurons of the layer that read each neuron; None if not known.
        stored_in: pairs of a settable quantity and the parameter of another name that stores it, as a gate's retention.
        integrator: True if it sends its voltage and no spikes: initialisers of thresholds or rates, and diagnoses, pass
            over it; Glorot, He and LSCSingular set its weights.
        input_matrices: names of input weights that set no radius through depth, as in norse's LSNN.
        recurrent_vectors: names of weights by which each neuron reads its own last output alone.
    """

    state_type: type[Any]
    settings: tuple[str, ...] = ()
    stored_in: tuple[tuple[str, str], ...] = ()
    scaled_parameters: tuple[ScaledParameter, ...] = ()
    paper_scaled_parameters: tuple[ScaledParameter, ...] = ()
    recurrent_synapses: int | None = None
    integrator: bool = False
    input_matrices: tuple[str, ...] = ()
    recurrent_vectors: tuple[str, ...] = ()

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        # __new__ runs before the constructor could refuse beta as unknown, without a word on what to give instead
        if "beta" in settings and cls.__module__.startswith("neurolsc.neurons."):
            raise TypeError(f"{cls.__name__} takes no beta: of snnTorch's, a decay, give tau_v = -1 / math.log(beta).")
        return super().__new__(cls)

    def __init__(self, n_in: int, n_hidden: int) -> None:
        super().__init__()
        self.n_in = whole("n_in", n_in)
        self.n_hidden = whole("n_hidden", n_hidden)

    def initial_state(self, batch: int) -> State:
        """The state at rest of `batch` samples; by default all variables of ``state_type`` are 0, (B, n_hidden)."""
        variables = len(self.state_type._fields)
        return self.state_type(*torch.zeros(variables, batch, self.n_hidden, **self.dtype_and_device))

    @abstractmethod
    def output(self, state: State) -> Tensor:
        """What the cell sends to others in this state, shape (B, n_hidden)."""

    @abstractmethod
    def update(self, x: Tensor, z: Tensor, state: State) -> State:
        """The next state, from the input x (B, n_in) and the own last output z (B, n_hidden)."""

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """The output (B, n_hidden) and the state after a step with the input x (B, n_in).

        Raises:
            ValueError: if x has another shape.
        """
        if tensor("x", x).ndim != 2 or x.shape[1] != self.n_in:
            raise ValueError(f"x must have shape (B, {self.n_in}), got {tuple(x.shape)}.")
        state = self.update(x, self.output(state), state)
        return self.output(state), state

    def run(
        self, x: Tensor, state: State, *, lengths: Tensor | None = None, late: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Run many time steps, by :meth:`run_at_once` where it takes these inputs, else one by one.

        Args:
            x: the input (T, B, n_in), of any real dtype.
            state: the state before.
            lengths: the number of steps after which the state of each sample stands still (B,), 0 to T; by default T.
                Outputs after that mean nothing.
            late: the input of the first step (B, n_in), if x is read one step late; x's last frame is then not read.

        Returns:
            The outputs (T, B, n_hidden) and the last state.
        """
        if self._defined_with_its_step("run_at_once"):
            at_once = self.run_at_once(x, state, lengths, late)
            if at_once is not None:
                return at_once
        dtype = state[0].real.dtype  # .real: a state may be complex, an input is not
        z = self.output(state)
        outputs = []
        # unbind, not x[t]: the backward of indexing writes a whole (T, B, N) gradient at every step
        if late is None:
            inputs = x.unbind(0)
        else:
            inputs = (late, *x.unbind(0)[:-1])
        for t, now in enumerate(inputs):
            after = self.update(now.to(dtype), z, state)
            if lengths is None:
                state = after
            else:  # samples that have ended keep their state
                state = frozen(after, state, lengths > t)
            z = self.output(state)
            outputs.append(z)
        return torch.stack(outputs), state

    def run_at_once(self, x: Tensor, state: State, lengths: Tensor | None, late: Tensor | None) -> AtOnce:
        """A faster :meth:`run`, with its arguments and returns; None if these inputs need plain steps."""
        return None

    def derivatives(self) -> Derivatives | None:
        """The derivatives of this cell's step in closed form; None: by autograd."""
        if self._defined_with_its_step("closed_form"):
            return self.closed_form()
        return None

    def closed_form(self) -> Derivatives | None:
        """The derivatives of the step that this class defines; None if not known."""
        return None

    def _defined_with_its_step(self, method: str) -> bool:
        """True if a method is valid for this cell's step.

        That is so if the class that defines the step, or a subclass, defines the method, and the instance overrides no
        part of the step.
        """
        step = step_of(type(self))
        return issubclass(definer(type(self), method), step) and _parts_of_step(step).isdisjoint(vars(self))

    def thresholds(self) -> Thresholds | None:
        """The handle that scales the thresholds, and so the firing rates; None if the cell has none."""
        return None

    def membrane(self) -> Membrane | None:
        """The voltage among the state variables, its threshold and its spike; None if the cell has no voltage."""
        return None

    def reset_switch(self) -> ResetSwitch | None:
        """The switch that detaches the reset; None if no gradient passes it, or nothing detaches it."""
        return None

    def subthreshold(self, slope: float | Tensor = 0.0) -> Tensor | None:
        """The derivative of each neuron's next state by its own last one, k variables each, without weights.

        No neuron spikes. The state is that at rest; where a `slope` is given, the voltage is at the threshold.
        :func:`neurolsc.stability.below_threshold` uses this method if the class that defines it defines the step.

        Args:
            slope: the derivative of the spike by the voltage, one for all neurons or one for each (n_hidden,).

        Returns:
            The derivative (n_hidden, k, k); None if it is not known.
        """
        return None

    def bounds(self) -> tuple[Bound, ...]:
        """Conditions on the parameters; where all hold, :meth:`subthreshold` at slope 0 has a radius below 1."""
        return ()

    def gains(self) -> dict[str, float]:
        """Mean steady-state gains d state / d parameter, by name; learning rates can be divided by them."""
        return {}

    def config(self) -> dict[str, object]:
        """The constructor's arguments as JSON values; parameters are in the state_dict."""
        return {name: getattr(self, name) for name in ("n_in", "n_hidden", *self.settings)}

    def extra_repr(self) -> str:
        return ", ".join([f"{self.n_in}, {self.n_hidden}", *(f"{n}={getattr(self, n)!r}" for n in self.settings)])

    def pretrained(self) -> Iterable[nn.Parameter]:
        """The parameters that pre-training may optimize and shuffle: by default all."""
        return self.parameters()

    @property
    def dtype_and_device(self) -> dict[str, Any]:
        """The dtype and device of the parameters, as keywords for a tensor's constructor."""
        return dtype_and_device(self)

    def copy(self) -> "Cell":
        """An independent copy."""
        return copy.deepcopy(self)


def refuse_wrong_step(cell: Cell) -> None:
    """Refuse a cell whose attributes, or methods in a step of two samples, are something else than :class:`Cell` says.

    Raises:
        TypeError: if a method returns a value of another type or shape, or changes its arguments; the message names the
            class and the method.
        ValueError: if a scaled parameter is none of the cell.
    """
    name = type(cell).__name__
    refuse_unknown_parameters(cell)
    like = cell.dtype_and_device
    if like["device"].type == "meta":  # its tensors hold no values to step
        return

    def wrong(method: str, wanted: str, got: object) -> TypeError:
        if isinstance(got, Tensor):
            shown = f"{got.dtype} {tuple(got.shape)}"
        else:
            shown = type(got).__name__
        return TypeError(f"{name}.{method} must return {wanted}, got {shown}.")

    # a step may draw random numbers, as dropout does: the user's generator must not see it
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        state = cell.initial_state(2)
        fields = getattr(state, "_fields", None)
        if not isinstance(state, tuple) or fields is None:
            raise wrong("initial_state", "a NamedTuple of tensors (B, ...)", state)
        for field, leaf in zip(fields, state, strict=True):
            if not isinstance(leaf, Tensor) or not leaf.ndim or len(leaf) != 2:
                raise wrong("initial_state", "a NamedTuple of tensors (B, ...), here with B = 2", leaf)
            if (leaf.is_floating_point() or leaf.is_complex()) and leaf.real.dtype != like["dtype"]:
                raise wrong("initial_state", f"{field} of {like['dtype']}, as the parameters are", leaf)
        x = torch.zeros(2, cell.n_in, **like)
        versions = versions_of((x, *state))
        z = cell.output(state)
        if not isinstance(z, Tensor) or not z.is_floating_point() or z.shape != (2, cell.n_hidden):
            raise wrong("output", f"a float tensor (B, n_hidden), here (2, {cell.n_hidden})", z)
        after = cell.update(x, z, state)
        if versions_of((x, *state)) != versions:
            raise TypeError(
                f"{name}.update and {name}.output must not change x or the state in place: return a new state."
            )
        if type(after) is not type(state):
            raise wrong("update", f"a state as initial_state does, a {type(state).__name__}", after)
        for field, old, new in zip(fields, state, after, strict=True):
            if not isinstance(new, Tensor) or new.shape != old.shape:
                raise wrong("update", f"{field} with shape {tuple(old.shape)}, as initial_state does", new)
            if new.dtype != old.dtype:
                raise wrong("update", f"{field} of {old.dtype}, as initial_state does", new)
        if not definer(type(cell), "closed_form").__module__.startswith("neurolsc."):  # one of the user's own
            known = cell.derivatives()
            if not isinstance(known, Derivatives | None):
                raise wrong("closed_form", "a neurolsc.neurons.Derivatives or None", known)
            if known is not None:
                _refuse_wrong_derivatives(f"{name}.closed_form: {type(known).__name__}", known, x, state, z)
    for method, kind in (("thresholds", Thresholds), ("membrane", Membrane), ("reset_switch", ResetSwitch)):
        got = getattr(cell, method)()
        if not isinstance(got, kind | None):
            raise wrong(method, f"a {kind.__module__}.{kind.__name__} or None", got)


def versions_of(tensors: Iterable[Tensor]) -> list[int]:
    """Return how often each tensor was changed in place; inference tensors, which do not count that, are left out."""
    return [t._version for t in tensors if not t.is_inference()]


def refuse_unknown_parameters(cell: Cell) -> None:
    """Refuse a cell whose scaled parameters are no :class:`ScaledParameter`, or name what the cell lacks.

    Raises:
        TypeError: if an entry is something else.
        ValueError: if there is no attribute of that name; the message names the class.
    """
    name = type(cell).__name__
    for which in ("scaled_parameters", "paper_scaled_parameters"):
        entries = getattr(cell, which)
        if not isinstance(entries, tuple | list) or not all(isinstance(entry, ScaledParameter) for entry in entries):
            raise TypeError(f"{name}.{which} must be a tuple of ScaledParameter(name, radius), got {shown(entries)}.")
        for wanted in (text for entry in entries for text in (entry.parameter, entry.limit) if text is not None):
            try:
                attrgetter(wanted)(cell)
            except AttributeError as error:
                near = meant(dict(cell.named_parameters()), wanted)
                raise ValueError(f"{name}.{which} names {wanted!r}, which a {name} lacks{near}") from error


def _refuse_wrong_derivatives(name: str, known: Derivatives, x: Tensor, state: State, z: Tensor) -> None:
    """Refuse matrices of a closed form, given as such, that do not fit the step; errors begin with its `name`."""
    numbers = flat(state).shape[1]
    # operators in place of matrices are left unchecked
    if type(known).state_map is Derivatives.state_map:
        terms = known.by_state(x, state)
        if not isinstance(terms, dict) or not terms:
            raise TypeError(f"{name}.by_state must return a dict of named terms, got {type(terms).__name__}.")
        for term, matrix in terms.items():
            _refuse_wrong_matrix(f"{name}.by_state: the term {term!r}", matrix, (numbers, numbers))
    if type(known).input_maps is Derivatives.input_maps:
        _refuse_wrong_matrix(f"{name}.by_input", known.by_input(x, state), (numbers, x.shape[1]))
    if type(known).output_maps is Derivatives.output_maps:
        _refuse_wrong_matrix(f"{name}.of_output", known.of_output(state), (z.shape[1], numbers))


def _refuse_wrong_matrix(name: str, matrix: object, size: tuple[int, int]) -> None:
    """Refuse what is no matrix of a size for each of two samples, or one for both."""
    if not isinstance(matrix, Tensor):
        got = type(matrix).__name__
    elif tuple(matrix.shape) in ((2, *size), (1, *size)):
        return
    else:
        got = str(tuple(matrix.shape))
    raise TypeError(f"{name} must have the shape (B, {size[0]}, {size[1]}), here with B = 2, or B = 1, got {got}.")


# Attributes whose override leaves closed_form and run_at_once valid: initial values, descriptions, and the methods
# whose own validity is checked by the class that defines them.
NO_STEP = frozenset(
    (
        *("initial_state", "pretrained", "config", "settings", "extra_repr", "draw_adaptation", "copy"),
        *("run", "run_at_once", "derivatives", "closed_form", "thresholds", "membrane", "gains", "integrator"),
        *("subthreshold", "bounds", "state_type", "draw"),
        *("linearised", "blocks", "shares", "slopes", "operator", "block_terms"),
        *("scaled_parameters", "paper_scaled_parameters", "recurrent_synapses", "input_matrices"),
        *("recurrent_vectors", "reset_switch"),
        *("reset_gradient", "affine", "stored_in"),
    )
)


_PARTS: dict[type, frozenset[str]] = {}  # of _parts_of_step; torch.compile warns of functools.cache


def _parts_of_step(kind: type) -> frozenset[str]:
    """Return the names of methods and attributes of a class and its bases that its step may read."""
    if kind not in _PARTS:
        # all that the class and its bases define, but not what nn.Module and object do, nor private names of Python
        names = {name for c in kind.__mro__ if c not in nn.Module.__mro__ for name in vars(c)}
        _PARTS[kind] = frozenset(name for name in names - NO_STEP if not name.startswith(("__", "_abc")))
    return _PARTS[kind]


def step_of(cls: type) -> type:
    """Return the class that defines a cell's step: the most derived one that has ``update`` or changes a part of it.

    For ALIF+ it is ALIF: the subclass draws other initial values, which are no part of a step. The cell's closed forms
    and fast run hold if they are defined in this class, or in a subclass.
    """
    owner = definer(cls, "update")
    parts = _parts_of_step(owner)
    return next(c for c in cls.__mro__ if c is owner or not parts.isdisjoint(vars(c)))  # from cls up to the owner


def definer(cls: type, name: str) -> type:
    """Return the class that defines an attribute of a class: itself, or the nearest of its bases."""
    return next(c for c in cls.__mro__ if name in vars(c))


def frozen(after: State, before: State, alive: Tensor) -> State:
    """Return the state after a step for samples that are alive (B,), and the state before it for the others."""
    return type(after)(*(keep(new, old, alive) for new, old in zip(after, before, strict=True)))


def keep(new: Tensor, old: Tensor, alive: Tensor) -> Tensor:
    """Return the new values (B, ...) for samples that are alive (B,), and the old ones for the others."""
    alive = alive.view(-1, *[1] * (new.ndim - 1))  # (B, 1, ...)
    return torch.where(alive, new, old)


def dtype_and_device(module: nn.Module) -> dict[str, Any]:
    """Return the dtype and device of a module's first real parameter, else buffer, else torch's defaults."""
    tensors = (t for t in chain(module.parameters(), module.buffers()) if t.is_floating_point())
    first = next(tensors, torch.empty(0))
    return {"dtype": first.dtype, "device": first.device}


def truncated_normal(mean: float, size: int) -> Tensor:
    """Draw positive values (size,): a Gaussian of deviation 3/7 of its mean, cut at two deviations from it.

    Source: arXiv:2308.12075, App. H.
    """
    std = 3 * mean / 7
    return nn.init.trunc_normal_(torch.empty(size), mean, std, mean - 2 * std, mean + 2 * std)


# ---- classes by name

T = TypeVar("T")
C = TypeVar("C", bound=type[nn.Module])


# Neurons of snnTorch, norse and spikingjelly, and the name of the cell that has their step, for error messages
NAMES_ELSEWHERE = {
    **dict.fromkeys(("Leaky", "RLeaky", "Lapicque", "LIFBox", "LIFBoxCell", "LIFNode"), "LIF"),
    **dict.fromkeys(("Synaptic", "RSynaptic", "LIFCell", "LIFRecurrent", "LIFRecurrentCell"), "CubaLIF"),
    **dict.fromkeys(("LSNN", "LSNNCell", "LSNNRecurrent", "LSNNRecurrentCell"), "ALIFPlus"),
    **{"ParametricLIFNode": "PLIF", "LICell": "LI", "LILinearCell": "LI"},
}


class Table(dict[str, type[T]]):
    """Classes of a kind by name; a user's own are entered by :func:`register` in the module that defines them."""

    def __init__(self, kind: str, base: type[T], *classes: type[T]) -> None:
        super().__init__({c.__name__: c for c in classes})
        self.kind = kind
        self.base = base

    def known(self, name: str) -> type[T]:
        """Return the class of a name in the table; ValueError if there is none."""
        if name not in self:
            cure = "Your own, by neurolsc.register: import its module first, or give the command package.module:Class."
            same = NAMES_ELSEWHERE.get(name)
            if same in self:  # True in the table of cells alone: no surrogate has such a name
                near = f"; {name} of other libraries is {same} here."
            else:
                near = meant(self, name)
            raise ValueError(f"unknown {self.kind} {name!r}; known are {', '.join(sorted(self))}{near} {cure}")
        return self[name]

    def name_of(self, cls: type) -> str:
        """Return the name of a class; ValueError if it is not in the table."""
        name = cls.__name__
        if self.get(name) is not cls:
            cure = f"Make it known with neurolsc.register({name})."
            if name == f"Parametrized{cls.__mro__[1].__name__}":  # torch.nn.utils.parametrize has made the class
                cure = (
                    "Its parameters are parametrised: take that back first, by neurolsc.theory.plain_time_constants after "
                    "level_time_constants, else by torch.nn.utils.parametrize.remove_parametrizations."
                )
            raise ValueError(f"{name} is not a known {self.kind}; known are {', '.join(sorted(self))}. {cure}")
        return name

    def find(self, text: str) -> type[T]:
        """Return the class of a name, or import that of ``package.module:Class`` and enter it into the table.

        Raises:
            ValueError: if there is none, or it is no class of the kind.
        """
        module, colon, name = text.partition(":")
        if not colon:
            return self.known(text)
        try:
            cls: Any = getattr(import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(f"there is no {self.kind} {text!r}: {error}.") from error
        if not (isinstance(cls, type) and issubclass(cls, self.base)):
            raise ValueError(f"{text!r} must be a class of {self.base.__name__}, got {cls!r}.")
        self.enter(cls)
        return cls

    def enter(self, cls: type[T]) -> None:
        """Put a class into the table; ValueError if another one has its name."""
        entered = self.get(cls.__name__, cls)
        # a class of the same module and name is the same one, defined anew in a notebook
        if (entered.__module__, entered.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(
                f"{cls.__name__!r} is another {self.kind} already, {entered.__module__}.{entered.__qualname__}."
            )
        self[cls.__name__] = cls


CELLS: Table[Cell] = Table("cell", Cell)
SURROGATES: Table[Surrogate] = Table(
    "surrogate", Surrogate, *(getattr(surrogate, name) for name in surrogate.__all__ if name != "Surrogate")
)


def register(cls: C) -> C:
    """Make a cell or a surrogate of your own known by the name of its class; a decorator.

    Then :func:`neurolsc.save`, :func:`neurolsc.load` and the command line take it. Its constructor takes what its
    ``config()`` returns. TypeError if it is neither; ValueError if another class has the name.
    """
    tables: Any = (CELLS, SURROGATES)
    for table in tables:
        if isinstance(cls, type) and issubclass(cls, table.base):
            table.enter(cls)
            return cls
    raise TypeError(f"register takes a class of neurolsc.Cell or neurolsc.surrogate.Surrogate, got {cls!r}.")
