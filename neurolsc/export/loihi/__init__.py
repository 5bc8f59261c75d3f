"""Loihi's integers and Lava's files.

The map, bottom up:

- ``fixed_point``: the arithmetic, what a layer is, and the run; ``extremes``: how far its integers
  went;
- ``cuba``, ``atrlif``: the chip's neurons, their equations and entries in a file;
- ``rounding``: floats to so many bits; ``mapping``: what must be known of our neurons;
- ``lif``, ``alif``: ours to the chip's and back; ``table``: both, by the class that defines the
  step;
- ``quantize``, ``dequantize``, ``finetune``: a network to integers, back, and trained through them;
- ``netx``: the file; ``compare``, ``report``: what it cost; ``convert``: all of it, ``to_netx``.
"""
