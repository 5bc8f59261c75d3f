"""Where networks run: whether torch can use a device of a name."""

import torch


def usable(name: str) -> torch.device:
    """The device of that name, cpu, cuda or cuda:1, if torch can use it here.

    Raises:
        ValueError: if it cannot; the message says what torch says.
    """
    try:
        one = torch.ones(1, device=name)
        one.item()  # which a device without values, meta, cannot tell
    except (RuntimeError, AssertionError) as error:  # the latter of a torch that is built without CUDA
        why = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
        raise ValueError(f"torch cannot use the device {name!r} here: {why}.") from error
    return one.device
