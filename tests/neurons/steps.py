"""Plain steps, and layers that fire, for the tests of cells."""

from typing import Any

import pytest
import torch
from torch import Tensor

from neurolsc import Cell, Network
from neurolsc.neurons import BRF, PLIF, RF, TCLIF, EFAdLIF, ExactRF, RadLIF, SEAdLIF

RESETS = ("subtract", "static", "zero")


def by_steps(cell: Cell, *args: Any, **settings: Any) -> tuple[Tensor, Any]:
    """The run of a cell by plain steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(cell), "run_at_once", Cell.run_at_once)
        return cell.run(*args, **settings)


KINDS = {
    "EF-adLIF": (EFAdLIF, {}),
    "SE-adLIF": (SEAdLIF, {}),
    "RadLIF": (RadLIF, {}),
    "SiLIF": (RadLIF, {"parametrisation": "silif"}),
    "RF": (RF, {"dt": 0.1}),
    "BRF": (BRF, {"dt": 0.1}),
    "exact RF": (ExactRF, {}),
    "PLIF": (PLIF, {}),
    "PLIF, soft": (PLIF, {"hard_reset": False}),
    "TC-LIF": (TCLIF, {}),
}


def layers(kind: str, *, gain: float = 5.0, width: int = 5) -> Network:
    """Two layers that fire on random spikes."""
    torch.manual_seed(1)
    cls, settings = KINDS[kind]
    cells = [cls(30, width, **settings), cls(width, width, **settings)]
    with torch.no_grad():
        for cell, factor in zip(cells, (gain, 12 * gain), strict=True):
            cell.w_in.abs_().mul_(factor)
    return Network(cells, 2)
