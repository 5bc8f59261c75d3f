r"""Truncation: how many steps of context a model, and its gradient, need.

For a stable cell the bounds of *Stable recurrent models* say it. Here they have constants, where the source gives
orders of magnitude. :func:`truncation_errors` measures it on data, for any network, spiking or not.

Source: J. Miller, M. Hardt, "Stable recurrent models", arXiv:1805.10369, Sec. 3.
"""

import math
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor, nn
from torch.func import functional_call

from neurolsc.display import Displayed, Table, or_dash, progress_bar
from neurolsc.network import Network, NetworkState, as_network
from neurolsc.neurons import RNN
from neurolsc.neurons.cell import Cell, frozen
from neurolsc.neurons.derivatives import flat
from neurolsc.stability.contraction import SLOPES, certificate
from neurolsc.stability.indicators import Loss
from neurolsc.surroundings import eval_mode, in_full_precision
from neurolsc.validation import number, whole

SMALLEST_RATE = 1e-6  # the rate of a stable cell counts as at least this in the bounds, which divide by it
CHUNK_GROWTH = 1.1  # factor, but for rounding, between two lengths of chunks that are measured
LARGEST_LOG = 700  # math.exp overflows from 710 on

# ---- states and weights of a stable cell


@in_full_precision
def truncated_states(cell: Cell, x: Tensor, context: int) -> Tensor:
    r"""Return the states of the truncated model: at each step the state of a run from rest over the last k inputs.

    .. math:: h^k[t] = \varphi(h^k[t-1], x[t]), \qquad h^k[t-k] = 0

    Args:
        cell: the cell.
        x: its input (T, B, n_in).
        context: k; from T on these are the states of the full model.

    Returns:
        States (T, B, S), all variables side by side.

    Source: arXiv:1805.10369, eq. 3.
    """
    steps, batch = x.shape[:2]
    context = min(whole("context", context, at_least=0), steps)
    # k zeros stand before the first input, as padding, which the runs skip.
    padded = torch.cat([x.new_zeros(context, batch, cell.n_in), x])
    state = cell.initial_state(steps * batch)  # one run of k inputs for each step, all side by side
    for i in range(context):
        inputs = padded[i + 1 : i + 1 + steps].flatten(0, 1)
        after = cell.update(inputs, cell.output(state), state)
        started = torch.arange(steps, device=x.device) + i + 1 >= context  # else the input is padding
        state = frozen(after, state, started.repeat_interleave(batch))
    return flat(state).view(steps, batch, -1)


@dataclass(frozen=True)
class GradientBounds:
    r"""Bounds on how far truncation moves the gradient of a loss of the last state, and the weights in training.

    They hold for all weights with norms of at most those of the cell, and for all inputs up to the bound.

    Attributes:
        rate: :math:`\lambda`, the largest factor by which a step multiplies the distance of two states.
        gamma: :math:`\gamma` of Lemma 2, the factor of the bound on how far truncation moves the gradient.
        beta: :math:`\beta` of Lemma 3, the Lipschitz constant of the gradient in the weights.
    """

    rate: float
    gamma: float
    beta: float

    def truncation(self, context: int) -> float:
        r"""Lemma 2: :math:`\|\nabla p - \nabla p^k\| \le \gamma\, k\, \lambda^k`, for k of at least 1."""
        return self.gamma * whole("context", context) * self.rate**context

    def proximity(self, context: int, updates: int, *, lr: float = 1.0) -> float:
        r"""Prop. 4: how far truncated gradient descent, with weights :math:`w_k`, is from the full one after N updates.

        .. math:: \|w^N - w^N_k\| \le \alpha\, \gamma\, k\, \lambda^k\, N^{\alpha \beta + 1}

        It holds for learning rates :math:`\alpha / i` of the i-th update, with a projection after each or not.

        Args:
            context: k, from 1.
            updates: N.
            lr: :math:`\alpha`.
        """
        log = self._log_proximity(whole("context", context), updates, lr)
        if log < LARGEST_LOG:
            return math.exp(log)
        return math.inf  # too large for a float

    def context(self, tolerance: float, updates: int, *, lr: float = 1.0) -> int:
        """The smallest k from which on the weights differ by at most a tolerance (Prop. 4, Theorem 1).

        `updates` and `lr` are those of :meth:`proximity`.
        """
        wanted = math.log(number("tolerance", tolerance))
        # From k - 1 to k the bound grows by the factor rate * k / (k - 1), which is at least 1 up to this k, the top.
        top = math.floor(1 / (1 - self.rate))
        if self._log_proximity(top, updates, lr) <= wanted:  # the bound is largest at the top: any k will do
            return 1
        return next(k for k in count(top) if self._log_proximity(k, updates, lr) <= wanted)

    def _log_proximity(self, context: int, updates: int, lr: float) -> float:
        """The logarithm of :meth:`proximity`, which does not overflow."""
        whole("updates", updates)
        factor = number("lr", lr) * self.gamma * context
        if not factor:  # truncation does not move the gradient
            return -math.inf
        return math.log(factor) + context * math.log(self.rate) + (lr * self.beta + 1) * math.log(updates)


