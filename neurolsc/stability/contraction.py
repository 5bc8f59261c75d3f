r"""Contraction: the rate at which a cell forgets its state, certified, enforced and measured.

A cell :math:`h[t] = \varphi(h[t-1], x[t])` is stable if for some :math:`\lambda < 1`, all states and all inputs

.. math:: \|\varphi(h, x) - \varphi(h', x)\| \le \lambda\, \|h - h'\|.

Then the influence of an input, and the gradient by it, fade over k steps as :math:`\lambda^k`, and a context of few
steps is enough (`truncation`).

**Spikes.** No spiking cell is stable in this sense: two voltages on the two sides of the threshold, however close,
differ after a step by the reset and by a column of the recurrent weights. So the step has no Lipschitz constant, and
:func:`certificate` refuses spiking cells. Their backward pass can be bounded: it is a product of transition derivatives
M, whose size the surrogate limits. :func:`surrogate_rate` bounds :math:`\|M\|_2` in every state,
:func:`backward_norms` measures norms of products of M on data.

Source: J. Miller, M. Hardt, "Stable recurrent models", arXiv:1805.10369; the constants that it leaves out are ours.
"""

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils import parametrize

from neurolsc.network import Network, as_network
from neurolsc.neurons import LIF, LRU, LSTM, RNN, FeedForward
from neurolsc.neurons.cell import Cell, step_of
from neurolsc.neurons.derivatives import flat, unflat
from neurolsc.neurons.spiking import ALIF, Reset
from neurolsc.stability.arnoldi import radii, safe_sqrt
from neurolsc.stability.transitions import follow, gram, time_operator
from neurolsc.surrogate import MultiGaussian, in_two_methods
from neurolsc.surroundings import eval_mode, in_full_precision
from neurolsc.validation import finite, number, whole

SLOPES = {  # largest |a'| and |a''| of an activation; NaN: it has no second derivative
    "relu": (1.0, math.nan),
    "sigmoid": (1 / 4, math.sqrt(3) / 18),
    "tanh": (1.0, 4 / math.sqrt(27)),
    "swish": (1.09983933, 1 / 2),
    "sine": (1.0, 1.0),
    "cosine": (1.0, 1.0),
    "linear": (1.0, 0.0),
}

# The share of its memory that an LSTM forgets in a step is taken as at least this: bounds divide by it.
SMALLEST_FORGOTTEN = 1e-300
# Two states count as one if their distance is below this share of the width of all visited states: the ratio of such
# distances is rounding.
MET = 1e-6
LR = 0.03  # learning rate of Adam, which moves states whose variables are scaled to a range from 0 to 1


# ---- certificates


@dataclass(frozen=True)
class Certificate:
    r"""Bounds that hold for all states that a cell can reach and all inputs up to a norm.

    Attributes:
        rate: :math:`\lambda`: a step multiplies the distance of two states by at most this. Below 1 the cell is stable.
        by_input: :math:`L_x`: a step multiplies the distance of two inputs by at most this (its Lipschitz constant).
        at_rest: :math:`\|\varphi(0, 0)\|`, the norm of the state after a step from 0 without input, which is due to
            the biases.
        input_bound: :math:`B_x`, the largest norm of an input; of an LRU that of its layer norm's output.
        norm: the norm of states and inputs: 2, or ``inf`` for the largest entry.
    """

    rate: float
    by_input: float
    at_rest: float
    input_bound: float
    norm: float

    @property
    def stable(self) -> bool:
        return self.rate < 1

    @property
    def state_bound(self) -> float:
        r"""A bound on the norm of states in a run from 0: :math:`(L_x B_x + \|\varphi(0, 0)\|) / (1 - \lambda)`.

        Raises:
            ValueError: if the rate is not below 1.
        """
        if not self.stable:
            raise ValueError(
                f"a bound needs a stable system, whose rate is below 1, got {self.rate:.4g}: project its weights "
                "(neurolsc.stability.project), or measure what it does on data (measured_rate)."
            )
        return (self.by_input * self.input_bound + self.at_rest) / (1 - self.rate)

    def truncation_error(self, context: int) -> float:
        r"""A bound on the distance of the state after the last k inputs alone from that after all inputs (Lemma 1).

        .. math:: \|h[t] - h^k[t]\| \le \lambda^k\, \frac{L_x B_x + \|\varphi(0, 0)\|}{1 - \lambda}
        """
        return self.rate ** whole("context", context, at_least=0) * self.state_bound

    def context(self, tolerance: float) -> int:
        """The smallest k at which :meth:`truncation_error` is at most a tolerance (Prop. 3).

        For the output of a readout, divide the tolerance by its Lipschitz constant.
        """
        ratio = self.state_bound / number("tolerance", tolerance)
        if ratio <= 1:  # no state is larger than the tolerance
            return 0
        if self.rate == 0:  # has no logarithm; the state depends on the last input alone
            return 1
        return math.ceil(math.log(ratio) / -math.log(self.rate))


