"""safetensors with a checksum over all that they hold, written and read.

A safetensors file is eight bytes that say how long its header is, the header, a JSON object with
the place of every tensor and some metadata, and the bytes of the tensors. The checksum is one entry
more of the metadata, a CRC-32 of the header without it and of all the bytes; other readers pass it
over.
"""

import json
import zlib
from typing import Any

import safetensors.torch
from torch import Tensor

from neurolsc.untrusted.words import clean

__all__ = ["check_finite", "check_seal", "sealed", "unsealed"]

LONGEST = 2**24
"""bytes of a header: 16 MiB"""
MOST_VALUES = 2**21
"""values that the JSON of a header may hold: a list of empty lists takes thirty times its text"""
SEAL = "crc32"
METADATA = "__metadata__"


def sealed(tensors: dict[str, Tensor], metadata: dict[str, str]) -> bytes:
    """The bytes of a file: the same for the same tensors and metadata.

    Raises:
        ValueError: if the header is longer than a reader takes.
    """
    data = safetensors.torch.save(tensors, metadata)
    header, body = _parts(data)
    header[METADATA] = metadata | {SEAL: _checksum(header, body)}
    text = _canonical(header)
    text += b" " * (-len(text) % 8)
    if len(text) > LONGEST:
        raise ValueError(f"the description takes {len(text)} bytes, at most {LONGEST} can be read again.")
    return b"".join((len(text).to_bytes(8, "little"), text, body))


def unsealed(data: bytes) -> dict[str, str]:
    """The metadata of a file, whose checksum is not looked at yet.

    Raises:
        ValueError: if there is no header of a length that is taken.
    """
    found = _parts(data)[0].get(METADATA, {})
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ValueError("damaged or not a safetensors file: its metadata are not texts.")
    if sum(found.get("content", "").count(sign) for sign in "[{,") > MOST_VALUES:
        raise ValueError(f"damaged: its description holds more than {MOST_VALUES} values.")
    return found


def check_seal(data: bytes) -> None:
    """Refuse a file that is not the one that was written.

    Raises:
        ValueError: if its checksum is another one.
    """
    header, body = _parts(data)
    said = header.get(METADATA, {}).pop(SEAL, None)
    if said != _checksum(header, body):
        raise ValueError("damaged: its checksum is not that of its content.")


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


def _parts(data: bytes) -> tuple[dict[str, Any], memoryview]:
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > min(LONGEST, len(data) - 8):
        raise ValueError(
            f"damaged or not a safetensors file: a header of {size} bytes, in a file of {len(data)}, at most {LONGEST}."
        )
    text = data[8 : 8 + size]
    if sum(text.count(sign) for sign in (b"[", b"{", b",")) > 2 * MOST_VALUES:
        raise ValueError("damaged or not a safetensors file: its header holds too many values.")
    header = json.loads(text)
    if not isinstance(header, dict):
        raise ValueError("damaged or not a safetensors file: its header is no JSON object.")
    return header, memoryview(data)[8 + size :]


def _canonical(header: dict[str, Any]) -> bytes:
    return json.dumps(header, sort_keys=True, separators=(",", ":")).encode()


def _checksum(header: dict[str, Any], body: memoryview) -> str:
    return f"{zlib.crc32(body, zlib.crc32(_canonical(header))):08x}"
