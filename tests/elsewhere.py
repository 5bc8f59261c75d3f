"""Another machine, for `pytest -p tests.elsewhere`: products are summed in another order.

In which order a matrix product is summed hangs on the processor, the libraries, the threads and the
sizes of the matrices. Here each product of one size has an order of its own. A test that asks for
equal bits where the order of a sum decides them fails, whatever machine this is; a run that is
repeated or resumed does not.

Numba's loops sum in the order in which they are written, on every processor. Two of `stability.arnoldi`
may be reordered; here they are not.
"""

import functools
import os
import random
import warnings

import numba
import torch
from torch import Tensor

from neurolsc.stability import arnoldi

_SEED = os.environ.get("NEUROLSC_ORDER", "0")
"""another one is another machine"""
_library = torch.library.Library("aten", "IMPL")


@functools.cache
def _order(*sizes: int) -> list[int]:
    """The order of the sums of a product; the last of its sizes is the number of terms."""
    order = list(range(sizes[-1]))
    random.Random(f"{_SEED} {sizes}").shuffle(order)
    return order


def _mm(a: Tensor, b: Tensor) -> Tensor:
    if a.shape[1] != b.shape[0]:
        raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({a.shape} and {b.shape})")
    order = torch.tensor(_order(a.shape[0], b.shape[1], a.shape[1]), dtype=torch.long)
    return torch.bmm(a[:, order][None], b[order][None])[0]


def _addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    product = _mm(a, b)
    return (product if alpha == 1 else alpha * product) + (bias if beta == 1 else beta * bias)


def _mv(a: Tensor, v: Tensor) -> Tensor:
    return _mm(a, v[:, None])[:, 0]


def pytest_configure() -> None:
    """Replace torch's products."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that they are replaced
        for name, product in {"mm": _mm, "addmm": _addmm, "mv": _mv}.items():
            _library.impl(name, product, "CPU")
    arnoldi.compiled = functools.cache(numba.njit(error_model="numpy"))
