"""Other people's neurons as our cells, and our cells as their layers.

- ``wrap``: a model as a network of cells over the same parameters, whatever library it is of.
- ``foreign``: the base of wrapped layers; PyTorch's own; our cells behind other modules.
- ``wrap_snntorch``, ``wrap_norse``, ``wrap_spikingjelly``: the layers of a library.
- ``snntorch``, ``norse``: our LIF, ALIF+ and ALIF± with the surface of that library's layers.
- ``lightning``: starts and radii as callbacks.

Each needs the library that it is named after, and is imported by whoever has it.
"""