@in_full_precision
def gradient_bounds(
    cell: Cell, input_bound: float, *, loss_lipschitz: float = 1.0, loss_smoothness: float = 1.0
) -> GradientBounds:
    r"""Bound how far truncation (Lemma 2) and a change of weights (Lemma 3) move the gradient of a stable RNN.

    The constants are derived anew, as our copy of the source lacks its appendix. Let L and P be the Lipschitz constants
    of the loss of the last state and of its gradient, H the largest state, :math:`L_a` and S the largest slope and
    curvature of the activation, and :math:`N = \sqrt{H^2 + B_x^2 + 1}` the norm of what the weights multiply. Then the
    step is :math:`L_w = L_a N`-Lipschitz in the weights, and its derivatives by h and w are Lipschitz with

    .. math:: b_{hh} = S \|W\|^2, \qquad b_{hw} = S \|W\| N + L_a, \qquad b_{ww} = S N^2.

    The gradient is a sum over steps back, in which states differ by :math:`\lambda^i H` under truncation and by
    :math:`E = L_w / (1 - \lambda)` for each unit of weights:

    .. math::
        \gamma &= \frac{L_w (L + P H)}{1 - \lambda} + \frac{L H}{\lambda} \Big(\frac{L_w b_{hh}}{1 - \lambda} +
            b_{hw}\Big) \\
        \beta &= \frac{P E L_w + L (b_{hw} E + b_{ww})}{1 - \lambda} +
            \frac{L L_w (b_{hh} E + b_{hw})}{(1 - \lambda)^2}

    Args:
        cell: an RNN, linear or of a smooth activation.
        input_bound: :math:`B_x`, of the 2-norm of an input.
        loss_lipschitz: L.
        loss_smoothness: P.

    Raises:
        TypeError: if the cell is not an RNN.
        ValueError: if it is not stable, or its activation is not smooth.

    Source: arXiv:1805.10369, Lemmas 2 and 3, App. A.2.1 (which bounds the curvature of tanh by 2, here it is
    :math:`4 / \sqrt{27}`).
    """
    if not isinstance(cell, RNN):
        raise TypeError(f"bounds of the gradient are of RNN, got {type(cell).__name__}.")
    bounds = certificate(cell, input_bound)
    slope, curvature = SLOPES[cell.activation]
    if math.isnan(curvature):  # it has no second derivative
        raise ValueError(f"bounds of the gradient need a smooth activation, got {cell.activation!r}.")
    lipschitz = number("loss_lipschitz", loss_lipschitz, zero_allowed=True)
    smooth = number("loss_smoothness", loss_smoothness, zero_allowed=True)
    # A rate of 0 is raised: a larger rate is a bound, too, and the gradient still reads the state before.
    rate = max(bounds.rate, SMALLEST_RATE)
    forgotten = 1 - rate
    # the symbols of the docstring
    largest = bounds.state_bound  # H
    weight = bounds.rate / slope  # |W|
    read = math.sqrt(largest**2 + bounds.input_bound**2 + 1)  # N
    by_w = slope * read  # L_w
    hh = curvature * weight**2  # b_hh
    hw = curvature * weight * read + slope  # b_hw
    ww = curvature * read**2  # b_ww
    apart = by_w / forgotten  # E
    gamma = by_w * (lipschitz + smooth * largest) / forgotten
    gamma += lipschitz * largest / rate * (by_w * hh / forgotten + hw)
    beta = (smooth * apart * by_w + lipschitz * (hw * apart + ww)) / forgotten
    beta += lipschitz * by_w * (hh * apart + hw) / forgotten**2
    return GradientBounds(rate, gamma, beta)


