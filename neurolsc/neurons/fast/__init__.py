"""LIF and ALIF over all steps at once, equal to plain steps or not used.

`sequence` is the function of autograd, forward and back, and says where it is used; `cpu_kernels`
(Numba) and `gpu_kernels` (Triton) are its inner loops.
"""

from neurolsc.neurons.fast.sequence import hooked, known_reset, overridden, run

__all__ = ["hooked", "known_reset", "overridden", "run"]
