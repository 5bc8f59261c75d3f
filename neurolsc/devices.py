"""Where networks run: whether torch can use a device of a name."""

import torch


def usable(name: str) -> torch.device:
    """The device of that name, cpu, cuda or cuda:1, if torch can use it here.

    Raises:
        ValueError: if torch knows no such name, or cannot use it here; the message says which names
            to use, or what torch says.
    """
    try:
        torch.device(name)
    except RuntimeError as error:
        here = "" if torch.cuda.is_available() else " Here torch finds no GPU."
        raise ValueError(
            f"unknown device {name!r}: write cuda for a GPU (cuda:1 for the second), cpu for none.{here}"
        ) from error
    try:
        one = torch.ones(1, device=name)
        one.item()  # which a device without values, meta, cannot tell
    except (RuntimeError, AssertionError) as error:  # the latter of a torch that is built without CUDA
        why = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
        raise ValueError(f"torch cannot use the device {name!r} here: {why}.") from error
    return one.device