# ---- measured on any network


@dataclass(frozen=True, repr=False)
class TruncationErrors(Displayed):
    """Relative errors of each layer's gradient in truncated backpropagation; made by :func:`truncation_errors`.

    An error is the norm of the difference from the full gradient, over the norm of the full gradient.

    Attributes:
        window: errors (L, T) if the loss of each step is propagated back over k = 1 ... T steps; NaN for a layer
            without a gradient.
        chunks: errors (L, K) if the state is detached every k steps, for each k of `sizes`; NaN likewise.
        sizes: lengths of chunks (K,), each about a tenth longer than the one before, up to T.
        decay: mean norm of the gradient of the loss at step t + i by the input at step t, for i = 0 ... T - 1 (T,).
    """

    window: Tensor
    chunks: Tensor
    sizes: Tensor
    decay: Tensor

    def needed(self, tolerance: float = 0.01, *, chunks: bool = False) -> list[int | None]:
        """For each layer the smallest k from which on the error is at most a tolerance; None without a gradient.

        k is the length of a window, or with ``chunks=True`` one of `sizes`.
        """
        number("tolerance", tolerance)
        if chunks:
            errors = self.chunks
            sizes = self.sizes.tolist()
        else:
            errors = self.window
            sizes = range(1, errors.shape[1] + 1)
        found: list[int | None] = []
        for row in errors:
            if row.isnan().any():
                found.append(None)
                continue
            too_far = (row > tolerance).nonzero().flatten().tolist()
            last = max(too_far, default=-1)
            found.append(sizes[last + 1])  # there is one: the error over all steps is 0
        return found

    def parts(self) -> list[str | Table]:
        total = self.window.shape[1]
        shown = [k for k in (1, 10, 100) if k < total]
        rows = []
        for i, (steps, chunk) in enumerate(zip(self.needed(), self.needed(chunks=True), strict=True)):
            errors = (or_dash(self.window[i, k - 1].item(), ".1%") for k in shown)
            rows.append((str(i + 1), or_dash(steps, "d"), or_dash(chunk, "d"), *errors))
        head = ("layer", "steps back", "or chunks of", *(f"error at {k}" for k in shown))
        return [f"truncated backpropagation: gradient within 1% of that over all {total} steps", Table(head, rows)]


