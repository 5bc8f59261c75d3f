r"""What is left of a time derivative when no neuron hears another.

That is a matrix of 2 x 2 for each (v, theta), or a number.

.. math::
    D_i = \begin{pmatrix} d_i + o_i & e_i - o_i \\ \beta_i s_i & e^{-1/\tau_{\vartheta,i}} - \beta_i
    s_i \end{pmatrix}, \qquad o_i = (W_{rec,ii} - r_i) s_i

Where leaks hold the radius, as with slow thresholds, the derivative is nearly this.
"""

import torch
from torch import Tensor

from neurolsc.neurons.linearised import Linearised

PARTNERS = 4.0
"""neurons that each one is to hear at least"""


def hears_few(w_rec: Tensor) -> bool:
    r"""Whether a neuron that hears any other hears few.

    It hears :math:`(\sum_j w_{ij}^2)^2 / \sum_j w_{ij}^4` of them, j not i.
    """
    square = w_rec.detach().square().fill_diagonal_(0)
    all_of_it, most_of_it = square.sum(1).square(), square.square().sum(1)
    return bool((all_of_it < PARTNERS * most_of_it).any())


class Alone:
    """The matrices D of all neurons at P points, or their transposes.

    Args:
        step: the derivative.
        right: D itself, not the transposes.
    """

    def __init__(self, step: Linearised, right: bool) -> None:
        w_rec, s, d, e, r, adaptation, decay_theta = step
        own = (w_rec.diagonal() - r) * s
        self.a = d + own
        self.pair = False
        if adaptation is not None and decay_theta is not None:
            self.pair = True
            feedback = adaptation * s
            self.b, self.c, self.d = e - own, feedback, decay_theta - feedback
            if not right:
                self.b, self.c = self.c, self.b

    def values(self) -> Tensor:
        """The eigenvalue of larger modulus of each neuron (P, N), complex."""
        a = self.a.to(self.a.dtype.to_complex())
        if not self.pair:
            return a
        half = (a + self.d) / 2
        root = (half.square() - (self.a * self.d - self.b * self.c)).sqrt()
        return torch.where((half + root).abs() > (half - root).abs(), half + root, half - root)

    def leading(self, count: int) -> Tensor:
        """The eigenvectors of the neurons with the largest eigenvalues (P, count, n), real parts.

        Each is of norm 1.
        """
        values = self.values()
        which = values.abs().topk(min(count, values.shape[1]), 1).indices
        zeros, place = self.a.new_zeros(*which.shape, self.a.shape[1]), which.unsqueeze(2)
        if not self.pair:
            return zeros.scatter(2, place, 1)
        a, b, c, d = (part.gather(1, which) for part in (self.a, self.b, self.c, self.d))
        value = values.gather(1, which).real
        # (D - value) x = 0 by the larger of its rows
        first = (a - value).abs() + b.abs() >= c.abs() + (d - value).abs()
        v, theta = torch.where(first, b, d - value), torch.where(first, value - a, -c)
        size = torch.hypot(v, theta)
        v, theta = torch.where(size > 0, v / size, 1), torch.where(size > 0, theta / size, 0)
        return torch.cat([zeros.scatter(2, place, part.unsqueeze(2)) for part in (v, theta)], 2)

    def solve(self, x: Tensor, value: Tensor, at: Tensor) -> Tensor:
        """(D - value)^-1 x of complex vectors (p, n), for values (p,), at points (p,)."""
        value = value.unsqueeze(1)
        a = self.a[at] - value
        if not self.pair:
            return x / _not_zero(a)
        b, c, d = self.b[at], self.c[at], self.d[at] - value
        v, theta = x.chunk(2, 1)
        det = _not_zero(a * d - b * c)
        return torch.cat(((d * v - b * theta) / det, (a * theta - c * v) / det), 1)


def _not_zero(x: Tensor) -> Tensor:
    floor = torch.finfo(x.dtype).eps
    return torch.where(x.abs() > floor, x, floor)
