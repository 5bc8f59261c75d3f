"""Spiking neurons of a few variables each, coupled by the spikes alone, and their derivatives in closed form.

Shapes: P points (step, sample), V state variables of a neuron, n neurons. Blocks (P, V, V, n) hold the derivative of
each neuron's next state by its own last state: a row for each variable of the next state, a column for each of the
last one.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from neurolsc.neurons.cell import SURROGATES, Cell, Membrane, ScaledParameter, State, Thresholds, definer
from neurolsc.neurons.derivatives import Derivatives, LinearOperator, Matrices, StepMap, Term
from neurolsc.surrogate import FastSigmoid, Surrogate, in_two_methods
from neurolsc.validation import number, shown

Spike = Callable[[Tensor], Tensor]  # of v - theta, returns spikes: a surrogate of ours, or of another library
Range = tuple[float, float]  # the lower and the upper end

RECURRENCE = Term(
    "recurrence",
    "scale w_rec down, or dampen the surrogate",
    "scale w_rec up: while a layer hardly fires its surrogate is small",
    "#009e73",
)
RESET = Term("reset", "lower the thresholds", "raise w_rec", "#cc79a7")


@dataclass(eq=False)
class NeuronStep(StepMap):
    r"""d h[t] / d h[t-1] at P states of n neurons with V variables each.

    .. math:: \mathrm{d}h_i' = K_i\,\mathrm{d}h_i + c_i \sum_j W_{ij}\, \sigma_j \cdot \mathrm{d}h_j

    with h_i the variables of neuron i before the step, h_i' those after it, K_i the block of the neuron (V, V),
    :math:`\sigma = \partial z / \partial h` (V,) of a neuron, W the recurrent weights, and c_i (V,) the share of a
    current that each variable takes.
    """

    blocks: dict[str, Tensor]  # named terms of K (P, V, V, n)
    slopes: Tensor  # sigma (P, V, n)
    w_rec: Tensor  # W (n, n), the same at all states
    shares: Tensor  # c (V, n)

    def __post_init__(self) -> None:
        self.rows = self.columns = self.slopes.shape[1] * self.slopes.shape[2]
        self.k = reduce(torch.add, self.blocks.values())  # K (P, V, V, n)

    def matvec(self, x: Tensor) -> Tensor:
        h = self._by_variable(x)
        # changes h of the variables change the spikes, and these the currents, by sum_j W_ij sigma_j h_j
        current = sum_over_variables(self.slopes * h) @ self.w_rec.T
        return plus_products(self.shares * current.unsqueeze(1), self.k, h).flatten(1)

    def rmatvec(self, y: Tensor) -> Tensor:
        g = self._by_variable(y)
        # the transpose: from the currents back to the spikes, and to the variables
        by_spikes = sum_over_variables(self.shares * g) @ self.w_rec
        return plus_products(self.slopes * by_spikes.unsqueeze(1), self.k.transpose(1, 2), g).flatten(1)

    def terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        h = self._by_variable(x)
        g = self._by_variable(y)
        sums = {name: (g.unsqueeze(2) * k * h.unsqueeze(1)).sum((1, 2, 3)) for name, k in self.blocks.items()}
        current = sum_over_variables(self.slopes * h) @ self.w_rec.T
        sums["recurrence"] = (sum_over_variables(self.shares * g) * current).sum(1)
        return sums

    def _by_variable(self, x: Tensor) -> Tensor:
        """Return vectors (P, V n) as (P, V, n)."""
        return x.unflatten(1, self.slopes.shape[1:])

    def take(self, index: Tensor) -> "NeuronStep":
        blocks = {name: k[index] for name, k in self.blocks.items()}
        return replace(self, blocks=blocks, slopes=self.slopes[index])


def sum_over_variables(h: Tensor) -> Tensor:
    """Return the sum of h (P, V, n) over its variables, (P, n)."""
    return reduce(torch.add, h.unbind(1))  # no copy where V is 1, unlike sum(1)


def plus_products(total: Tensor, k: Tensor, h: Tensor) -> Tensor:
    """Return total (P, R, n) plus the product k h of each neuron, of matrices k (P, R, C, n) and h (P, C, n)."""
    for column, variable in zip(k.unbind(2), h.unbind(1), strict=True):  # faster than all products and their sum
        total = torch.addcmul(total, column, variable.unsqueeze(1))
    return total


class DiagonalBlocks(LinearOperator):
    """Matrices (R n, C n) of R x C blocks, each of them diagonal.

    Args:
        k: the diagonals (P, R, C, n), or (1, R, C, n) for all points.
    """

    def __init__(self, k: Tensor) -> None:
        self.k = k
        self.same = len(k) == 1
        self.rows = k.shape[1] * k.shape[3]
        self.columns = k.shape[2] * k.shape[3]

    def matvec(self, x: Tensor) -> Tensor:
        return (self.k * x.view(len(x), 1, *self.k.shape[2:])).sum(2).flatten(1)

    def rmatvec(self, y: Tensor) -> Tensor:
        return (self.k * y.view(len(y), -1, 1, self.k.shape[3])).sum(1).flatten(1)

    def take(self, index: Tensor) -> "DiagonalBlocks":
        if self.same:
            return self
        return DiagonalBlocks(self.k[index])


def dense_blocks(k: Tensor) -> Tensor:
    """Return the matrices (P, R n, C n) whose R x C blocks are diagonal, with the diagonals k (P, R, C, n)."""
    points, rows, columns, neurons = k.shape
    return torch.diag_embed(k).transpose(2, 3).reshape(points, rows * neurons, columns * neurons)


class NeuronDerivatives(Derivatives):
    """The derivatives of a :class:`NeuronCell`; none depends on the input, so that x is not read."""

    reads_input = False

    def __init__(self, cell: "NeuronCell") -> None:
        self.cell = cell
        self.terms = (*cell.block_terms, RECURRENCE)

    def by_state(self, x: Tensor, state: State) -> dict[str, Tensor]:
        step = self.cell.linearised(state)
        terms = {name: dense_blocks(k) for name, k in step.blocks.items()}
        # from variable u of neuron j to variable v of neuron i, at point p
        between = torch.einsum("vi,ij,puj->pviuj", step.shares, step.w_rec, step.slopes)
        terms["recurrence"] = between.reshape(-1, step.rows, step.rows)
        return terms

    def by_input(self, x: Tensor, state: State) -> Tensor:
        by_variable = self.cell.shares().unsqueeze(2) * self.cell.w_in
        return by_variable.flatten(0, 1).unsqueeze(0)

    def of_output(self, state: State) -> Tensor:
        return dense_blocks(self._output_block(state))

    def state_map(self, x: Tensor, state: State) -> NeuronStep:
        return self.cell.linearised(state)

    def input_maps(self, x: Tensor, state: State) -> Sequence[LinearOperator]:
        shares = self.cell.shares()
        if len(shares) == 1:
            return super().input_maps(x, state)
        # Two factors in place of their product: w_in, from n_in to n_hidden, and the shares (V, n_hidden) of a current
        # that the V state variables of its neuron take. The eigenvalue problem of a depth radius is as large as the
        # narrowest space between factors, here n_hidden.
        return [Matrices(self.cell.w_in.unsqueeze(0)), DiagonalBlocks(shares[None, :, None])]

    def output_maps(self, state: State) -> Sequence[LinearOperator]:
        return [DiagonalBlocks(self._output_block(state))]

    def _output_block(self, state: State) -> Tensor:
        """Return d z / d h of each neuron (P, 1, V, n)."""
        return self.cell.slopes(self.cell.spike_derivative(state)).unsqueeze(1)


def uniform(weights: Tensor) -> Tensor:
    """Draw weights (n_hidden, n_in) in place, uniform in ±1/sqrt(n_in), and return them."""
    bound = weights.shape[1] ** -0.5
    return nn.init.uniform_(weights, -bound, bound)


class NeuronCell(Cell):
    r"""Spiking neurons with input and recurrent weights, and derivatives neuron by neuron.

    A subclass defines ``state_type`` and :meth:`update`. For derivatives in closed form it defines the :meth:`blocks`
    of that step in the same class, and :meth:`shares` unless the first variable takes all of a current.

    Args:
        spike: the surrogate; by default a new ``FastSigmoid()``.
        threshold: the fixed threshold of all neurons, positive; the buffer ``theta`` may be set per neuron. None for
            neurons with another :meth:`distance`.
        initial: two functions, which draw the input and the recurrent weights in place and return them.

    Attributes:
        w_in: input weights (n_hidden, n_in), by default uniform in ±1/sqrt(n_in).
        w_rec: recurrent weights (n_hidden, n_hidden), by default orthogonal.
        theta: thresholds (n_hidden,), not trainable.
        variable: name of the state variable that is the voltage, compared with the threshold.
        block_terms: the terms of :meth:`blocks`, in the order of tables and pictures.
    """

    scaled_parameters = (ScaledParameter("w_in", "depth"), ScaledParameter("w_rec", "time"))
    variable = "u"
    block_terms: tuple[Term, ...] = ()
    operator = NeuronStep
    theta: Tensor

    def __init__(
        self,
        n_in: int,
        n_hidden: int,
        *,
        spike: Spike | None = None,
        threshold: float | None = 1.0,
        initial: tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]] = (uniform, nn.init.orthogonal_),
    ) -> None:
        super().__init__(n_in, n_hidden)
        if spike is None:
            self.spike = FastSigmoid()
        else:
            self.spike = spike_function("spike", spike)
        for name in ("dampening", "sharpness"):
            value = getattr(self.spike, name, None)
            if isinstance(value, Tensor) and value.shape not in ((), (1,), (n_hidden,)):
                raise ValueError(f"{name} of spike must be one number or ({n_hidden},), got {tuple(value.shape)}.")
        if threshold is not None:
            self.register_buffer("theta", torch.full((n_hidden,), number("threshold", threshold)))
        self.w_in = nn.Parameter(initial[0](torch.empty(n_hidden, n_in)))
        self.w_rec = nn.Parameter(initial[1](torch.empty(n_hidden, n_hidden)))
        self.recurrent_synapses = n_hidden

    def draw(self, name: str, ends: Range, *, positive: bool = False, in_log: bool = False) -> Range:
        """Draw a parameter (n_hidden,) uniformly from a range, and set it on the cell.

        Args:
            name: the parameter; the range is the constructor's argument ``<name>_range``, so named in errors.
            ends: the range, the lower end first.
            positive: refuse a range that reaches 0.
            in_log: draw uniformly between the logarithms of the ends; what is set is the parameter itself.

        Returns:
            The range as two floats.
        """
        try:
            low, high = (float(end) for end in ends)
        except (TypeError, ValueError) as error:  # not two, or no numbers
            raise TypeError(f"{name}_range must be two numbers, the lower one first, got {shown(ends)}.") from error
        if not -math.inf < low <= high < math.inf or (positive and low <= 0):
            wanted = "finite"
            if positive:
                wanted = "positive, finite"
            raise ValueError(f"{name}_range must be two {wanted} numbers, the lower one first, got {tuple(ends)}.")
        value = torch.empty(self.n_hidden)
        if in_log:
            value.uniform_(math.log(low), math.log(high)).exp_()
        else:
            value.uniform_(low, high)
        if not hasattr(type(self), name):  # else it is a LogParameter, which stores the value as its logarithm
            value = nn.Parameter(value)
        setattr(self, name, value)
        return low, high

    def distance(self, state: State) -> Tensor:
        """Voltage - threshold (B, n_hidden); a spike where positive."""
        return getattr(state, self.variable) - self.theta

    def output(self, state: State) -> Tensor:
        return self.spike(self.distance(state))

    def current(self, x: Tensor, z: Tensor) -> Tensor:
        """The current into all neurons (B, n_hidden), from the input x (B, n_in) and their last spikes z."""
        return x @ self.w_in.T + z @ self.weights_between().T

    def weights_between(self) -> Tensor:
        """The recurrent weights that act (n_hidden, n_hidden): w_rec, in some cells without its diagonal."""
        return self.w_rec

    def blocks(self, state: State, s: Tensor, z: Tensor) -> dict[str, Tensor]:
        """The derivative of each neuron's next state by its own last state, without recurrence, as named terms.

        Args:
            state: the states at P points, variables (P, n).
            s: the derivative of a spike by the voltage there (P, n).
            z: the spikes there (P, n).

        Returns:
            For each of ``block_terms`` a part of the blocks (P, V, V, n).
        """
        raise NotImplementedError(f"{type(self).__name__} states no blocks: its derivatives are those of autograd.")

    def shares(self) -> Tensor:
        """The share of a current that each variable takes (V, n_hidden); by default the first takes all."""
        shares = torch.zeros(len(self.state_type._fields), self.n_hidden, **self.dtype_and_device)
        shares[0] = 1
        return shares

    def slopes(self, s: Tensor) -> Tensor:
        """The spikes' derivative by each state variable (P, V, n), from that by the voltage, s (P, n)."""
        variables = self.state_type._fields
        slopes = [torch.zeros_like(s)] * len(variables)
        slopes[variables.index(self.variable)] = s
        return torch.stack(slopes, 1)

    def spike_derivative(self, state: State) -> Tensor:
        """The spikes' derivative by the voltage (B, n_hidden)."""
        return self.spike.derivative(self.distance(state))  # type: ignore[attr-defined]

    def linearised(self, state: State) -> NeuronStep:
        """The derivative of the step at the P points of a state, as an operator."""
        s = self.spike_derivative(state)
        z = self.output(state).detach()  # a constant here: second derivatives do not pass the spikes
        return self.operator(
            blocks=self.blocks(state, s, z), slopes=self.slopes(s), w_rec=self.weights_between(), shares=self.shares()
        )

    def closed_form(self) -> Derivatives | None:
        if in_two_methods(self.spike):
            return NeuronDerivatives(self)
        return None  # the derivative of another spike function is not known

    def subthreshold(self, slope: float | Tensor = 0.0) -> Tensor | None:
        state = self.initial_state(1)
        membrane = self.membrane()
        # spikes have the derivative `slope` at the threshold: put the voltage there
        if torch.as_tensor(slope).any() and membrane is not None:
            state = membrane.moved(state, membrane.thresholds(state) - membrane.voltage(state))
        silent = torch.zeros(1, self.n_hidden, **self.dtype_and_device)
        blocks = self.blocks(state, silent + slope, silent)
        return reduce(torch.add, blocks.values())[0].permute(2, 0, 1)

    def _defined_with_its_step(self, method: str) -> bool:
        # A method of an abstract base (a class without update) follows from the blocks, which a subclass defines for
        # its own step. So the method is valid if the blocks are.
        if "update" in definer(type(self), method).__abstractmethods__:
            method = "blocks"
        return super()._defined_with_its_step(method)

    def thresholds(self) -> Thresholds | None:
        return Thresholds(self, ("theta",))

    def membrane(self) -> Membrane | None:
        return Membrane(self.variable, lambda _: self.theta, self.spike)

    def config(self) -> dict[str, object]:
        if not isinstance(self.spike, Surrogate):  # a function of another library, which no name stands for
            raise TypeError(f"only surrogates of neurolsc can be saved, got {self.spike!r}.")
        spike = {"name": SURROGATES.name_of(type(self.spike)), **self.spike.config()}
        return {**super().config(), "spike": spike}


