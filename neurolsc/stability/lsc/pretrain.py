r"""LSC pre-training: set the radii of all transition derivatives before training.

Each step takes one batch of inputs (labels are not used), runs the network, and then, as in
arXiv:2308.12075, Sec. II-D and II-G,

1. takes one optimizer step on the mean of :math:`(\rho(M_k) - \rho_t)^2` over the measured
derivatives (eq. 2 sums); 2. multiplies what a rule names by :math:`\kappa = \mathrm{clip}(\rho_t /
\bar\rho, 0.85, 1.15)`, per layer and direction; 3. shuffles every learnable tensor of the cells;

until the radii have converged. The optimizer, Lookahead, averages with a slow copy of the
parameters; unless 2 and 3 act on that copy too it averages unrelated tensors, so here they do.
"""

import time as clock
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any

from neurolsc.io import locked, read_tree, write_tree
from neurolsc.network import Network, as_network, eval_mode
from neurolsc.progress import progress_bar
from neurolsc.stability.lsc.criteria import Criteria
from neurolsc.stability.lsc.inputs import InputStream
from neurolsc.stability.lsc.kept import checked, finished, restored
from neurolsc.stability.lsc.look import Look
from neurolsc.stability.lsc.loop import Loop
from neurolsc.stability.lsc.options import Options
from neurolsc.stability.lsc.result import PretrainResult, concluded
from neurolsc.stability.lsc.rules import Rule, default_rule
from neurolsc.stability.lsc.targets import Target, aim
from neurolsc.stability.transitions import NonSquare
from neurolsc.training.fingerprint import data_fingerprint
from neurolsc.validation import whole


def pretrain(
    network: Network,
    batches: Iterable[Any],
    *,
    target: Target = 0.5,
    rule: Rule | None = None,
    seed: int = 0,
    max_steps: int = 200,
    samples: int = 4,
    steps: int | None = 8,
    gradient: bool = True,
    multiplier: tuple[float, float] | None = (0.85, 1.15),
    shuffle: bool | float = True,
    slow_copy: bool = True,
    polish: bool = True,
    include_input: bool = True,
    lower_bound: float = 0.0,
    non_square: NonSquare = "submatrix",
    criteria: Criteria | None = None,
    lr: float = 3.14e-3,
    weight_decay: float = 1e-4,
    checkpoint: str | PathLike[str] | None = None,
    checkpoint_every: int = 10,
    progress: bool = True,
) -> PretrainResult:
    r"""Bring the radii of all transition derivatives of a network to a target, in place.

    Args:
        network: the network; its cells are changed, its readout is not.
        batches: inputs x (T, B, n_in), or tuples (x, labels) whose labels are ignored, or (x,
            targets, mask): of samples of unequal length those that last at least as long as the
            middle one are taken, cut to its steps. Gone through again and again.
        target: the radius through time and depth, in (0, inf); ``"balanced"``: T/(T+L) and L/(T+L);
            or an object with ``aim(steps, layers)``, which returns both, such as ``Along(0.5,
            "time")``, which leaves the other as it is (:mod:`neurolsc.stability.lsc.targets`).
        rule: what the multipliers move, an object with ``name`` and ``apply``
            (:mod:`neurolsc.stability.lsc.rules`); by default the one that reaches the target with
            firing layers, ``PaperRule()`` for balanced and ``TransitionRule()`` else.
        seed: of the steps, samples, sub-matrices and shuffles that are drawn.
        max_steps: give up after this many; with 0 nothing changes.
        samples: samples of a batch that are looked at in each step, drawn at random. Whether the
            radii have converged is decided on the batches that follow, at twice to 16 times as many
            samples and four times as many time steps: so many that the standard error of each mean
            is below a quarter of the tolerance, if the batches hold as many.
        steps: time steps at which radii are taken, one at random from each of so many stretches of
            the run, no more than it has; None: all.
        gradient: take optimizer steps.
        multiplier: the bounds that kappa is clipped to; None: no multiplier.
        shuffle: shuffle every learnable tensor after each step, or after this share of them.
        slow_copy: let multiplier and shuffle act on Lookahead's slow copy too; False is the paper's
            literal order.
        polish: once the means are near their targets (three tolerances in root mean square), or
            have come no nearer for 15 steps, leave out optimizer and shuffle and let kappa alone
            act, set by four times as many time steps: a shuffle moves the radius of 64 x 64 weights
            by some per cent, and many layers would rarely be on target at once. False is the
            paper's literal order.
        include_input: count the first layer's derivative by the input.
        lower_bound: weight in the loss of what keeps updates from vanishing, determinants of 1 and
            derivatives without negative parts (:mod:`neurolsc.stability.lsc.lower`). Multipliers
            and criteria look at radii as before, and it costs dense matrices.
        non_square: what stands for the radius between unequal widths.
        criteria: when to stop; the paper's three by default. A network with a layer that never
            fires has not converged, whatever its radii.
        lr: learning rate of AdaBelief.
        weight_decay: its weight decay.
        checkpoint: file to keep the state in; if it exists, pre-training goes on from it, and ends
            in the same weights as one that was never interrupted, if the batches come in the same
            order. Only ``max_steps``, ``criteria`` and the weights of the network may differ from
            those it began with. One that had ended is not repeated.
        checkpoint_every: steps between two writes of that file.
        progress: show a progress bar with the mean radii.

    Returns:
        The result. A target that was not reached is a result too: see ``findings``.

    Raises:
        TypeError: if network is not one (:func:`neurolsc.wrap` makes one of other modules), or
            batches are not batches, such as one tensor.
        ValueError: for a target outside (0, inf), no batches, a batch that is batch first or does
            not fit the network, or a checkpoint of other settings.
        FloatingPointError: if a radius is NaN; the message names the layer.
        BlockingIOError: if somebody else is at work with the checkpoint; the message names it.
        OSError: if the checkpoint cannot be read or written.

    Cost of a step: one run over T steps, and ``samples * steps`` radii per layer and direction
    (:func:`radius_profile`), each with a gradient that costs up to six factorisations of an
    n_hidden x n_hidden matrix.

    Example:
        >>> import torch
        >>> from neurolsc import ALIFPlus
        >>> _ = torch.manual_seed(0)
        >>> network = Network([ALIFPlus(20, 16), ALIFPlus(16, 16)], n_out=3)
        >>> x = (torch.rand(20, 8, 20) < 0.2).float()  # 20 steps of 8 samples
        >>> result = pretrain(network, [x], target=0.5, progress=False)
        >>> result.converged, result.profile.time_mean.round(decimals=1).tolist()
        (True, [0.5, 0.5])

    Source: arXiv:2308.12075, Sec. II-D and II-G; its released code stops and shuffles otherwise:
    :data:`neurolsc.stability.lsc.RELEASED`.
    """
    whole("checkpoint_every", checkpoint_every)
    options = Options(
        target=target,
        rule=default_rule(target) if rule is None else rule,
        seed=seed,
        max_steps=max_steps,
        samples=samples,
        steps=steps,
        gradient=gradient,
        multiplier=multiplier,
        shuffle=shuffle,
        slow_copy=slow_copy,
        polish=polish,
        include_input=include_input,
        lower_bound=lower_bound,
        non_square=non_square,
        criteria=criteria or Criteria(),
        lr=lr,
        weight_decay=weight_decay,
    )
    with eval_mode(as_network(network)), locked(checkpoint):
        return _pretrained(network, batches, options, checkpoint, checkpoint_every, progress)


