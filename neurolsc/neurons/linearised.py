"""What the transition derivative of a spiking cell is made of, short of any matrix per state."""

from typing import NamedTuple

from torch import Tensor


class Linearised(NamedTuple):
    r"""One step of a LIF or ALIF cell at P states, differentiated by the state.

    With :math:`q = s (\mathrm{d}v - \mathrm{d}\vartheta)` the change of the spikes,

    .. math:: \mathrm{d}v' = D\,\mathrm{d}v + E\,\mathrm{d}\vartheta + W_{rec}\,q - R\,q, \qquad
              \mathrm{d}\vartheta' = e^{-1/\tau_\vartheta}\,\mathrm{d}\vartheta + \beta q

    and all but W_rec is per neuron. A LIF has no second line and no E.
    """

    w_rec: Tensor
    """recurrent weights (n, n), the same at all states"""
    s: Tensor
    """derivative of the spikes by the voltage (P, n)"""
    d: Tensor
    """share of the voltage that is kept (P, n)"""
    e: Tensor
    """derivative of the voltage by the threshold, spikes held (P, n)"""
    r: Tensor
    """what a spike takes off the voltage, as far as a gradient goes through it (P, n)"""
    adaptation: Tensor | None
    """rise of the threshold at a spike (n,); None where the state is the voltage alone"""
    decay_theta: Tensor | None
    """share of the threshold that is kept (n,); None likewise"""
