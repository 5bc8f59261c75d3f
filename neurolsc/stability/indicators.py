"""How gradients and activity get through a network: indicators besides its radii, which `diagnose` measures."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from neurolsc.metrics import is_binary
from neurolsc.network import Network, NetworkState, as_network
from neurolsc.neurons.cell import State
from neurolsc.neurons.derivatives import JacobianOperator, LinearOperator, flat, unflat
from neurolsc.neurons.neuronwise import BlockStep
from neurolsc.neurons.weights import weight_matrices
from neurolsc.stability.arnoldi import radii, safe_sqrt
from neurolsc.stability.conditions import surrogate_slope
from neurolsc.stability.eigen import spectral_radius
from neurolsc.stability.isolated import norms_of_blocks
from neurolsc.stability.transitions import (
    Transitions,
    depth_operators,
    draw_steps,
    follow,
    gram,
    output_of,
    time_operator,
    zeroed,
)
from neurolsc.surroundings import eval_mode, in_full_precision, without_autocast
from neurolsc.validation import whole

Loss = Callable[[Tensor], Tensor]  # a number with a gradient, from the logits (T, B, C)

SATURATED = 0.9  # spikes per step above which a neuron counts as saturated
STEPS_AT_ONCE = 32  # steps whose derivatives are held at once: those of a long run might fill the memory
ROUNDING = 1e-12  # variances and squared distances up to this, of numbers of about 1, are float64's rounding


# ---- growth


@in_full_precision
def lyapunov_exponents(network: Network, x: Tensor, *, count: int = 1, seed: int = 0) -> Tensor:
    r"""Return finite-time Lyapunov exponents: how fast small changes of a layer's state grow or fade along a run.

    With the derivatives :math:`M_t = \partial h[t, l] / \partial h[t-1, l]` along the run of a sample and orthonormal
    columns :math:`Q_0` drawn at random (QR method),

    .. math:: Q_t R_t = M_t Q_{t-1}, \qquad
              \lambda_i = \frac{1}{T} \sum_{t=1}^{T} \log |(R_t)_{ii}|

    The radius of one step says nothing about a product of steps whose directions differ; the exponents do. The
    derivative of the whole network is block triangular, so as T grows its exponents become those of its layers
    together.

    Args:
        network: the network; its parameters are not changed.
        x: input (T, B, n_in).
        count: number of exponents of each layer, at most its number of state variables.
        seed: seed of the first directions.

    Returns:
        Exponents (L, B, count), in nats per step; above 0 gradients through time explode. An exponent is ``-inf`` where
        a derivative maps its direction to 0.

    Source: Benettin et al., Meccanica 15 (1980); Engelken, Wolf & Abbott, arXiv:2006.02427 (recurrent networks); Vogt
    et al., arXiv:2006.14123 (gradients).
    """
    whole("count", count)
    with eval_mode(as_network(network)), torch.no_grad():
        transitions, _ = follow(network, x, torch.arange(x.shape[0]))
        smallest = min(t.states for t in transitions)
        if count > smallest:
            raise ValueError(
                f"count must be at most the {smallest} state variables of the smallest layer, got {count}."
            )
        return torch.stack([layer_exponents(t, x.shape[1], count, seed) for t in transitions])


@without_autocast()
def exponent_loss(network: Network, x: Tensor, target: float = 0.0, *, count: int = 1, seed: int = 0) -> Tensor:
    r"""Return the mean squared distance of the Lyapunov exponents to a target, with a gradient ("gradient flossing").

    With the k largest exponents :math:`\lambda_i` of L layers and B samples (:func:`lyapunov_exponents`),

    .. math:: \mathcal{L} = \frac{1}{L B k} \sum_{l,b,i} (\lambda_i[l, b] - \lambda^*)^2

    The gradient goes through the products of all T derivatives and their surrogates, to the parameters of the steps.
    The states of the run are constants in it, as in pre-training. A layer with an exponent of ``-inf`` in any sample is
    left out.

    Args:
        network: the network; the ``grad`` of its parameters stays as it is.
        x: input (T, B, n_in) of a run from rest; padding counts as steps.
        target: :math:`\lambda^*`, in nats per step.
        count: k, number of exponents of each layer.
        seed: seed of the first directions.

    Returns:
        The loss, a tensor (); 0 if all layers are left out.

    Source: Engelken, arXiv:2312.17306, of rate networks, with a target of 0. There the gradient goes through the states
    as well.
    """
    with eval_mode(as_network(network)):
        transitions, _ = follow(network, x, torch.arange(x.shape[0]))
        with torch.enable_grad():
            found = [layer_exponents(t, x.shape[1], count, seed) for t in transitions]
    finite = [exponents for exponents in found if exponents.isfinite().all()]
    if not finite:
        return torch.zeros((), requires_grad=True)
    return torch.stack(finite).sub(target).square().mean()


def layer_exponents(t: Transitions, batch: int, count: int, seed: int) -> Tensor:
    """Lyapunov exponents (B, count) of one layer, largest first, from all steps of a run of `batch` samples.

    Args:
        t: the layer at all steps, its points ordered (step, sample).
        batch: B.
        count: number of exponents.
        seed: seed of the first directions.
    """
    size = t.states
    like = t.x
    steps = len(like) // batch
    drawn = torch.randn(size, count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    q = torch.linalg.qr(drawn)[0].to(like).expand(batch, -1, -1)  # directions as columns (B, S, count)
    copies = torch.arange(batch, device=like.device).repeat_interleave(count)  # each sample once for each direction
    total = like.new_zeros(batch, count)  # sum of the logarithms of growth factors
    for some in t.chunks(STEPS_AT_ONCE * batch):
        derivatives = time_operator(some)
        for first in range(0, len(some.x), batch):
            images = derivatives.take(first + copies).matvec(q.mT.reshape(batch * count, size))
            images = images.view(batch, count, size).mT  # M Q
            if count == 1:  # QR would do the same, but costs more than the product with the derivative
                length = torch.linalg.vector_norm(images, dim=1)
                q = images / length.clamp(min=torch.finfo(length.dtype).tiny).unsqueeze(1)
            else:
                q, r = torch.linalg.qr(images)
                length = r.diagonal(dim1=1, dim2=2).abs()
            total = total + length.log()
    return total / steps


@in_full_precision
def singular_values(network: Network, x: Tensor, *, steps: int | None = None, seed: int = 0) -> tuple[Tensor, Tensor]:
    r"""Return the largest singular value of every transition derivative of a network, with an error of at most 1 %.

    .. math:: \sigma_{\max}(M) = \max_{|u| = 1} |M u| = \sqrt{\rho(M^T M)}

    It bounds the factor by which one step can enlarge a gradient. The radius says by which factor each of many equal
    steps does. Between layers of unequal widths a singular value needs no sub-matrix, unlike a radius.

    Args:
        network: the network; its parameters are not changed.
        x: input (T, B, n_in).
        steps: K, number of the T time steps, drawn at random; None: all.
        seed: seed of the draw of steps.

    Returns:
        Those through time and those through depth, each (L, K, B): layer, step, sample. Layer 0 through depth is the
        derivative by the input.

    Source: Pascanu, Mikolov & Bengio 2013, arXiv:1211.5063 (singular values and gradients).
    """
    chosen = draw_steps(x.shape[0], steps, torch.Generator().manual_seed(seed))
    with eval_mode(as_network(network)), torch.no_grad():
        transitions, _ = follow(network, x, chosen)
        shape = (len(chosen), x.shape[1])
        time = [largest_singular(t, [time_operator(t)]).view(shape) for t in transitions]
        depth = [largest_singular(t, depth_operators(t)).view(shape) for t in transitions]
    return torch.stack(time), torch.stack(depth)


def recurrence_radius(t: Transitions) -> Tensor:
    r"""Return the radius of the path from spike to spike through the recurrent weights W alone, at P points (P,).

    With the output z of a state h, and the next state h', it is the spectral radius of the product

    .. math:: \frac{\partial z}{\partial h} \Big(\frac{\partial h'}{\partial z}\Big|_{W} -
              \frac{\partial h'}{\partial z}\Big|_{W = 0}\Big).

    In a LIF or ALIF with surrogate derivatives s that matrix is :math:`\mathrm{diag}(s)\, W_{rec}`. Leaks, resets and
    adaptation have no part in it.
    """
    h = flat(t.before)

    def step(z: Tensor, x: Tensor, h: Tensor) -> Tensor:
        return flat(t.cell.update(x, z, unflat(h, t.before)))

    with torch.no_grad():
        z = t.cell.output(t.before)
        by_output = JacobianOperator(step, z, t.x, h).matrices()
        with zeroed(weight_matrices(t.cell, "time")):
            by_output_without_weights = JacobianOperator(step, z, t.x, h).matrices()
        by_state = JacobianOperator(output_of(t.cell, t.before), h).matrices()
        return spectral_radius(by_state @ (by_output - by_output_without_weights))


def largest_singular(t: Transitions, operators: Sequence[LinearOperator]) -> Tensor:
    """Return the largest singular values (P,) of a product at the points of t, its operators in the order they act."""
    only = operators[0]
    if len(operators) == 1 and isinstance(only, BlockStep):  # neurons that do not read each other
        return norms_of_blocks(only)
    if all(part.same for part in operators):  # M is the same at all points
        points = 1
    else:
        points = len(t.x)
    squares = radii(gram(operators, points), t.x).radius
    return safe_sqrt(squares).expand(len(t.x))


# ---- gradients


@in_full_precision
def state_gradients(network: Network, x: Tensor, loss: Loss) -> Tensor:
    r"""Return norms of the gradient of a loss by the state of every layer, step and sample.

    .. math:: G_{l,t,b} = \Big\lVert \frac{\mathrm{d} L}{\mathrm{d} h[t, l]_b} \Big\rVert_2

    The gradient goes through all later steps and higher layers. The graph of all T steps stays in memory. The ``grad``
    of parameters stays as it is.

    Args:
        network: the network.
        x: input (T, B, n_in).
        loss: a number with a gradient, of the logits (T, B, C).

    Returns:
        Norms (L, T, B). If the loss reads the last step alone, step T-1-k shows what is left of the gradient k steps
        back.

    Source: Pascanu, Mikolov & Bengio 2013, arXiv:1211.5063.
    """
    with eval_mode(as_network(network)), torch.enable_grad():
        start = None
        if x.ndim == 3:  # `records` raises the error for another shape
            rest = network.initial_states(x.shape[1])
            # The first states require a gradient, so that later ones have one also where no parameter is trained.
            layers = (type(s)(*(leaf.detach().clone().requires_grad_() for leaf in s)) for s in rest.layers)
            start = NetworkState(tuple(layers), rest.x)
        moments = list(network.records(x, start))
        logits = torch.stack([network.readout(m.outputs[-1]) for m in moments])
        states = [layer for m in moments for layer in m.after.layers]
        found = iter(_gradients(loss(logits), [leaf for state in states for leaf in state]))

    def norm_over_variables(state: State) -> Tensor:
        """The norm (B,) of the next gradients of `found`, one for each variable of the state."""
        of_variables = [next(found).detach().abs().flatten(1) for _ in state]
        return torch.cat(of_variables, 1).norm(dim=1)

    norms = torch.stack([norm_over_variables(state) for state in states])  # (T L, B), step after step
    return norms.unflatten(0, (len(moments), -1)).transpose(0, 1)


@in_full_precision
def parameter_gradients(
    network: Network, x: Tensor, loss: Loss, *, mask: Tensor | None = None
) -> tuple[dict[str, Tensor], ...]:
    """Return the gradients of a loss by the parameters of each of L cells, and last of the readout, by name.

    Frozen parameters are left out; ``grad`` of the parameters stays as it is. Several cells can hold the same
    parameter, as the layers of one ``torch.nn.LSTM`` do. It is counted for the cell that lists it in
    :meth:`neurolsc.Cell.pretrained`.

    Args:
        network: the network.
        x: input (T, B, n_in).
        loss: a number with a gradient, of the logits (T, B, C).
        mask: (T, B) bool, True at steps that are no padding; by default all.
    """
    parameters = trained_parameters(as_network(network))
    with eval_mode(network), torch.enable_grad():
        value = loss(network.run(x, mask=mask).logits)
    return gradients_by(value, parameters)


def trained_parameters(network: Network) -> list[dict[str, nn.Parameter]]:
    """Return the parameters of each cell that are trained, and last those of the readout, by name; each counts once."""
    holders = Counter(p for cell in network.cells for p in cell.parameters())  # how many cells hold each parameter
    parameters: list[dict[str, nn.Parameter]] = []
    for cell in network.cells:
        pretrained = set(cell.pretrained())
        named = cell.named_parameters()
        parameters.append({n: p for n, p in named if p.requires_grad and (holders[p] == 1 or p in pretrained)})
    parameters.append({n: p for n, p in network.readout.named_parameters() if p.requires_grad})
    return parameters


def gradients_by(value: Tensor, parameters: list[dict[str, nn.Parameter]]) -> tuple[dict[str, Tensor], ...]:
    """Return the gradients of a number by parameters, in the same order and by the same names."""
    found = iter(_gradients(value, [p for part in parameters for p in part.values()]))
    return tuple({name: next(found).detach() for name in part} for part in parameters)


def together(gradients: dict[str, Tensor]) -> Tensor:
    """All gradients of a layer side by side, as one vector."""
    if not gradients:  # no parameter is trained
        return torch.empty(0)
    return torch.cat([g.flatten() for g in gradients.values()])


def _gradients(value: Tensor, by: list[Tensor]) -> list[Tensor]:
    """The gradients of a number by tensors; 0 by those on which it does not depend."""
    reached = [t for t in by if t.requires_grad]
    if not (reached and value.requires_grad):
        return [torch.zeros_like(t) for t in by]
    gradients = torch.autograd.grad(value, reached, materialize_grads=True, allow_unused=True)
    found = dict(zip(reached, gradients, strict=True))
    return [found[t] if t in found else torch.zeros_like(t) for t in by]


@in_full_precision
def signal_to_noise(gradients: Tensor) -> float:
    r"""Return the squared norm of the mean gradient of K >= 2 batches (K, P) over its variance between them.

    .. math:: \mathrm{SNR} = \frac{\lVert \bar g \rVert^2}{\sum_p \mathrm{var}_k\, g_{k,p}},
        \qquad \bar g = \frac{1}{K} \sum_k g_k, \quad
        \mathrm{var}_k\, g_k = \frac{1}{K-1} \sum_k \lvert g_k - \bar g \rvert^2

    Noise of mean 0 alone gives about 1 / K. Where the mean is far above the noise, batches m times as large give m
    times the ratio. It is ``inf`` if all batches agree, and ``nan`` if all gradients are 0.

    Source: McCandlish et al. 2018, arXiv:1812.06162 (the reciprocal of its simple noise scale).
    """
    mean = gradients.mean(0)
    # torch.var over a few rows takes twenty times as long
    noise = (gradients - mean).abs().square().sum() / (len(gradients) - 1)
    return (mean.abs().square().sum() / noise).item()


@in_full_precision
def active_surrogate_fraction(
    network: Network, x: Tensor, *, threshold: float = 0.1, steps: int | None = None, seed: int = 0
) -> Tensor:
    r"""Return the share of neurons, steps and samples at which the surrogate's derivative is not nearly 0.

    .. math:: \frac{1}{K B n} \sum_{t,b,i} \Big[\, \Big|\frac{\partial z_i}{\partial v_i}\Big|
        \ge \text{threshold} \cdot \max_v \frac{\partial z_i}{\partial v_i} \Big]

    Elsewhere hardly any gradient reaches the neuron's weights. The largest derivative is taken to be that at the
    threshold.

    Args:
        network: the network.
        x: input (T, B, n_in).
        threshold: share of the largest derivative that a derivative needs to count.
        steps: K, number of the T time steps, drawn at random; None: all.
        seed: seed of the draw of steps.

    Returns:
        Shares (L,); NaN for a layer that does not spike, or whose cell has no :meth:`neurolsc.Cell.membrane`.
    """
    chosen = draw_steps(x.shape[0], steps, torch.Generator().manual_seed(seed))
    with eval_mode(as_network(network)):
        transitions, _ = follow(network, x, chosen)
        return torch.tensor([active_fraction(t, threshold) for t in transitions])


def active_fraction(t: Transitions, threshold: float = 0.1) -> float:
    """:func:`active_surrogate_fraction` of one layer, at the points of t; NaN likewise."""
    membrane = t.cell.membrane()
    if membrane is None:
        return math.nan
    with torch.enable_grad():
        v = getattr(t.before, membrane.name).detach().requires_grad_()
        before = t.before._replace(**{membrane.name: v})
        z = t.cell.output(before)
        # If the spikes are a variable of the state, they do not depend on v: take the spikes of the next step.
        if z.grad_fn is None:
            z = t.cell.output(t.cell.update(t.x, z.detach(), before))
        # a layer that does not spike: no derivative, or not one output for each voltage, or outputs other than 0 and 1
        if not z.requires_grad or z.numel() != v.numel() or not is_binary(z):
            return math.nan
        (slope,) = torch.autograd.grad(z.sum(), v, materialize_grads=True, allow_unused=True)
    peak = surrogate_slope(membrane, v.new_zeros(1)).abs()
    active = (slope.flatten(1).abs() >= threshold * peak) & (peak > 0)
    return active.double().mean().item()


# ---- activity


class Activity(NamedTuple):
    """The activity of a layer's neurons; all NaN if outputs are not all 0 or 1."""

    rate: float  # spikes per neuron and step
    dead: float  # share of the neurons that fire at no step of any sample
    saturated: float  # share of the neurons that fire at more than nine steps of ten
    synchrony: float  # share of the neurons' variance over time that they have in common


@in_full_precision
def activity(spikes: Tensor, mask: Tensor | None = None) -> Activity:
    r"""Return rate, dead and saturated neurons, and synchrony of one layer.

    Synchrony is a ratio of two variances over time, each summed over samples: that of the layer's mean output, over the
    mean of those of its neurons,

    .. math:: \chi^2 = \frac{\sum_b \mathrm{var}_t\, \frac{1}{n} \sum_i z_i[t, b]}
        {\sum_b \frac{1}{n} \sum_i \mathrm{var}_t\, z_i[t, b]},

    1 where all neurons fire at the same steps, about 1 / n where they are independent, and NaN where none ever
    changes. An input that comes and goes drives it up as well.

    Args:
        spikes: outputs (T, B, n).
        mask: (T, B) bool, True at the steps that count; None: all.

    Returns:
        All four; NaN for outputs other than 0 and 1. Saturated neurons fire in more than SATURATED of the steps.

    Source: Golomb & Rinzel, Physica D 72 (1994) (synchrony).
    """
    if not is_binary(spikes):
        return Activity(math.nan, math.nan, math.nan, math.nan)
    z = spikes.detach().float()
    if mask is None:
        counted = z.new_ones(z.shape[:2], dtype=torch.float64)
    else:
        counted = mask.double()
        z = z * mask.unsqueeze(-1)
    steps = counted.sum(0)  # of each sample (B,)
    # Sums of zeros and ones are exact in float32 up to 16 million.
    fired = z.sum(0).double()  # spikes of each neuron in each sample (B, n)
    rate = fired.sum(0) / steps.sum()
    dead = (rate == 0).double().mean().item()
    saturated = (rate > SATURATED).double().mean().item()

    # The square of a spike is the spike: a neuron that fires at a share p of the steps has the variance p (1 - p).
    p = fired / steps.unsqueeze(1)
    of_neurons = (p * (1 - p)).mean(-1).sum()  # mean over neurons, sum over samples
    firing = z.sum(-1).double() / z.shape[-1]  # share of the neurons that fire in a step (T, B)
    weight = counted / steps  # weight of a step in the mean over a sample's steps (T, B)
    mean = (weight * firing).sum(0)
    of_mean = (weight * (firing - mean).square()).sum()  # sum over samples
    if of_neurons > ROUNDING:
        synchrony = (of_mean / of_neurons).item()
    else:  # no neuron ever changes
        synchrony = math.nan
    return Activity(rate.mean().item(), dead, saturated, synchrony)


@in_full_precision
def similarity_to_input(x: Tensor, layer: Tensor, *, windows: int = 10) -> float:
    r"""Return how well a layer preserves the similarities between the samples of its input, from 0 to 1.

    A sample is described by its sums over equal windows of time. The similarities of samples are the scalar products
    :math:`K = X X^T` of the input and :math:`L` of the layer. :math:`\tilde K` and :math:`\tilde L` are U-centred:
    without diagonal, and every row sums to 0. For independent samples their scalar product is 0 on the average. The
    result is

    .. math:: s = \max\Big(0, \frac{\langle \tilde K, \tilde L \rangle}
        {\lVert \tilde K \rVert\, \lVert \tilde L \rVert}\Big)^2,

    the share of the variance of :math:`\tilde K` that a positive multiple of :math:`\tilde L` predicts: 1 for an
    identity, a rotation and any scale, 0 for a layer that is silent or the same for all samples, and
    :math:`O(1 / B^2)` for noise independent of the input. A low share is no fault: a layer may preserve a small
    difference that decides and drop the rest. NaN for fewer than 4 samples, or where all samples of the input are
    alike.

    Args:
        x: the input (T, B, N).
        layer: what the layer sends (T, B, M).
        windows: number of windows into which the time is divided, at least 1; at most T are made.

    Raises:
        TypeError: if windows is no int.
        ValueError: if it is below 1.

    Source: Song et al. 2012, JMLR 13 (unbiased HSIC); Székely & Rizzo 2014, arXiv:1310.2926 (U-centring); Kornblith
    et al. 2019, arXiv:1905.00414 (CKA, of which s is the debiased square).
    """
    whole("windows", windows)
    if x.shape[1] < 4:  # U-centring leaves no degree of freedom to three samples
        return math.nan
    windows = min(windows, len(x))
    of_x = _similarities(x, windows)
    of_layer = _similarities(layer, windows)
    if not of_x.norm() > 0:  # there is nothing to preserve
        return math.nan
    if not of_layer.norm() > 0:
        return 0.0
    cosine = (of_x * of_layer).sum() / (of_x.norm() * of_layer.norm())
    return cosine.clamp(min=0).square().item()


def _similarities(x: Tensor, windows: int) -> Tensor:
    """The U-centred scalar products of samples (B, B), from x (T, B, N) summed over equal windows of time.

    They are 0 if all samples are alike.
    """
    if x.is_floating_point():
        x = x.detach()
    else:
        x = x.float()
    sums = torch.cat([part.double().sum(0) for part in x.tensor_split(windows)], 1)
    sums = sums - sums.mean(0)  # U-centring would subtract the mean as well, but with more rounding
    samples, features = sums.shape
    products = sums @ sums.T
    largest = max(1.0, x.abs().max().item())
    if products.diagonal().max() <= ROUNDING * features * largest**2:
        return torch.zeros_like(products)  # all samples are equal but for rounding
    products.fill_diagonal_(0)
    rows = products.sum(1)
    by_row = (rows[:, None] + rows) / (samples - 2)
    by_all = rows.sum() / ((samples - 1) * (samples - 2))
    return (products - by_row + by_all).fill_diagonal_(0)
