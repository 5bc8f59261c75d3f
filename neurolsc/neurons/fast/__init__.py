"""LIF and ALIF over all steps at once, equal to plain steps or not used.

`inputs` says what can be run so, `sequence` is the function of autograd, forward and back, and `cpu_kernels` (Numba)
and `gpu_kernels` (Triton) are its inner loops.
"""

from neurolsc.neurons.fast.inputs import Constants, hooked, overridden
from neurolsc.neurons.fast.sequence import run

__all__ = ["Constants", "hooked", "overridden", "run"]
