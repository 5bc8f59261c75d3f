"""Where networks run: whether torch can use a device of a name."""

import torch


def usable(name: str) -> torch.device:
    """The device of that name, cpu, cuda or cuda:1, if torch can use it here.

    Raises:
        ValueError: if it cannot; the message says what torch says.
    """
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(f"torch cannot use the device {name!r} here: {why}.") from error
