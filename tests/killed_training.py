"""A training that kills itself with SIGKILL: python -m tests.killed_training FILE ITEM WRITE.

It dies when it asks for the ITEM-th training sample, or in the middle of its WRITE-th write of the
checkpoint FILE; 0 is for never. If it lives, it leaves its weights in FILE.weights.
"""

import os
import signal
import sys

import torch
from torch import Tensor

from neurolsc import train
from neurolsc.io import write_tree
from tests.patterns import QUIET, Patterns, small_network

SAMPLES, EPOCHS = 40, 6


class Fuse:
    """Kills the process at the n-th call."""

    def __init__(self, n: int) -> None:
        self.left = n

    def __call__(self, *_: object) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class Deadly(Patterns):
    """Samples that burn a fuse."""

    def __init__(self, size: int, fuse: Fuse) -> None:
        super().__init__(size)
        self.fuse = fuse

    def __getitem__(self, index: int, /) -> tuple[Tensor, int]:
        self.fuse()
        return super().__getitem__(index)


if __name__ == "__main__":
    path, item, write = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    # called when the new file is written, and the old one not yet replaced
    fsync, os.fsync = os.fsync, Fuse(write)
    network = small_network()
    train(network, Deadly(SAMPLES, Fuse(item)), Patterns(12), epochs=EPOCHS, checkpoint=path, **QUIET)
    os.fsync = fsync
    write_tree(f"{path}.weights", dict(network.state_dict()))
