"""Settings of a network that a chip can hold, and of a training that keeps it so."""

from collections.abc import Collection, Mapping
from typing import Any

CHIPS: dict[str, dict[str, Any]] = {
    "netx": {
        "cell": "LIF",
        "tau_v": 50.0,
        "start": "Relay(recurrence=0, rate=0.1, drawn=1)",
        "lr": 2e-3,
        "clip_weight": 3.0,
    }
}
"""What fits a chip's format."""


def fitted(chip: str, values: Mapping[str, Any], left: Collection[str]) -> dict[str, Any]:
    """Settings under which a trained network can be exported, however long it is trained.

    Args:
        chip: one of :data:`CHIPS`.
        values: all settings.
        left: the names of those that nobody gave, which may be changed.

    Returns:
        The settings, changed where that helps.

    Raises:
        ValueError: if another cell is given.
    """
    wanted = CHIPS[chip] | ({"binary": True} if values["data"] == "shd" else {})
    if "cell" not in left and values["cell"] != wanted["cell"]:
        raise ValueError(
            f"only of {wanted['cell']} it is sure before the training that {chip} can hold it, got {values['cell']}."
        )
    return {**values, **{name: value for name, value in wanted.items() if name in left}}
