"""Other people's simulators, that step what we wrote.

The map:

- ``process``: a run in an environment and process of its own, which cannot hang us;
- ``lava_runner``, ``nengo_runner``: the scripts that are run there, which import nothing of ours;
- ``norse``, ``spikingjelly``: the readers of a NIR file, in this process; ``through_nir``: what
  they share;
- ``agreement``: how their spikes agree with ours.
"""

from neurolsc.export.simulators.process import find_python, simulate

__all__ = ["find_python", "simulate"]
