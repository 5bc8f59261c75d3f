"""How kernels are compiled. This imports Numba, which takes half a second: import it late."""

from collections.abc import Callable
from typing import Any

from numba import njit

__all__ = ["compiled"]


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: the kernel is compiled at its first call with arguments of a kind.

    That leaves the interpreter to other threads while it runs, and divides as NumPy does. What was
    compiled is kept on disk, beside the kernel or in the user's cache, where one of them can be
    written.

    Args:
        options: of ``numba.njit``.
    """

    def decorate(kernel: Callable[..., Any]) -> Any:
        settings = {"nogil": True, "error_model": "numpy"} | options
        try:
            return njit(kernel, cache=True, **settings)
        except RuntimeError:  # there is no folder to write to
            return njit(kernel, **settings)

    return decorate