def _pretrained(
    network: Network,
    batches: Iterable[Any],
    options: Options,
    checkpoint: str | PathLike[str] | None,
    every: int,
    progress: bool,
) -> PretrainResult:
    started, inputs = clock.perf_counter(), InputStream(batches)
    look = Look(network, aim(options.target, inputs.steps, len(network.cells)), options)
    loop = Loop(look, inputs)
    settings: dict[str, Any] = {}
    if checkpoint is not None:
        settings = look.settings() | {"steps of the inputs": inputs.steps} | data_fingerprint("inputs", batches)
        if Path(checkpoint).exists():
            state = checked(read_tree(checkpoint), {*loop.state(), "settings", "finished"}, settings, checkpoint)
            if (result := restored(network, state["finished"], options)) is not None:
                return result
            loop.restore(state)

    def keep(state: dict[str, Any], finished: dict[str, Any] | None = None) -> None:
        if checkpoint is not None:
            write_tree(checkpoint, state | {"settings": settings, "finished": finished})

    with progress_bar(options.max_steps, initial=loop.step, unit="step", desc="pretrain", shown=progress) as bar:
        before = loop.state()
        while (profile := loop.advance()) is None:
            bar.set_postfix_str(loop.summary(), refresh=False)
            bar.update()
            before = loop.state()
            if loop.step % every == 0:
                keep(before)
    result = concluded(
        look,
        profile,
        total=inputs.steps,
        smoothed=loop.smoothed,
        steps=loop.step,
        history=loop.history,
        seconds=clock.perf_counter() - started,
    )
    keep(before, finished(network, result))  # with more steps, or other criteria, it goes on from before its end
    return result
