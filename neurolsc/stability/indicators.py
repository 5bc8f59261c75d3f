"""How gradients and activity get through a network, besides its radii; `diagnose` measures all of it."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from neurolsc.metrics import is_binary
from neurolsc.network import Network, NetworkState, as_network, eval_mode
from neurolsc.neurons.cell import State, weight_matrices
from neurolsc.neurons.derivatives import JacobianOperator, LinearOperator, flat, unflat
from neurolsc.neurons.neuronwise import BlockStep
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
    without,
)
from neurolsc.validation import whole

Loss = Callable[[Tensor], Tensor]  # a number with a gradient, from the logits (T, B, C)

SATURATED = 0.9  # spikes per step above which a neuron counts as saturated


# ---- growth


def lyapunov_exponents(network: Network, x: Tensor, *, count: int = 1, seed: int = 0) -> Tensor:
    r"""Finite-time Lyapunov exponents: how fast small changes of a layer's state grow or fade along a run.

    With the derivatives :math:`M_t = \partial h[t, l] / \partial h[t-1, l]` along the run of a sample and orthonormal
    columns :math:`Q_0` drawn at random (QR method),

    .. math:: Q_t R_t = M_t Q_{t-1}, \qquad
              \lambda_i = \frac{1}{T} \sum_{t=1}^{T} \log |(R_t)_{ii}|

    The radius of one step says nothing about a product of steps whose directions differ; these do. The derivative of
    the whole network is block triangular, so as T grows its exponents become those of its layers together.

    Args:
        network: the network; its parameters are not changed.
        x: input (T, B, n_in).
        count: how many exponents of each layer, at most its number of state variables.
        seed: of the first directions.

    Returns:
        Exponents (L, B, count), in nats per step; above 0 gradients through time explode, ``-inf`` where a direction
        is lost altogether.

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


def exponent_loss(network: Network, x: Tensor, target: float = 0.0, *, count: int = 1, seed: int = 0) -> Tensor:
    r"""The squared distance of the Lyapunov exponents to a target, with a gradient ("gradient flossing").

    With the k largest exponents :math:`\lambda_i` of L layers and B samples (:func:`lyapunov_exponents`),

    .. math:: \mathcal{L} = \frac{1}{L B k} \sum_{l,b,i} (\lambda_i[l, b] - \lambda^*)^2

    The gradient goes through the products of all T derivatives and their surrogates, to the parameters of the steps.
    The states of the run are constants in it, as in pre-training. Leaves out a layer of which a direction is lost
    altogether, whose exponent is ``-inf``.

    Args:
        network: the network; its ``grad`` stays as it is.
        x: input (T, B, n_in), from rest; padding counts as steps.
        target: :math:`\lambda^*`, in nats per step.
        count: k, how many exponents of each layer.
        seed: of the first directions.

    Returns:
        The loss, a number. 0 if all layers are left out.

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
    """Exponents (B, count) of one layer at all steps of a run, points ordered (step, sample)."""
    size = t.states
    like = t.x
    steps = len(like) // batch
    start = torch.randn(size, count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    q = torch.linalg.qr(start)[0].to(like).expand(batch, -1, -1)
    copies = torch.arange(batch, device=like.device).repeat_interleave(count)
    total = like.new_zeros(batch, count)
    for some in t.chunks(32 * batch):  # derivatives of many steps at once; of all they might fill the memory
        derivatives = time_operator(some)
        for first in range(0, len(some.x), batch):
            moved = derivatives.take(first + copies).matvec(q.mT.reshape(batch * count, size))
            moved = moved.view(batch, count, size).mT
            if count == 1:  # the same as QR, which costs more than the product
                length = torch.linalg.vector_norm(moved, dim=1)
                q = moved / length.clamp(min=torch.finfo(length.dtype).tiny).unsqueeze(1)
                total = total + length.log()
                continue
            q, r = torch.linalg.qr(moved)
            total = total + r.diagonal(dim1=1, dim2=2).abs().log()
    return total / steps


def singular_values(network: Network, x: Tensor, *, steps: int | None = None, seed: int = 0) -> tuple[Tensor, Tensor]:
    r"""The largest singular value of every transition derivative of a network, to 1 %.

    .. math:: \sigma_{\max}(M) = \max_{|u| = 1} |M u| = \sqrt{\rho(M^T M)}

    It bounds what one step can do to a gradient, the radius what many steps of the same kind do. Unequal widths need no
    sub-matrix. `steps`, drawn at random, are all by default.

    Returns:
        Through time and through depth, each (L, K, B): layer, step, sample. Depth row 0 is that of the derivative by
        the input.

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
    r"""The radius of what spikes do to their own layer through its recurrent weights W alone, at P points (P,).

    With z = output(h), that of

    .. math:: \frac{\partial z}{\partial h} \Big(\frac{\partial h'}{\partial z}\Big|_{W} -
              \frac{\partial h'}{\partial z}\Big|_{W = 0}\Big),

    of LIF and ALIF :math:`\mathrm{diag}(s)\, W_{rec}`: without leaks, resets and adaptation.
    """
    h, matrices = flat(t.before), weight_matrices(t.cell, "time")

    def step(z: Tensor, x: Tensor, h: Tensor) -> Tensor:
        return flat(t.cell.update(x, z, unflat(h, t.before)))

    with torch.no_grad():
        z = t.cell.output(t.before)
        whole_step = JacobianOperator(step, z, t.x, h).matrices()
        with without(matrices):
            rest = JacobianOperator(step, z, t.x, h).matrices()
        by_state = JacobianOperator(output_of(t.cell, t.before), h).matrices()
        return spectral_radius(by_state @ (whole_step - rest))