@in_full_precision
def certificate(cell: Cell, input_bound: float) -> Certificate:
    r"""Certify how fast a cell forgets its state.

    For any two states h, h' and inputs x, x', a step :math:`\varphi` satisfies

    .. math:: \|\varphi(h, x) - \varphi(h', x')\| \le \lambda\, \|h - h'\| + L_x\, \|x - x'\|

    **RNN**, linear or not: :math:`\lambda = L_a \|W_{rec}\|_2` and :math:`L_x = L_a \|W_{in}\|_2` with the largest
    slope :math:`L_a` of the activation; a feed-forward layer has rate 0.

    **LSTM**: the norm of a state (h, c) is its largest absolute entry; that of a matrix is its largest sum of absolute
    values in a row. With recurrent weights W and input weights U of the gates i, f, o and of the candidate z, the
    forget gate is at most :math:`f = \sigma(\|W_f\| + \|U_f\| B_x + \|b_f\|)`, and

    .. math:: \lambda = f + \tfrac14 \|W_i\| + \|W_z\| + \frac{\|W_f\|}{4 (1 - f)} + \tfrac14 \|W_o\|

    This rate is below 1 under the conditions of Proposition 2. Proof: by Lemma 4 :math:`\|c\| \le 1 / (1 - f)`, so all
    terms but the last bound the change of c. The output h = o tanh c changes by at most
    :math:`\|o - o'\| + \|c - c'\|`, which adds the last term. (The proof is ours: our copy of the source breaks off
    within it.)

    **LRU**: :math:`\lambda = \max_i |\lambda_i|`, always below 1. The input that counts is the output of its layer
    norm, which is bounded whatever x is.

    Args:
        cell: the cell; its parameters are not changed. Runs start at 0.
        input_bound: :math:`B_x`, the largest 2-norm of an input; for an LSTM the largest absolute entry.

    Returns:
        The rate :math:`\lambda`, the constant :math:`L_x`, and the norms that a bound on states needs.

    Raises:
        TypeError: if there is no certificate for such a cell.
        ValueError: if the bound is negative or not finite.

    Source: arXiv:1805.10369, Sec. 2.2, Proposition 2, Lemma 4, App. A.2.
    """
    bound = number("input_bound", input_bound, zero_allowed=True)
    kind = _certified_class(cell)
    with torch.no_grad(), eval_mode(cell):
        if kind is LSTM:
            return _lstm_certificate(cast("LSTM", cell), bound)
        if kind is LRU:
            return _lru_certificate(cast("LRU", cell))
        return _rate_cell_certificate(cast("RNN | FeedForward", cell), bound)


def _rate_cell_certificate(cell: RNN | FeedForward, bound: float) -> Certificate:
    """The certificate of an RNN or FeedForward for inputs of 2-norms up to a bound."""
    slope, _ = SLOPES[cell.activation]
    rate = 0.0  # a feed-forward layer does not read its state
    if isinstance(cell, RNN):
        rate = slope * _two_norm(cell.w_rec)
    return Certificate(
        rate=rate,
        by_input=slope * _two_norm(cell.w_in),
        at_rest=_state_without_input(cell).norm().item(),
        input_bound=bound,
        norm=2.0,
    )


