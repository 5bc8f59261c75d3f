"""The paper's optimizer, for training and for pre-training, and what gets which learning rate."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch import nn

from neurolsc.network import Network
from neurolsc.validation import positive

if TYPE_CHECKING:
    from pytorch_optimizer import Lookahead

__all__ = ["adabelief_lookahead", "parameter_groups"]


def adabelief_lookahead(
    parameters: Iterable[nn.Parameter] | list[dict[str, Any]], lr: float, weight_decay: float = 0.0
) -> "Lookahead":
    r"""AdaBelief inside Lookahead: every 6 steps weights go half the way back to where they were.

    .. math:: \phi \leftarrow \phi + 0.5\,(w - \phi), \quad w \leftarrow \phi
        \quad \text{every 6 steps}

    The slow copy :math:`\phi` of each parameter p is ``optimizer.state[p]["slow_params"]``. Whoever
    sets parameters by hand between two steps (the multipliers of pre-training) has to set that copy
    as well, or it pulls them back.

    Args:
        parameters: what to optimize.
        lr: learning rate; 1e-3 trains the ALIF of the paper, 3.14e-3 is its pre-training.
        weight_decay: decoupled from the gradient; 0 in the paper's training, 1e-4 in its
            pre-training.

    Returns:
        A torch optimizer; ``state_dict`` holds the slow copies and the count of steps too.

    Raises:
        ValueError: if there is no parameter, lr is not positive, or weight_decay is negative.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> optimizer = adabelief_lookahead(layer.parameters(), lr=1e-3)
        >>> optimizer.k, optimizer.alpha
        (6, 0.5)

    Source: arXiv:2308.12075, Sec. II-G; Zhuang et al. 2020 (AdaBelief); Zhang et al. 2019
    (Lookahead).
    """
    from pytorch_optimizer import AdaBelief, Lookahead  # takes a second to import, and only training needs it

    positive("lr", lr)
    positive("weight_decay", weight_decay, zero_allowed=True)
    return Lookahead(AdaBelief(parameters, lr=lr, weight_decay=weight_decay), k=6, alpha=0.5)


def parameter_groups(network: Network, lr: float, *, by_gain: bool) -> list[dict[str, Any]]:
    r"""The parameters of a network in groups for a torch optimizer, each with its learning rate.

    An optimizer such as Adam moves every parameter by about its learning rate. By gain that is

    .. math:: \mathrm{lr} / g, \qquad
        g(b_\vartheta) = \frac{1}{n} \sum_i \frac{1}{1 - e^{-1/\tau_{\vartheta,i}}}

    so that the state at rest moves by about as much as weights do: :math:`b_\vartheta` of an ALIF
    is added at every step and remembered for :math:`\tau_\vartheta` of them; it moves the
    threshold 100-fold by default.

    Args:
        network: the network; cells tell the gains of their parameters (:meth:`neurolsc.Cell.gains`)
            as they are now.
        lr: learning rate of all whose gain is 1.
        by_gain: divide by the gains; else there is one group.

    Source: ours.
    """
    gains = {}
    for cell in network.cells if by_gain else ():
        named = dict(cell.named_parameters())
        gains |= {id(named[name]): gain for name, gain in cell.gains().items() if name in named}
    plain = [p for p in network.parameters() if id(p) not in gains]
    scaled = [{"params": [p], "lr": lr / gains[id(p)]} for p in network.parameters() if id(p) in gains]
    return [{"params": plain, "lr": lr}, *scaled]
