"""How much memory a file may ask for."""

from neurolsc.io import clean

__all__ = ["Room"]

FLOOR = 64 * 2**20
"""bytes that any file may fill: a matrix of zeros packs a thousandfold"""
FACTOR = 16
"""bytes that it may fill besides, for each byte of its length"""


class Room:
    """The memory that the content of one file may still fill: 64 MiB and 16 times its length.

    Every size that a file states is taken from it before anything is allocated, so that a file of a
    few kilobytes cannot ask for gigabytes.

    Args:
        length: of the file, in bytes.

    Example:
        >>> Room(1000).take(2**30, "spikes")
        Traceback (most recent call last):
        ValueError: spikes would fill 1.07 GB more than was read before, but a file of 1,000 ...
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.left = FLOOR + FACTOR * length

    def take(self, size: int, what: str) -> None:
        """Take some bytes.

        Args:
            size: how many.
            what: for the error, which cleans it.

        Raises:
            ValueError: if there are not as many left; the message says of what.
        """
        if size > self.left:
            raise ValueError(
                f"{clean(what, 200)} would fill {size / 1e9:.3g} GB more than was read before, but a file of {self.length:,} "
                f"bytes may fill 64 MiB and {FACTOR} times its length in all."
            )
        self.left -= size