def _lru_certificate(cell: LRU) -> Certificate:
    """The certificate of an LRU's memory, whose input v is the output of the layer norm."""
    scale = cell.gamma_log.exp()  # of what each number of the memory reads (n_state,)
    # v acts on the real and the imaginary parts of the memory: (2 n_state, n_hidden)
    by_v = torch.cat([cell.b_real, cell.b_imag]) * scale.repeat(2).unsqueeze(1)
    # Before weight and bias, the 2-norm of a layer norm's output is at most the root of the width.
    largest_v = math.sqrt(cell.n_hidden) * cell.norm_weight.abs().max() + cell.norm_bias.norm()
    return Certificate(
        rate=cell.modulus.max().item(),
        by_input=_two_norm(by_v),
        at_rest=0.0,  # the memory is linear in v and has no bias
        input_bound=largest_v.item(),
        norm=2.0,
    )


def _lstm_certificate(cell: LSTM, bound: float) -> Certificate:
    """The certificate of an LSTM for inputs of entries up to a bound; symbols as in :func:`certificate`."""
    w_i, w_f, w_z, w_o = (_row_sum(w) for w in cell.w_rec.chunk(4))
    u_i, u_f, u_z, u_o = (_row_sum(u) for u in cell.w_in.chunk(4))
    _, bias_f, _, _ = cell.bias.chunk(4)
    b_f = bias_f.abs().max().item()
    drive = torch.tensor(w_f + u_f * bound + b_f, dtype=torch.float64)  # the largest input of the forget gate
    forgotten = max(torch.sigmoid(-drive).item(), SMALLEST_FORGOTTEN)  # 1 - f
    return Certificate(
        rate=1 - forgotten + w_i / 4 + w_z + w_f / (4 * forgotten) + w_o / 4,
        by_input=u_i / 4 + u_z + u_f / (4 * forgotten) + u_o / 4,
        at_rest=_state_without_input(cell).abs().max().item(),
        input_bound=bound,
        norm=math.inf,
    )


def _state_without_input(cell: Cell) -> Tensor:
    r"""The state :math:`\varphi(0, 0)` after one step from 0 with the input 0, all variables side by side (1, S)."""
    start = cell.initial_state(1)
    x = torch.zeros(1, cell.n_in, **cell.dtype_and_device)
    return flat(cell.update(x, cell.output(start), start)).double()


@in_full_precision
def surrogate_rate(cell: Cell) -> float:
    r"""Return an upper bound of the 2-norm of a LIF's or ALIF's transition derivative M, valid in all of its states.

    .. math:: \|M\|_2 \le \max_i d_i + s_{\max}\, \|W_{rec}\|_2, \qquad
              \|M\|_2 \le \max_i d_i + \sqrt2\, s_{\max} \left\|\begin{pmatrix} W_{rec} \\ \mathrm{diag}\,\beta
              \end{pmatrix}\right\|_2

    for a LIF (left) and for an ALIF (right), with the decays d of voltages and thresholds, the largest surrogate
    derivative :math:`s_{\max}` and the adaptation :math:`\beta`. Where a gradient passes a LIF's reset,
    :math:`W_{rec} - \mathrm{diag}\,\theta` stands for :math:`W_{rec}`. Where the bound is below 1, a gradient shrinks
    by at least this factor at each step back. The bound of a LIF with short time constants and weak recurrence is below
    1; that of an ALIF whose threshold decays slowly hardly ever is. :func:`backward_norms` measures the norm on data.

    Returns:
        The right-hand side of the inequality.

    Raises:
        TypeError: if the cell is neither a LIF nor an ALIF, or the peak of its surrogate is not known.
        ValueError: if a gradient passes the reset of an ALIF or a reset to zero: the derivative then grows with the
            state.
    """
    kind = None
    if isinstance(cell, Cell):
        kind = step_of(type(cell))
    if not isinstance(cell, LIF | ALIF) or kind not in (LIF, ALIF) or not cell._defined_with_its_step("update"):
        raise TypeError(f"surrogate_rate is of LIF and ALIF, got {type(cell).__name__}.")
    if type(cell.reset) is not Reset:
        raise TypeError(f"the derivative of a reset by a {type(cell.reset).__name__} is not known.")
    spike = cell.spike
    w_rec = cell.w_rec.detach().double()
    if not in_two_methods(spike) or type(spike).__module__ != "neurolsc.surrogate":  # a subclass may have another shape
        raise TypeError(f"the largest derivative of the surrogate {type(spike).__name__} is not known.")
    with torch.no_grad():
        if isinstance(spike, MultiGaussian):
            # Its positive lobe in the middle and its two negative ones overlap: |f| is at most the higher peak.
            height = max(1 + spike.height, 2 * spike.height / spike.scale)
            peak = torch.as_tensor(spike.dampening) * height / (spike.sigma * math.sqrt(2 * math.pi))
        else:
            peak = spike.derivative(torch.zeros(1, dtype=torch.float64))  # our other surrogates are highest at 0
        slope = float(torch.as_tensor(peak).max())
        decay = cell.decay_v.max().item()
        if cell.reset.gradient:
            if isinstance(cell, ALIF) or cell.reset.name == "zero":
                raise ValueError(
                    f"the derivative of a {type(cell).__name__} grows with its state while a gradient passes its reset "
                    f"({cell.reset.name!r}): take reset_gradient=False."
                )
            w_rec = w_rec - torch.diag(cell.theta.double())  # the reset subtracts theta times the spike
        if isinstance(cell, LIF):
            return decay + slope * _two_norm(w_rec)
        # Spikes act on voltage and threshold, and depend on v - theta: their derivative (s, -s) has the norm sqrt(2) s.
        both = torch.cat([w_rec, torch.diag(cell.adaptation.double())])
        return max(decay, cell.decay_theta.max().item()) + math.sqrt(2) * slope * _two_norm(both)