@in_full_precision
def truncation_errors(network: Network, x: Tensor, loss: Loss, *, progress: bool = False) -> TruncationErrors:
    r"""Measure how many steps of truncated backpropagation a network needs for its gradient.

    The gradient of a loss of all logits is a sum over pairs of a step s, at which a logit is read, and a step t before
    it, at which a parameter w acts,

    .. math:: \nabla_w = \sum_s \sum_{t \le s} G_{s,t}, \qquad
              G_{s,t} = \frac{\partial L}{\partial o[s]} \frac{\partial o[s]}{\partial w[t]},

    and truncation leaves some pairs out. A window of k steps leaves out those with s - t >= k, as the truncated model
    of Lemma 2 does. Chunks of k steps (the state is detached every k steps) leave out those with s and t in two chunks;
    the first steps of a chunk go back over few steps, so chunks have to be many windows long. Spiking networks have the
    gradients of their surrogates.

    Args:
        network: the network; its parameters are not changed.
        x: input (T, B, n_in), without padding.
        loss: a number with a gradient, of the logits (T, B, C).
        progress: show a progress bar.

    Returns:
        Errors of the parameters of each cell, and the decay of the gradient with distance.

    Raises:
        TypeError: if network is not one.
        ValueError: if x does not fit it.

    Cost: T backward passes, and memory for a few gradients of every step.

    Source: arXiv:1805.10369, Lemma 2 and Fig. 3; windows and chunks: R. J. Williams, J. Peng, Neural Computation 2
    (1990).
    """
    step = _Step(as_network(network))
    x, _, _ = network._check_arguments(x, None, None)
    total = len(x)
    like = network.dtype_and_device
    sizes = _sizes_of_chunks(total)
    bar = progress_bar(total, desc="gradients", unit="step", shown=progress)
    with eval_mode(network), torch.enable_grad(), bar:
        x = x.detach().to(**like).requires_grad_()
        # For each cell its parameters by name, expanded to (T, ...), which takes no memory. So their gradient has a
        # part for each step.
        apart: list[dict[str, Tensor]] = []
        for i in range(len(network.cells)):
            prefix = f"network.cells.{i}."
            own = {n: p.detach() for n, p in step.named_parameters() if n.startswith(prefix) and p.requires_grad}
            apart.append({n: p.expand(total, *p.shape).requires_grad_() for n, p in own.items()})
        at_steps = {n: p.unbind(0) for own in apart for n, p in own.items()}
        carried = None  # the states and outputs that a step passes on to the next
        outputs = []
        for t, frame in enumerate(x.unbind(0)):
            logits, carried = functional_call(step, {n: p[t] for n, p in at_steps.items()}, (frame, carried))
            outputs.append(logits)
        logits = torch.stack(outputs).detach().requires_grad_()  # detached: each step is propagated back by itself
        (by_logits,) = torch.autograd.grad(loss(logits), logits)
        leaves = [x, *(p for own in apart for p in own.values())]
        widths = [sum(p[0].numel() for p in own.values()) for own in apart]
        away = [torch.zeros(total, width, **like) for width in widths]  # sums of G over all pairs s - t = 0, 1, ...
        within = [torch.zeros(len(sizes), width, **like) for width in widths]  # over all pairs within a chunk, by size
        decay = torch.zeros(total, **like)
        for s in range(total):
            by_x, *gradients = torch.autograd.grad(
                outputs[s], leaves, by_logits[s], retain_graph=s + 1 < total, materialize_grads=True
            )
            decay[: s + 1] += by_x[: s + 1].norm(dim=2).mean(1).flip(0)
            found = iter(gradients)
            for i, own in enumerate(apart):
                parts = [next(found)[: s + 1].flatten(1) for _ in own]
                if not parts:
                    continue
                by_distance = torch.cat(parts, 1).flip(0)  # rows: G of s - t = 0, 1, ...
                away[i][: s + 1] += by_distance
                within[i] += by_distance.cumsum(0)[s % sizes]  # the chunk of s began s % size steps before
            bar.update()
        decay /= torch.arange(total, 0, -1, device=decay.device)  # number of pairs at each distance
    window = []
    chunks = []
    for far, near in zip(away, within, strict=True):
        beyond = far.flip(0).cumsum(0).flip(0).norm(dim=1)  # what a window of 0, 1, ... steps leaves out
        whole_gradient = near[-1]  # the last size is one chunk of all steps
        # entry k is of a window of k + 1 steps; NaN for a cell without parameters
        window.append(torch.cat([beyond[1:], beyond.new_zeros(1)]) / whole_gradient.norm())
        chunks.append((near - whole_gradient).norm(dim=1) / whole_gradient.norm())
    return TruncationErrors(torch.stack(window).cpu(), torch.stack(chunks).cpu(), sizes, decay.cpu())


def _sizes_of_chunks(total: int) -> Tensor:
    """Lengths of chunks (K,) from 1 to `total`, each about a tenth longer than the one before."""
    lengths = {total}
    for i in range(1 + int(math.log(total, CHUNK_GROWTH))):
        lengths.add(round(CHUNK_GROWTH**i))
    return torch.tensor(sorted(lengths))


class _Step(nn.Module):
    """One step of a network as a module's forward, so that `functional_call` can give each step its own parameters.

    It maps an input (B, n_in), and the states and outputs after the step before (None at rest), to the logits (B, C),
    and the states and outputs after this step.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(
        self, x: Tensor, carried: tuple[NetworkState, tuple[Tensor, ...]] | None
    ) -> tuple[Tensor, tuple[NetworkState, tuple[Tensor, ...]]]:
        if carried is None:
            rest = self.network.initial_states(len(x))
            sent = (cell.output(state) for cell, state in zip(self.network.cells, rest.layers, strict=True))
            carried = rest, tuple(sent)
        states, outputs = carried
        record = self.network._record(x, outputs, states)
        return self.network.readout(record.outputs[-1]), (record.after, record.outputs)
