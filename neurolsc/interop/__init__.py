"""Other people's neurons as our cells, and our cells as their layers.

- ``wrap``: a model as a network of cells over the same parameters, whatever library it is of.
- ``foreign``: what all wrapped layers have in common; ``wrap_snntorch``, ``wrap_norse``,
  ``wrap_spikingjelly``, ``torch_nn``: the layers of a library; ``own``: our cells.
- ``snntorch``, ``norse``: our LIF, ALIF+ and ALIF± with the surface of that library's layers.
- ``lightning``: starts and radii as callbacks.

Each needs the library that it is named after, and is imported by whoever has it.
"""