def _certified_class(cell: Cell) -> type:
    """The class (FeedForward, RNN, LSTM or LRU) whose step the cell has; TypeError if its step is another one."""
    if isinstance(cell, Cell):
        kind = step_of(type(cell))
        if kind in (FeedForward, RNN, LSTM, LRU) and cell._defined_with_its_step("update"):
            return kind
        if cell.membrane() is not None:
            raise TypeError(
                f"a {type(cell).__name__} has no contraction certificate: a spike is a jump, so its step has no "
                "Lipschitz constant. surrogate_rate and backward_norms are of its backward pass."
            )
    raise TypeError(f"certified are FeedForward, RNN, LSTM and LRU, got {type(cell).__name__}.")


def _two_norm(w: Tensor) -> float:
    """The largest singular value of a matrix."""
    return torch.linalg.matrix_norm(w.detach().double(), 2).item()


def _row_sum(w: Tensor) -> float:
    """The largest sum of absolute values in a row of a matrix."""
    return w.detach().double().abs().sum(1).max().item()


# ---- projections


class _Clip(torch.autograd.Function):
    r"""A square matrix with its singular values s clipped to f(s) = min(s, most).

    Autograd through the SVD divides by differences of singular values. This derivative does not, so it is exact where
    they are equal. With :math:`W = U\, \mathrm{diag}(s)\, V^T` and :math:`E = U^T\, dW\, V` the derivative is

    .. math:: dF = U\, \Big(\frac{f(s_i) - f(s_j)}{s_i - s_j} \circ \frac{E + E^T}{2}
              + \frac{f(s_i) + f(s_j)}{s_i + s_j} \circ \frac{E - E^T}{2}\Big)\, V^T,

    where :math:`f'(s_i)` stands for the first quotient if :math:`s_i = s_j`. This linear map from dW to dF is its own
    adjoint, so the backward pass applies it to the gradient in the place of dW.
    """

    @staticmethod
    def forward(ctx: Any, w: Tensor, most: float) -> Tensor:
        u, s, vh = torch.linalg.svd(w)
        ctx.save_for_backward(u, s, vh)
        ctx.most = most
        return (u * s.clamp(max=most)) @ vh

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        u, s, vh = ctx.saved_tensors
        clipped = s.clamp(max=ctx.most)
        inside = (s <= ctx.most).to(s)  # f'
        gap = s.unsqueeze(1) - s
        total = s.unsqueeze(1) + s
        # The two quotients. Denominators of 0 are set to 1, and their quotients replaced: the first by f', the second,
        # at s = 0, by 1.
        slope = (clipped.unsqueeze(1) - clipped) / gap.masked_fill(gap == 0, 1)
        even = torch.where(gap == 0, (inside.unsqueeze(1) + inside) / 2, slope)
        odd = torch.where(total > 0, (clipped.unsqueeze(1) + clipped) / total.masked_fill(total == 0, 1), 1)
        inner = u.mT @ gradients[0] @ vh.mT
        inner = even * (inner + inner.mT) + odd * (inner - inner.mT)
        return u @ inner @ vh / 2, None


