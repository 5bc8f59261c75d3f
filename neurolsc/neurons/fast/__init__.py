"""LIF and ALIF over all steps at once, equal to plain steps or not used.

`sequence` is the function of autograd, forward and back, `inputs` its arguments, and `cpu_kernels` (Numba) and
`gpu_kernels` (Triton) are its inner loops. `scan` runs the neurons of other libraries, whose `kinds` the kernels know:
by Numba, where `snntorch_kernels` and `reset_kernels` share `scan_kernels`, or by `gpu_scan` (Triton), of which
`gpu_steps` holds the single steps.
"""

from neurolsc.neurons.fast.inputs import Constants
from neurolsc.neurons.fast.sequence import run

__all__ = ["Constants", "run"]