def matrix_of(rows: Sequence[Sequence[Tensor | float]], like: Tensor) -> Tensor:
    """Return a matrix for each neuron (P, V, V, n) from its entries, numbers or tensors that broadcast to (P, n).

    Args:
        rows: V rows of V entries.
        like: a tensor of the shape (P, n) and of the dtype wanted.
    """
    entries = [e if isinstance(e, Tensor) else like.new_full((), e) for row in rows for e in row]
    return torch.stack([e.expand_as(like) for e in entries], 1).unflatten(1, (len(rows), len(rows)))


def spike_function(name: str, spike: Any) -> Spike:
    """Return `spike`; TypeError, which names the argument `name`, if it is a class or not callable."""
    if isinstance(spike, type):  # callable, but a call would make a surrogate and no spikes
        got = f"the class {spike.__name__}; write {spike.__name__}()"
    elif callable(spike):
        return spike  # type: ignore[return-value]
    else:
        got = repr(spike)
    raise TypeError(f"{name} must be a surrogate or another callable of v - theta, got {got}.")


# ---- LIF and ALIF


class SpikingStep(NeuronStep):
    """The derivative of a LIF (v) or an ALIF (v, theta): spikes follow v - theta, and a current goes into v alone.

    By this type :mod:`neurolsc.stability.isolated` knows it, and may find its radius from single neurons.
    """