def largest_singular(t: Transitions, operators: Sequence[LinearOperator]) -> Tensor:
    """The largest singular values (P,) of a product of operators at the points of t."""
    only = operators[0]
    if len(operators) == 1 and isinstance(only, BlockStep):
        return norms_of_blocks(only)
    points = 1 if all(part.same for part in operators) else len(t.x)
    return safe_sqrt(radii(gram(operators, points), t.x).radius).expand(len(t.x))


# ---- gradients


def state_gradients(network: Network, x: Tensor, loss: Loss) -> Tensor:
    r"""Norms of the gradient of a loss by the state of every layer, step and sample.

    .. math:: G_{l,t,b} = \Big\lVert \frac{\mathrm{d} L}{\mathrm{d} h[t, l]_b} \Big\rVert_2

    through all later steps and higher layers: (L, T, B), of a loss of the logits (T, B, C). Of a loss of the last step
    alone, row T-1-k is what is left of the gradient k steps back. The graph of all T steps stays in memory; parameters
    get no gradient.

    Source: Pascanu, Mikolov & Bengio 2013, arXiv:1211.5063.
    """
    with eval_mode(as_network(network)), torch.enable_grad():
        start = None
        if x.ndim == 3:  # states by which a gradient can be taken whether or not any parameter needs one
            rest = network.initial_states(x.shape[1])
            layers = (type(s)(*(leaf.detach().clone().requires_grad_() for leaf in s)) for s in rest.layers)
            start = NetworkState(tuple(layers), rest.x)
        moments = list(network.records(x, start))
        logits = torch.stack([network.readout(m.outputs[-1]) for m in moments])
        leaves = [leaf for m in moments for layer in m.after.layers for leaf in layer]
        found = iter(_gradients(loss(logits), leaves))

    def over_all_variables(state: State) -> Tensor:
        return torch.cat([next(found).detach().abs().flatten(1) for _ in state], 1).norm(dim=1)

    return torch.stack([torch.stack([over_all_variables(layer) for layer in m.after.layers]) for m in moments], 1)


def parameter_gradients(
    network: Network, x: Tensor, loss: Loss, *, mask: Tensor | None = None
) -> tuple[dict[str, Tensor], ...]:
    """The gradients of a loss by the parameters of each of L cells, and last of the readout, by name.

    Those of frozen parameters are left out; ``grad`` stays as it is. Cells that share one module of another library
    count those that they would pre-train (:meth:`neurolsc.Cell.pretrained`).
    """
    cells = as_network(network).cells
    shared = Counter(p for cell in cells for p in cell.parameters())
    trained = [{n: p for n, p in part.named_parameters() if p.requires_grad} for part in (*cells, network.readout)]
    for cell, names in zip(cells, trained, strict=False):
        own = set(cell.pretrained())
        for name in [n for n, p in names.items() if shared[p] > 1 and p not in own]:
            del names[name]
    with eval_mode(network), torch.enable_grad():
        value = loss(network.run(x, mask=mask).logits)
    found = iter(_gradients(value, list(chain.from_iterable(t.values() for t in trained))))
    return tuple({name: next(found).detach() for name in names} for names in trained)


