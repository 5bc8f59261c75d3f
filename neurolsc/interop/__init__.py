"""Other people's neurons as our cells, and our cells as their layers.

- ``wrap``: a model as a network of cells over the same parameters, whatever library it is of; ``example_run`` finds
  in which order the model uses its layers, and where time is in x.
- ``accelerate``: a user's network as it is, over all steps at once; ``recording`` writes down what its forward calls on
  ``lazy`` tensors, ``groups`` are calls that are computed at once, ``lazy_functions`` says which functions of PyTorch
  can be put off, ``fused`` has the layers whose steps the kernels know, and ``fused_base`` what these have in common;
  ``comparison`` calls both networks with an example.
- ``prepared``: a user's module and x as such a network and what it reads.
- ``at_once``: wrapped layers over all steps at once, by the same kernels.
- ``wrapped``: the base of wrapped layers; PyTorch's own; our cells behind other modules.
- ``ranks``: what sets a module in several processes.
- ``sharing``: parameters that several places share, and what may not set them.
- ``saved``: files of such modules, with the values that their own state_dict leaves out.
- ``snntorch``, ``norse``: our LIF, ALIF+ and ALIF± with the surface of that library's layers; its layers as cells.
- ``spikingjelly``: its neurons as cells.
- ``neurobench``: a network in NeuroBench's harness, with all of its synapses counted.

Each needs the library that it is named after, and is imported by whoever has it.
"""
