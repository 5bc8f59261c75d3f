r"""The loss whose gradient moves the parameters.

.. math:: \mathcal L = \frac{1}{|K|} \sum_{k \in K} (\rho(M_k) - \rho_t)^2

over all measured derivatives :math:`M_k` of all layers, through time and through depth. Equation 2
of arXiv:2308.12075 writes a sum; the mean only rescales it.
"""

from torch import Tensor

from neurolsc.stability.lsc.criteria import Measured, errors
from neurolsc.stability.lsc.targets import Aim


def loss(measured: Measured, goal: Aim, include_input: bool = True) -> Tensor:
    """Mean squared distance of the radii from their targets."""
    return errors(measured, goal, include_input).square().mean()