class SpectralBall(nn.Module):
    """A parametrisation that keeps square matrices at a 2-norm of at most `most`: it clips larger singular values.

    The result is the nearest such matrix in the Frobenius norm; ``neurolsc.train(..., clip_spectrum=most)`` clips
    after each update instead. The derivative is exact also where singular values are equal (orthogonal matrices).

    Args:
        most: the largest singular value, above 0.
    """

    def __init__(self, most: float) -> None:
        super().__init__()
        self.most = number("most", most)

    def forward(self, w: Tensor) -> Tensor:
        """The clipped matrix (n, n)."""
        if w.ndim != 2 or w.shape[0] != w.shape[1]:
            raise ValueError(f"a spectral ball is of square matrices, got {tuple(w.shape)}.")
        return _Clip.apply(w, self.most)  # type: ignore[no-any-return]


class RowBalls(nn.Module):
    """A parametrisation that bounds the sum of absolute values in each row of a matrix: it scales larger rows down.

    The directions of the rows stay. (The nearest matrix under the bound is another one.)

    Args:
        most: the bound of each row (rows,); ``inf`` leaves a row as it is.
    """

    most: Tensor

    def __init__(self, most: Tensor) -> None:
        super().__init__()
        self.register_buffer("most", most)

    def forward(self, w: Tensor) -> Tensor:
        """The scaled matrix; a bias (rows,) has rows of one entry."""
        rows = w.reshape(len(w), -1)
        most = self.most.to(w)
        sums = rows.abs().sum(1)
        over = sums > most
        scale = torch.where(over, most, 1) / torch.where(over, sums, 1)
        return (rows * scale.unsqueeze(1)).view_as(w)


@in_full_precision
def stable_sets(
    cell: Cell, input_bound: float, *, rate: float = 0.99, forget: float = 0.64
) -> dict[str, SpectralBall | RowBalls]:
    r"""Return the sets of parameters in which an RNN or LSTM contracts at a rate, by name of the parameter.

    RNN: :math:`\|W_{rec}\|_2 \le \lambda / L_a`. LSTM: Proposition 2, with the bounds on the recurrent weights
    times :math:`\kappa = (\lambda - f) / (1 - f)`, so that the rate of :func:`certificate` is at most :math:`\lambda`.
    The forget gate is at most f if :math:`\|W_f\| + \|U_f\| B_x + \|b_f\| \le \sigma^{-1}(f)`. Of what the bound on
    :math:`W_f` leaves, :math:`\|U_f\| B_x` and :math:`\|b_f\|` get one half each.

    Args:
        cell: the cell.
        input_bound: as in :func:`certificate`.
        rate: :math:`\lambda`, in (0, 1).
        forget: f, the largest value of an LSTM's forget gate, below the rate.

    Returns:
        For each bounded parameter the module that maps it into its set.

    Raises:
        TypeError: if the cell is neither an RNN nor an LSTM, or rate or forget is no number.
        ValueError: if rate or forget are out of range.
    """
    finite("rate", rate)
    finite("forget", forget)
    if not 0 < rate < 1:
        raise ValueError(f"rate must be in (0, 1), got {rate}.")
    kind = _certified_class(cell)
    if kind is RNN:
        slope, _ = SLOPES[cast("RNN", cell).activation]
        return {"w_rec": SpectralBall(rate / slope)}
    if kind is not LSTM:
        raise TypeError(f"an RNN or an LSTM can be projected, got {type(cell).__name__}, which is stable as it is.")
    bound = number("input_bound", input_bound, zero_allowed=True)
    gates = rate - forget  # bound of the recurrent rows of the gates i and o
    forget_gate = gates * (1 - forget)  # bound of the recurrent rows of the forget gate
    share = 0.0  # bound of the forget gate's input times its weights, and of its bias
    if 0 < forget < rate:
        share = (math.log(forget / (1 - forget)) - forget_gate) / 2
    if share <= 0:  # also if forget is out of range
        raise ValueError(f"forget must be below the rate {rate} and leave its gate some input, got {forget}.")
    limits = {  # of the rows of i, f, z and o
        "w_rec": (gates, forget_gate, gates / 4, gates),
        "w_in": (math.inf, share / bound if bound else math.inf, math.inf, math.inf),
        "bias": (math.inf, share, math.inf, math.inf),
    }
    found: dict[str, SpectralBall | RowBalls] = {}
    for name, of_gates in limits.items():
        most = torch.tensor(of_gates, device=cell.dtype_and_device["device"], dtype=torch.float64)
        found[name] = RowBalls(most.repeat_interleave(cell.n_hidden))
    return found


