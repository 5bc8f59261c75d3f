"""Make the sample of MNIST in neurolsc/datasets/samples/mnist.

    python make_mnist_sample.py MNIST OUT

MNIST is the folder of the four published files (missing ones are downloaded), OUT the folder to
write into. From each class the recipe draws 200 training and 50 test digits, leaves them in MNIST's
order and changes no pixel. The result is four IDX files again, gzipped without name or time, so
that the same zlib writes the same bytes.
"""

import argparse
import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from neurolsc.datasets import read_idx
from neurolsc.datasets.download import fetch

SEED = 0
PER_CLASS = {"train": 200, "t10k": 50}


def draw(labels: Tensor, per_class: int) -> Tensor:
    """Indices of equally many items of every class, without replacement, in ascending order."""
    random = np.random.RandomState(SEED)
    members = [np.flatnonzero(labels == digit) for digit in range(10)]
    return torch.from_numpy(np.sort([random.choice(m, per_class, replace=False) for m in members], axis=None))


def write_idx(path: Path, array: Tensor) -> None:
    """Write unsigned bytes as a gzipped IDX file, and print its line of the card."""
    contents = struct.pack(f">HBB{array.ndim}I", 0, 0x08, array.ndim, *array.shape) + array.numpy().tobytes()
    with path.open("wb") as file, gzip.GzipFile("", "wb", compresslevel=9, fileobj=file, mtime=0) as packed:
        packed.write(contents)
    print(f"| {path.name} | {path.stat().st_size} | {hashlib.sha256(contents).hexdigest()} |")


def main() -> None:
    """Read, draw, write."""
    parser = argparse.ArgumentParser(description="Draw a small sample of MNIST.")
    parser.add_argument("mnist", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for part, per_class in PER_CLASS.items():
        pair = (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte")
        images, labels = (read_idx(fetch(arguments.mnist, name)) for name in pair)
        chosen = draw(labels, per_class)
        for name, array in zip(pair, (images, labels), strict=True):
            write_idx(arguments.out / f"{name}.gz", array[chosen])


if __name__ == "__main__":
    main()
