"""safetensors with a checksum over all that they hold, written and read.

A safetensors file is eight bytes that say how long its header is, the header, a JSON object with
dtype, shape and place of every tensor and some metadata, and the tensors' bytes, without gaps.
The checksum is one entry more of the metadata, a CRC-32 of the header without it and of all the
bytes; other readers pass it over. The format is plain enough to be read here, each tensor into
memory of its own: one copy, where the library and a clone make three.

Source: the format's description, https://github.com/huggingface/safetensors (Format).
"""

import json
import math
import os
import zlib
from typing import Any, BinaryIO

import torch
from torch import Tensor

from neurolsc.untrusted.words import clean

__all__ = ["Sealed", "check_finite", "sealed"]

LONGEST = 2**24
"""bytes of a header: 16 MiB"""
MOST_VALUES = 2**21
"""values that the JSON of a header may hold: a list of empty lists takes thirty times its text"""
SEAL = "crc32"
METADATA = "__metadata__"
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def sealed(tensors: dict[str, Tensor], metadata: dict[str, str]) -> list[bytes | memoryview]:
    """The bytes of a file, in pieces: the same for the same tensors and metadata.

    Args:
        tensors: on the CPU, contiguous.
        metadata: texts.

    Raises:
        TypeError: if a dtype has no name in the format as it is written here.
        ValueError: if the header is longer than a reader takes.
    """
    header: dict[str, Any] = {}
    body, at = [], 0
    for name in sorted(tensors, key=lambda name: (-tensors[name].itemsize, name)):  # keeps each aligned
        value = tensors[name]
        if value.dtype not in NAMES:
            raise TypeError(f"{name} cannot be stored: {value.dtype}; known are {', '.join(map(str, NAMES))}.")
        header[name] = {
            "dtype": NAMES[value.dtype],
            "shape": list(value.shape),
            "data_offsets": [at, at + value.nbytes],
        }
        body.append(_memory(value.resolve_conj()))
        at += value.nbytes
    header[METADATA] = metadata
    header[METADATA] = metadata | {SEAL: _seal(header, body)}
    text = _canonical(header)
    text += b" " * (-len(text) % 8)
    if len(text) > LONGEST:
        raise ValueError(f"the description takes {len(text)} bytes, at most {LONGEST} can be read again.")
    return [len(text).to_bytes(8, "little"), text, *body]


class Sealed:
    """An open file: its metadata, and then its tensors.

    Args:
        file: at its start.

    Attributes:
        metadata: texts, whose checksum is not looked at before the tensors are read.

    Raises:
        ValueError: if there is no header of a length that is taken.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file, whole = file, os.fstat(file.fileno()).st_size
        size = int.from_bytes(file.read(8), "little")
        if whole < 8 or size > min(LONGEST, whole - 8):
            raise ValueError(
                f"damaged or not a safetensors file: a header of {size} bytes, in a file of {whole}, at most {LONGEST}."
            )
        text = file.read(size)
        if sum(text.count(sign) for sign in (b"[", b"{", b",")) > MOST_VALUES:
            raise ValueError(f"damaged: its header holds more than {MOST_VALUES} values.")
        self.header, self.left = json.loads(text), whole - 8 - size
        if not isinstance(self.header, dict):
            raise ValueError("damaged or not a safetensors file: its header is no JSON object.")
        self.metadata: dict[str, str] = self.header.get(METADATA, {})
        if not isinstance(self.metadata, dict) or not all(isinstance(v, str) for v in self.metadata.values()):
            raise ValueError("damaged or not a safetensors file: its metadata are not texts.")

    def tensors(self) -> dict[str, Tensor]:
        """All tensors, onto the CPU, each in its own memory.

        Raises:
            ValueError: if they do not fill the file without gaps, or the checksum is not that of
                the content.
        """
        entries = {name: entry for name, entry in self.header.items() if name != METADATA}
        places, at = sorted(entries, key=lambda name: entries[name]["data_offsets"]), 0
        kinds = {name: _kind(name, entries[name]) for name in places}
        for name in places:
            end = at + math.prod(kinds[name][1]) * kinds[name][0].itemsize
            if entries[name]["data_offsets"] != [at, end]:
                raise ValueError(f"damaged: the bytes of {clean(name)} are not where they should be.")
            at = end
        if at != self.left:
            raise ValueError(f"damaged: its tensors take {at} bytes, there are {self.left}.")
        read, parts = {}, []
        for name in places:
            dtype, shape = kinds[name]
            value = torch.empty(shape, dtype=dtype)
            parts.append(_memory(value))
            if value.nbytes and self.file.readinto(parts[-1]) != value.nbytes:  # type: ignore[attr-defined]
                raise ValueError(f"damaged: it ends within {clean(name)}.")
            if dtype is torch.bool and value.numel() and value.view(torch.uint8).max() > 1:
                raise ValueError(f"{clean(name)} must hold booleans.")
            read[name] = value
        said = self.metadata.pop(SEAL, None)
        if said != _seal(self.header, parts):
            raise ValueError("damaged: its checksum is not that of its content.")
        return read


def check_finite(tensors: dict[str, Tensor]) -> None:
    """Refuse NaN and infinity.

    Raises:
        ValueError: naming the tensor.
    """
    for name, value in tensors.items():
        # the sum first, which is several times as fast
        if (value.is_floating_point() or value.is_complex()) and not value.sum().isfinite():
            bad = value[~value.isfinite()]
            if len(bad):
                raise ValueError(f"{clean(name)} must be finite, got {bad[0].item()}.")


def _kind(name: str, entry: Any) -> tuple[torch.dtype, list[int]]:
    dtype, shape = DTYPES.get(entry["dtype"]), entry["shape"]
    if dtype is None:
        raise ValueError(f"{clean(name)} has the dtype {clean(entry['dtype'])}; known are {', '.join(DTYPES)}.")
    if not all(type(n) is int and 0 <= n < 2**40 for n in shape):
        raise ValueError(f"{clean(name)} has the shape {clean(shape)}.")
    return dtype, shape


def _memory(value: Tensor) -> memoryview:
    """The bytes of a contiguous tensor."""
    return value.view(-1).view(torch.uint8).numpy().data if value.numel() else memoryview(b"")


def _canonical(header: dict[str, Any]) -> bytes:
    return json.dumps(header, sort_keys=True, separators=(",", ":")).encode()


def _seal(header: dict[str, Any], body: list[memoryview]) -> str:
    found = zlib.crc32(_canonical(header))
    for part in body:
        found = zlib.crc32(part, found)
    return f"{found:08x}"
