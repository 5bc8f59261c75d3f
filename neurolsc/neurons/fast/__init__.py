"""Eq. 49 over all steps at once: the fast loop of LIF and ALIF, equal to plain steps or not taken.

Map: ``offer`` decides between the loop and plain steps, with what torch says (``watched``) and what
a surrogate is (``surrogates``). ``function`` is the loop as one function of autograd, its arguments
named in ``inputs``; its forward pass is ``forward``, its reverse pass ``reverse`` with ``totals``
and ``slopes``; a block of steps is one of ``steps``, and back one of ``carried``, with ``resets``
and what a layer reads (``reading``), as many rows at once as ``chunks`` says. On a CPU they are
those of ``on_cpu``: kernels (``compiled``, ``compiled_kernels``), with products by the non-zero
entries of a matrix (``entries``). On a GPU ``fused`` and ``fused_kernels`` take the place of both
passes, once ``trial`` has seen them right there. ``plain`` is the same run by plain steps, for
second derivatives.
"""

from neurolsc.neurons.equations import Constants
from neurolsc.neurons.fast.offer import run
from neurolsc.neurons.fast.surrogates import overridden
from neurolsc.neurons.fast.watched import hooked

__all__ = ["Constants", "hooked", "overridden", "run"]