def together(gradients: dict[str, Tensor]) -> Tensor:
    """All gradients of a layer side by side (P,)."""
    return torch.cat([g.flatten() for g in gradients.values()]) if gradients else torch.empty(0)


def _gradients(value: Tensor, by: list[Tensor]) -> list[Tensor]:
    """Gradients by tensors, zero by those that the value does not depend on."""
    reached = [t for t in by if t.requires_grad] if value.requires_grad else []
    gradients = torch.autograd.grad(value, reached, allow_unused=True) if reached else ()
    found = dict(zip(reached, gradients, strict=True))
    return [torch.zeros_like(t) if found.get(t) is None else found[t] for t in by]


def signal_to_noise(gradients: Tensor) -> float:
    r"""Squared norm of the mean gradient of K >= 2 batches (K, P) over its variance between them.

    .. math:: \mathrm{SNR} = \frac{\lVert \bar g \rVert^2}{\sum_p \mathrm{var}_k\, g_{k,p}},
        \qquad \bar g = \frac{1}{K} \sum_k g_k, \quad
        \mathrm{var}_k\, g_k = \frac{1}{K-1} \sum_k (g_k - \bar g)^2

    Noise of mean 0 alone gives 1 / K on the average, and batches m times as large give m times as much. ``inf`` where
    all batches agree, ``nan`` where all gradients are 0.

    Source: McCandlish et al. 2018, arXiv:1812.06162 (the reciprocal of its simple noise scale).
    """
    return (gradients.mean(0).square().sum() / gradients.var(0).sum()).item()


def active_surrogate_fraction(
    network: Network, x: Tensor, *, threshold: float = 0.1, steps: int | None = None, seed: int = 0
) -> Tensor:
    r"""The share of neurons, steps and samples at which the surrogate's derivative is not nearly 0.

    .. math:: \frac{1}{K B n} \sum_{t,b,i} \Big[\, \Big|\frac{\partial z_i}{\partial v_i}\Big|
        \ge \text{threshold} \cdot \max_v \frac{\partial z_i}{\partial v_i} \Big]

    Only through these a gradient reaches the neuron's weights. The largest derivative is taken at the threshold itself.
    `steps`, drawn at random, are all by default.

    Returns:
        Shares (L,); NaN for a layer that does not spike, or whose cell has no :meth:`neurolsc.Cell.membrane`.
    """
    chosen = draw_steps(x.shape[0], steps, torch.Generator().manual_seed(seed))
    with eval_mode(as_network(network)):
        transitions, _ = follow(network, x, chosen)
        return torch.tensor([active_fraction(t, threshold) for t in transitions])


def active_fraction(t: Transitions, threshold: float = 0.1) -> float:
    """:func:`active_surrogate_fraction` of one layer, at the points of t."""
    membrane = t.cell.membrane()
    if membrane is None:
        return math.nan
    with torch.enable_grad():
        v = getattr(t.before, membrane.name).detach().requires_grad_()
        before = t.before._replace(**{membrane.name: v})
        z = t.cell.output(before)
        if z.grad_fn is None:  # spikes are a variable of the state: those of the next step
            z = t.cell.output(t.cell.update(t.x, z.detach(), before))
        if not z.requires_grad or z.numel() != v.numel() or not is_binary(z):
            return math.nan
        (slope,) = torch.autograd.grad(z.sum(), v, materialize_grads=True, allow_unused=True)
    peak = surrogate_slope(membrane, v.new_zeros(1)).abs()
    active = (slope.flatten(1).abs() >= threshold * peak) & (peak > 0)
    return active.double().mean().item()


# ---- activity


class Activity(NamedTuple):
    """The activity of a layer's neurons; all NaN where outputs are not all 0 or 1."""

    rate: float  # spikes per neuron and step
    dead: float  # share of the neurons that fire at no step of any sample
    saturated: float  # share of the neurons that fire at more than nine steps of ten
    synchrony: float  # share of the neurons' variance over time that they have in common


