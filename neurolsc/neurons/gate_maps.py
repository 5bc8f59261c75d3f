"""The linear maps of which the derivatives of gated and other rate cells are made, in closed form.

The state of such a cell is V variables of n neurons each, side by side, of which the neurons hear
the first. A step reads it through G matrices at once, the gates, (G n, n).
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from neurolsc.eigen.maps import Map
from neurolsc.neurons.alone import hears_few
from neurolsc.neurons.derivatives import StepMap, Term

MEMORY = Term(
    "memory",
    "make it forget: lower the bias of the gate that keeps the state",
    "make it remember: raise the bias of the gate that keeps the state",
    "#0072b2",
)
RECURRENCE = Term(
    "recurrence", "scale w_rec down", "scale w_rec up, or move neurons off where they saturate", "#009e73"
)


class Scaled(Map):
    """A factor for every entry, (P, n)."""

    splits = False

    def __init__(self, factor: Tensor) -> None:
        self.factor = factor
        self.rows = self.columns = factor.shape[1]

    def times(self, x: Tensor) -> Tensor:
        return self.factor * x

    def transposed(self, y: Tensor) -> Tensor:
        return self.factor * y

    def take(self, index: Tensor) -> "Scaled":
        return Scaled(self.factor[index])


class First(Map):
    """The first n entries of a state, which are what the cell sends.

    Args:
        n: how many.
        long: entries of the state.
    """

    same, splits = True, False

    def __init__(self, n: int, long: int) -> None:
        self.rows, self.columns = n, long

    def times(self, x: Tensor) -> Tensor:
        return x[:, : self.rows]

    def transposed(self, y: Tensor) -> Tensor:
        return pad(y, (0, self.columns - self.rows))

    def take(self, index: Tensor) -> "First":
        return self


class Gates(Map):
    r"""What currents of the gates do to the state: :math:`dh_v = \sum_g k_{vg} \, da_g`.

    Args:
        k: the factors (P, V, G, n).
    """

    splits = False

    def __init__(self, k: Tensor) -> None:
        self.k = k
        self.rows, self.columns = k.shape[1] * k.shape[3], k.shape[2] * k.shape[3]

    def times(self, x: Tensor) -> Tensor:
        _, _, g, n = self.k.shape
        return (self.k * x.view(-1, 1, g, n)).sum(2).flatten(1)

    def transposed(self, y: Tensor) -> Tensor:
        _, v, _, n = self.k.shape
        return (self.k * y.view(-1, v, 1, n)).sum(1).flatten(1)

    def take(self, index: Tensor) -> "Gates":
        return Gates(self.k[index])

    def of(self, weights: Tensor) -> Tensor:
        """What inputs through weights (P or 1, G n, m) do to the state, dense (P, V n, m)."""
        points, v, g, n = self.k.shape
        by_gate = weights.view(len(weights), 1, g, n, -1)
        return (self.k.unsqueeze(-1) * by_gate).sum(2).view(points, v * n, -1)


class GatedStep(StepMap):
    r"""d h' / d h: what is kept, and what the neurons hear through the gates.

    .. math:: dh'_v = \sum_u d_{vu} \, dh_u + \sum_g k_{vg} \, W_g \, dh_1

    Args:
        kept: the factors d (P, V, V, n).
        gates: the gates.
        w_rec: their weights W (G n, n).
        read: the gates for what is read from the layer below, where they differ.
    """

    def __init__(self, kept: Tensor, gates: Gates, w_rec: Tensor, read: Gates | None = None) -> None:
        self.kept, self.gates, self.w_rec, self.read = kept, gates, w_rec, gates if read is None else read
        self.rows = self.columns = kept.shape[1] * kept.shape[3]

    @property
    def splits(self) -> bool:  # type: ignore[override]
        """Where some neuron hears few others."""
        return hears_few(self.w_rec)

    def heard(self, x: Tensor) -> Tensor:
        """The currents (P, G n) that what is sent (P, n) makes."""
        return x @ self.w_rec.T

    def heard_by(self, y: Tensor) -> Tensor:
        """The transpose of :meth:`heard`."""
        return y @ self.w_rec

    def weights(self) -> Tensor:
        """The matrix of :meth:`heard`, (P or 1, G n, n)."""
        return self.w_rec.unsqueeze(0)

    def times(self, x: Tensor) -> Tensor:
        memory, recurrence = self._parts(x)
        return memory + recurrence

    def _parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        _, v, _, n = self.kept.shape
        memory = (self.kept * x.view(-1, 1, v, n)).sum(2).flatten(1)
        return memory, self.gates.times(self.heard(x[:, :n]))

    def transposed(self, y: Tensor) -> Tensor:
        _, v, _, n = self.kept.shape
        memory = (self.kept * y.view(-1, v, 1, n)).sum(1).flatten(1)
        return memory + pad(self.heard_by(self.gates.transposed(y)), (0, (v - 1) * n))

    def terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        memory, recurrence = self._parts(x)
        return {"memory": (y * memory).sum(1), "recurrence": (y * recurrence).sum(1)}

    def take(self, index: Tensor) -> "GatedStep":
        return GatedStep(self.kept[index], self.gates.take(index), self.w_rec)

    def by_terms(self) -> dict[str, Tensor]:
        """The terms, dense (P, V n, V n)."""
        points, v, _, n = self.kept.shape
        memory = torch.diag_embed(self.kept).transpose(2, 3).reshape(points, v * n, v * n)
        return {"memory": memory, "recurrence": pad(self.gates.of(self.weights()), (0, (v - 1) * n))}


class ResetBefore(Gates):
    r"""The gates of a GRU whose reset acts before the recurrent weights.

    .. math:: dh = k_z \, da_z + k_h \, (da_h + U_h (e \, da_r))

    Args:
        k: the factors of r (0, it acts through h), z and h (P, 1, 3, n).
        e: how far the reset moves what U_h reads, (P, n).
        u: U_h (n, n).
    """

    def __init__(self, k: Tensor, e: Tensor, u: Tensor) -> None:
        super().__init__(k)
        self.e, self.u = e, u

    def times(self, x: Tensor) -> Tensor:
        r, z, h = x.chunk(3, 1)
        return super().times(torch.cat((r, z, h + (self.e * r) @ self.u.T), 1))

    def transposed(self, y: Tensor) -> Tensor:
        _, z, h = super().transposed(y).chunk(3, 1)
        return torch.cat((self.e * (h @ self.u), z, h), 1)

    def take(self, index: Tensor) -> "ResetBefore":
        return ResetBefore(self.k[index], self.e[index], self.u)

    def of(self, weights: Tensor) -> Tensor:
        r, z, h = weights.expand(len(self.e), -1, -1).chunk(3, 1)
        return super().of(torch.cat((r, z, h + self.u @ (self.e.unsqueeze(2) * r)), 1))


class ResetBeforeStep(GatedStep):
    """The step of such a GRU: the candidate hears the state through the reset.

    Args:
        kept: the factors d (P, 1, 1, n).
        gates: the gates.
        w_rec: U of r, z and h (3 n, n).
        r: the reset (P, n).
    """

    gates: ResetBefore

    def __init__(self, kept: Tensor, gates: ResetBefore, w_rec: Tensor, r: Tensor) -> None:
        super().__init__(kept, gates, w_rec)
        self.r = r

    def heard(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        return torch.cat((x @ self.w_rec[: 2 * n].T, (self.r * x) @ self.w_rec[2 * n :].T), 1)

    def heard_by(self, y: Tensor) -> Tensor:
        n = y.shape[1] // 3
        return y[:, : 2 * n] @ self.w_rec[: 2 * n] + self.r * (y[:, 2 * n :] @ self.w_rec[2 * n :])

    def weights(self) -> Tensor:
        n = self.r.shape[1]
        rz, h = self.w_rec[: 2 * n].expand(len(self.r), -1, -1), self.w_rec[2 * n :] * self.r.unsqueeze(1)
        return torch.cat((rz, h), 1)

    def take(self, index: Tensor) -> "ResetBeforeStep":
        return ResetBeforeStep(self.kept[index], self.gates.take(index), self.w_rec, self.r[index])