@in_full_precision
def project(cell: Cell, input_bound: float, **options: Any) -> None:
    """Project the parameters of an RNN or LSTM, in place, into their :func:`stable_sets`.

    ``optimizer.register_step_post_hook(lambda *_: project(cell, 1.0))`` projects after every update, also in
    :func:`neurolsc.train`, whose ``optimizer`` may be a function that makes one. `options` are rate and forget.
    """
    with torch.no_grad():
        for name, ball in stable_sets(cell, input_bound, **options).items():
            parameter = getattr(cell, name)
            parameter.copy_(ball(parameter))


def parametrise(cell: Cell, input_bound: float, **options: Any) -> None:
    """Parametrise an RNN or LSTM by its :func:`stable_sets`, so that it is stable whatever an optimizer does.

    `options` are rate and forget. Before the cell is saved, call
    ``torch.nn.utils.parametrize.remove_parametrizations(cell, name)`` for each name.
    """
    for name, ball in stable_sets(cell, input_bound, **options).items():
        parametrize.register_parametrization(cell, name, ball)


# ---- measured on data


@in_full_precision
def measured_rate(cell: Cell, x: Tensor, *, steps: int = 1, pairs: int = 32, ascent: int = 300, seed: int = 0) -> float:
    r"""Search, by gradient ascent, for the two states on data that r steps of a cell drive apart the most.

    .. math:: \lambda_r = \max_{h, h', t} \frac{\|\varphi^r(h) - \varphi^r(h')\|_2}{\|h - h'\|_2}, \qquad
              \varphi^r(h) = \varphi(\cdot, x[t+r]) \circ \dots \circ \varphi(h, x[t+1])

    Inputs are stretches of the data. A state counts as reachable if each variable lies between the smallest and the
    largest value that it takes in the run on the data. Pairs start at two visited states, and Adam climbs the logarithm
    of the ratio.

    Args:
        cell: a cell without spikes; it is copied, and the copy works in float64.
        x: its input (T, B, n_in).
        steps: r, at most T.
        pairs: number of pairs of states.
        ascent: number of steps of ascent.
        seed: seed of the draws of pairs and stretches.

    Returns:
        The largest ratio that was found, a lower bound of the maximum; 0 if all pairs end in the same state. It is at
        most :math:`\lambda^r` of a :func:`certificate` in the 2-norm. An LSTM's is in the maximum norm, and may be
        smaller.

    Raises:
        TypeError: if the cell spikes: a pair on the two sides of a threshold has any ratio.
        ValueError: if x does not fit, or is shorter than r, if the state never changes, or if a number is out of range.

    Source: arXiv:1805.10369, Sec. 4.3; the draw of pairs and what counts as reachable are ours.
    """
    if cell.membrane() is not None:
        raise TypeError(f"measured_rate is of cells without spikes, got {type(cell).__name__}: take backward_norms.")
    whole("pairs", pairs)
    whole("ascent", ascent, at_least=0)
    if x.ndim != 3 or x.shape[2] != cell.n_in or not 1 <= whole("steps", steps) <= len(x):
        raise ValueError(f"x must have shape (T >= {steps}, B, {cell.n_in}), got {tuple(x.shape)}.")
    cell = cell.copy().double().eval().requires_grad_(False)
    x = x.double()
    generator = torch.Generator().manual_seed(seed)
    state = cell.initial_state(x.shape[1])
    like = type(state)(*(leaf[:1] for leaf in state))  # has the shapes of a state, for `unflat`
    visited = [flat(state)]
    for frame in x:
        state = cell.update(frame, cell.output(state), state)
        visited.append(flat(state))
    runs = torch.stack(visited)  # (T + 1, B, S)
    low, high = runs.flatten(0, 1).aminmax(dim=0)
    width = high - low
    if not width.any():
        raise ValueError("the state of the cell does not move on these data: there are no two states to compare.")

    def drawn(count: int) -> Tensor:
        """Draw a number from 0 to count - 1 for each pair (pairs,)."""
        return torch.randint(count, (pairs,), generator=generator)

    # One state of a pair is the one that was visited before its stretch of input, the other is any visited state.
    start = drawn(len(x) - steps + 1)
    sample = drawn(x.shape[1])
    frames = x[start + torch.arange(steps).unsqueeze(1), sample]  # (r, pairs, n_in)
    first = runs[start, sample]
    second = runs[drawn(len(runs)), drawn(x.shape[1])]
    # The states (2, pairs, S) that Adam moves, each variable scaled to 0 ... 1 by its range on the data.
    scale = width.masked_fill(width == 0, 1)  # a variable that never moves stays where it is
    place = ((torch.stack([first, second]) - low) / scale).requires_grad_()
    optimizer = torch.optim.Adam([place], lr=LR)
    best = 0.0
    for _ in range(ascent + 1):  # the ratio is taken before each step of ascent, and after the last
        h = (low + place * width).flatten(0, 1)  # (2 pairs, S)
        distance_before = (h[:pairs] - h[pairs:]).norm(dim=1)
        for frame in frames:
            state = unflat(h, like)
            h = flat(cell.update(frame.repeat(2, 1), cell.output(state), state))
        distance_after = (h[:pairs] - h[pairs:]).norm(dim=1)
        apart = distance_before > MET * width.norm()
        ratio = distance_after[apart] / distance_before[apart]
        if len(ratio):
            best = max(best, ratio.max().item())
        if best == 0:  # the states of every pair are equal, before or after the steps: there is no ratio to climb
            break
        optimizer.zero_grad()
        (-ratio.clamp(min=1e-300).log().sum()).backward()  # 0 has no logarithm
        optimizer.step()
        with torch.no_grad():
            place.clamp_(0, 1)
    return best