def activity(spikes: Tensor, mask: Tensor | None = None) -> Activity:
    r"""Rate, dead and saturated neurons, and synchrony of one layer.

    Synchrony is the variance over time of the layer's mean output over the mean variance of a neuron, both of each
    sample, then summed over samples,

    .. math:: \chi^2 = \frac{\sum_b \mathrm{var}_t\, \frac{1}{n} \sum_i z_i[t, b]}
        {\sum_b \frac{1}{n} \sum_i \mathrm{var}_t\, z_i[t, b]},

    1 where all neurons fire at the same steps, about 1 / n where they are independent, and NaN where none ever
    changes. An input that comes and goes drives it up as well. Of outputs (T, B, n), at the steps of a mask (T, B).

    Source: Golomb & Rinzel, Physica D 72 (1994) (synchrony).
    """
    if not is_binary(spikes):
        return Activity(math.nan, math.nan, math.nan, math.nan)
    z = spikes.detach().double()
    alive = torch.ones(z.shape[:2], dtype=z.dtype, device=z.device) if mask is None else mask.double()
    rate = (z * alive.unsqueeze(-1)).sum((0, 1)) / alive.sum()

    def variance(z: Tensor) -> Tensor:
        weight = (alive / alive.sum(0)).unsqueeze(-1)
        return (weight * (z - (weight * z).sum(0)).square()).sum(0)

    changes = variance(z).mean(-1).sum()
    synchrony = (variance(z.mean(-1, keepdim=True)).sum() / changes).item() if changes > 1e-12 else math.nan  # rounding
    dead, saturated = (rate == 0).double().mean().item(), (rate > SATURATED).double().mean().item()
    return Activity(rate.mean().item(), dead, saturated, synchrony)


def similarity_to_input(x: Tensor, layer: Tensor, *, windows: int = 10) -> float:
    r"""The share of the variance between samples of an input that a layer preserves.

    Every sample is its sums over equal windows of time. The similarities of samples are the scalar products
    :math:`K = X X^T` of the input (T, B, N) and :math:`L` of the layer (T, B, M). With both U-centred (without
    diagonal, every row summing to 0), so that chance gives 0 on the average,

    .. math:: s = \max\Big(0, \frac{\langle \tilde K, \tilde L \rangle}
        {\lVert \tilde K \rVert\, \lVert \tilde L \rVert}\Big)^2,

    the share of the variance of the input's similarities that a linear function of the layer's predicts: 1 for an
    identity, a rotation and any scale, 0 for a layer that is silent or the same for all samples, and
    :math:`O(1 / B^2)` for noise independent of the input. A low share is no fault: a layer may preserve a small
    difference that decides and drop the rest. NaN for fewer than 4 samples, or where all of the input are alike.

    Source: Song et al. 2012, JMLR 13 (unbiased HSIC); Székely & Rizzo 2014, arXiv:1310.2926 (U-centring); Kornblith
    et al. 2019, arXiv:1905.00414 (CKA, of which s is the debiased square).
    """
    if x.shape[1] < 4:
        return math.nan
    of_x, of_layer = (_similarities(part, min(windows, len(x))) for part in (x, layer))
    if not of_x.norm() > 0:
        return math.nan
    if not of_layer.norm() > 0:
        return 0.0
    alike = (of_x * of_layer).sum() / (of_x.norm() * of_layer.norm())
    return alike.clamp(min=0).square().item()


def _similarities(x: Tensor, windows: int) -> Tensor:
    x = x.detach() if x.is_floating_point() else x.float()
    sums = torch.cat([part.double().sum(0) for part in x.tensor_split(windows)], 1)
    sums = sums - sums.mean(0)  # changes nothing but rounding: U-centring takes it off as well
    size = len(sums)
    products = sums @ sums.T
    if products.diagonal().max() <= 1e-12 * sums.shape[1] * max(1.0, x.abs().max().item()) ** 2:
        return torch.zeros_like(products)  # all alike but for rounding
    products.fill_diagonal_(0)
    rows = products.sum(1)
    centred = products - (rows[:, None] + rows[None]) / (size - 2) + rows.sum() / ((size - 1) * (size - 2))
    return centred.fill_diagonal_(0)
