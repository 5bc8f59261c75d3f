"""Plain steps, and layers that fire, for the tests of cells."""

from typing import Any

import pytest
from torch import Tensor

from neurolsc import Cell

RESETS = ("subtract", "static", "zero")


def by_steps(cell: Cell, *args: Any, **settings: Any) -> tuple[Tensor, Any]:
    """The run of a cell by plain steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(cell), "run_at_once", Cell.run_at_once)
        return cell.run(*args, **settings)