@in_full_precision
def backward_norms(network: Network, x: Tensor, *, steps: int = 1) -> Tensor:
    r"""Return norms of products of r transition derivatives of each layer along a run: what r steps do to a gradient.

    .. math:: \lambda_{l,t} = \| M_{t+r-1,l} \cdots M_{t,l} \|_2, \qquad M_{t,l} = \partial h[t, l] / \partial h[t-1, l]

    The norms certify the backward pass on these data, with surrogate derivatives where there are spikes: over m r steps
    within a layer a gradient grows at most by the factor :math:`(\max_t \lambda_{l,t})^m`. Their relative error is at
    most 1 %, as that of :func:`neurolsc.stability.singular_values`.

    Args:
        network: the network; its parameters are not changed.
        x: input (T, B, n_in).
        steps: r, at most T.

    Returns:
        Norms (L, T - r + 1, B).

    Raises:
        TypeError: if network is not one.
        ValueError: if x does not fit it, or is shorter than r.

    Source: the iterated system is that of arXiv:1805.10369, Sec. 4.3; its backward pass by surrogates: ours.
    """
    if whole("steps", steps) > len(x):
        raise ValueError(f"steps must be at most the {len(x)} steps of the input, got {steps}.")
    count = len(x) - steps + 1
    batch = x.shape[1]
    found = []
    with eval_mode(as_network(network)), torch.no_grad():
        transitions, _ = follow(network, x, torch.arange(len(x)))
        for t in transitions:
            # Points are ordered (step, sample). Factor s of the product from step t on is the derivative at step t + s:
            # for all products these are `count` steps from step s on.
            chain = [time_operator(t.at(slice(s * batch, (s + count) * batch))) for s in range(steps)]
            # The radius of M times its transpose is the square of the norm of M.
            squares = radii(gram(chain, count * batch), t.x).radius
            found.append(safe_sqrt(squares).view(count, batch))
    return torch.stack(found)
