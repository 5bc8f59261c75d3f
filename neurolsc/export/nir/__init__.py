"""Graphs of NIR.

The map, bottom up:

- ``nodes``: the package nir and the numbers of its nodes;
- ``graph``: a chain of layers as a graph, and the chain inside a graph;
- ``mapping``: what must be known of our neurons; ``voltage``: what LIF and ALIF have in common;
- ``lif``, ``alif``: ours to nodes and back; ``table``: both, by the class that defines the step;
- ``readers``: what the readers of other programs can hold;
- ``write``, ``read``: a network to a graph or file, and back.
"""
