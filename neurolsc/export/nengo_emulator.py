"""A second opinion: the exported file in nengo-loihi's emulator of Loihi 1, which shares no code with Lava."""

from os import PathLike

import torch
from torch import Tensor

from neurolsc.export.fixed_point import AlifLayer, moments
from neurolsc.export.netx import read_netx
from neurolsc.export.opinions import Opinion
from neurolsc.export.simulators import find_python, simulate

__all__ = ["ask_nengo_loihi"]


def ask_nengo_loihi(
    path: str | PathLike[str], spikes: Tensor, *, python: str | PathLike[str] | None = None, timeout: float = 600.0
) -> Opinion:
    """Step an exported file in nengo-loihi's emulator and compare it with the integer model, spike by spike.

    The emulator checks what Lava does not: an input of 21 bits or a current of 23 that overflows is an error. It runs in a process
    of its own, in another environment (``make nengo-env``).

    Args:
        path: a file of LIF layers.
        spikes: input (T, B, n_in), 0 or 1.
        python: Python of the environment; by default ``NEUROLSC_NENGO_PYTHON``, else ``.nengo-env`` below this folder.
        timeout: seconds for all samples.

    Returns:
        The agreement per layer, with blank steps and bias neurons; or why it did not run: an ALIF layer, no environment, an error.

    Raises:
        ValueError: if the file or the spikes do not fit.
    """
    quantized = read_netx(path)
    x = quantized.padded(spikes)
    for i, layer in enumerate(quantized.layers, start=1):
        if isinstance(layer, AlifLayer):
            return Opinion(
                "nengo-loihi", reason=f"layer {i} is an ALIF, and a compartment of Loihi 1 has a fixed threshold."
            )
    try:
        result = simulate("nengo-loihi", find_python("nengo-loihi", python), path, x, timeout)
    except (FileNotFoundError, TimeoutError, RuntimeError) as error:
        return Opinion("nengo-loihi", reason=str(error))
    run = list(moments(quantized.layers, x))
    ours = [torch.stack([moment.spikes[i] for moment in run]) for i in range(len(quantized.layers))]
    theirs = [torch.from_numpy(result[f"spikes_{i + 1}"]) for i in range(len(quantized.layers))]
    tool = ", ".join(str(version) for version in result["versions"])
    return Opinion.of(f"{tool} beside the integers", ours, theirs)
