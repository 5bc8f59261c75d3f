"""Settings of a network that a chip can hold, and of a training that keeps it so."""

from collections.abc import Collection, Mapping
from typing import Any

CHIPS: dict[str, dict[str, dict[str, Any]]] = {
    "netx": {
        "LIF": {"tau_v": 50.0, "start": "Relay(recurrence=0, rate=0.1)", "lr": 2e-3, "clip_weight": 3.0},
        "ALIFPositive": {
            "reset": "static",
            "tau_v": 20.0,
            "b_theta": 0.002,
            "adaptation": 0.2,
            "start": "BySource()",
            "clip_weight": 8.0,
        },
    }
}
"""What a format holds: a cell, the first unless another is given, and what goes with it."""


def fitted(chip: str, values: Mapping[str, Any], left: Collection[str]) -> dict[str, Any]:
    """Settings under which a trained network can be exported.

    Args:
        chip: one of :data:`CHIPS`.
        values: all settings.
        left: the names of those that nobody gave, which may be changed.

    Returns:
        The settings, changed where that helps.

    Raises:
        ValueError: if another cell is given than the chip's format has.
    """
    cells = CHIPS[chip]
    cell = next(iter(cells)) if "cell" in left else values["cell"]
    if cell not in cells:
        raise ValueError(f"{chip} holds cells {' and '.join(cells)}, got {cell}.")
    spikes = {"binary": True} if values["data"] == "shd" else {}
    return {**values, **{n: v for n, v in ({"cell": cell} | cells[cell] | spikes).items() if n in left}}
