"""The content of a chunked data set of HDF5, unpacked without the library.

The library unpacks a stream to its end, whatever size the chunk states. Here a chunk is unpacked
once, and no further than one byte beyond that size.
"""

import zlib
from typing import Any

import h5py
import numpy as np

__all__ = ["READ", "unpack"]

READ = (h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_DEFLATE)
"""the filters that are undone here"""


def unpack(name: str, data: Any, filters: list[int], dtype: np.dtype, most: int) -> np.ndarray:
    """All that a data set holds.

    Args:
        name: its path, for errors.
        data: its ``h5py.h5d.DatasetID``; all of its chunks are there.
        filters: what they are packed by, in order.
        dtype: of an entry, as it lies in the file.
        most: bytes that a packed chunk may take.

    Raises:
        ValueError: if a chunk has another size than it states.
    """
    shape = data.get_create_plist().get_chunk()
    size = int(np.prod(shape)) * dtype.itemsize
    found = np.empty(data.shape, dtype)
    for i in range(data.get_num_chunks()):
        info = data.get_chunk_info(i)
        if info.size > most:
            raise ValueError(f"a chunk of {name} states {info.size} bytes, more than the file has.")
        mask, raw = data.read_direct_chunk(info.chunk_offset)
        for n in reversed(range(len(filters))):
            if not mask >> n & 1:  # else it did not shrink, and is stored as it is
                raw = _undone(name, filters[n], raw, size, dtype.itemsize)
        if len(raw) != size:
            more = "more" if len(raw) > size else "less"
            raise ValueError(f"a chunk of {name} unpacks to {more} than the {size} bytes that it states.")
        part = found[tuple(slice(a, a + n) for a, n in zip(info.chunk_offset, shape, strict=True))]
        part[...] = np.frombuffer(raw, dtype).reshape(shape)[tuple(slice(n) for n in part.shape)]
    return found


def _undone(name: str, code: int, raw: bytes, size: int, item: int) -> bytes:
    if code == h5py.h5z.FILTER_DEFLATE:
        return zlib.decompressobj().decompress(raw, size + 1)
    if code == h5py.h5z.FILTER_SHUFFLE:
        if len(raw) % item:
            raise ValueError(f"a chunk of {name} has {len(raw)} bytes, of entries of {item}.")
        return np.frombuffer(raw, np.uint8).reshape(item, -1).T.tobytes() if item > 1 else raw
    raise ValueError(f"{name} is packed by filter {code}, which is not read.")
