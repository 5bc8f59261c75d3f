"""Damages: what happens to files, and what somebody might do to one on purpose."""

import io
import json
import struct
from collections.abc import Callable
from random import Random
from typing import Any

import h5py
import numpy as np

Change = Callable[[bytes, Random], bytes]

ODD_NUMBERS = (0, 1, 2, 7, 255, 256, 65535, 2**20, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1)
ODD_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    12_000,
    2**31,
    10**30,
    -0.5,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "é\x1b[2J\u202e",
    "x" * 40_000,
    [],
    {},
    [[]],
    {"tensor": "0"},
    {"dict": [[{"list": []}, 1]]},
)


def flip_bits(data: bytes, random: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 8, 64))):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def cut(data: bytes, random: Random) -> bytes:
    return data[: random.randrange(len(data))]


def insert(data: bytes, random: Random) -> bytes:
    at = random.randrange(len(data) + 1)
    return data[:at] + random.randbytes(random.choice((1, 2, 4, 8, 100))) + data[at:]


def leave_out(data: bytes, random: Random) -> bytes:
    at = random.randrange(len(data))
    return data[:at] + data[at + random.choice((1, 2, 4, 8, 100)) :]


def blank(data: bytes, random: Random) -> bytes:
    at, size = random.randrange(len(data)), random.choice((1, 8, 64, 512))
    fill = random.choice((b"\0", b"\xff"))
    return data[:at] + fill * min(size, len(data) - at) + data[at + size :]


def copy_over(data: bytes, random: Random) -> bytes:
    size = random.choice((4, 8, 64, 512))
    a, b = (random.randrange(max(len(data) - size, 1)) for _ in range(2))
    return data[:b] + data[a : a + size] + data[b + size :]


def odd_number(data: bytes, random: Random) -> bytes:
    """Set an aligned field of 2, 4 or 8 bytes to a number at the end of some range."""
    size = random.choice((2, 4, 8))
    if len(data) < size:
        return data + b"\0"
    near = len(data) if random.random() < 0.5 else min(len(data), 2048)
    at = random.randrange(max(near // size, 1)) * size
    value = random.choice(ODD_NUMBERS) % 2 ** (8 * size)
    return data[:at] + value.to_bytes(size, random.choice(("little", "big"))) + data[at + size :]


BYTES: tuple[Change, ...] = (flip_bits, flip_bits, flip_bits, cut, insert, leave_out, blank, copy_over, odd_number)


def any_bytes(data: bytes, random: Random) -> bytes:
    return random.choice(BYTES)(data, random)


def json_value(node: Any, random: Random) -> Any:
    """A value with one place in it changed."""
    if isinstance(node, dict) and node and random.random() < 0.9:
        key = random.choice(list(node))
        if random.random() < 0.1:
            return {k: v for k, v in node.items() if k != key}
        if random.random() < 0.1:
            return node | {random.choice(("", "x" * 1000, "a\x1b[2J", "__metadata__")): random.choice(ODD_VALUES)}
        return node | {key: json_value(node[key], random)}
    if isinstance(node, list) and node and random.random() < 0.9:
        at = random.randrange(len(node))
        if random.random() < 0.1:
            return node[:at] + node[at + 1 :]
        return [*node[:at], json_value(node[at], random), *node[at + 1 :]]
    if isinstance(node, int | float) and not isinstance(node, bool) and random.random() < 0.5:
        return random.choice((node + 1, -node, node * 1000, float(node), str(node)))
    return random.choice(ODD_VALUES)


def safetensors_header(reseal: Callable[[dict[str, Any], bytes], bytes]) -> Change:
    """Change a value of the header, or of the JSON in it, and set the checksum right again."""

    def change(data: bytes, random: Random) -> bytes:
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        metadata = header["__metadata__"]
        if random.random() < 0.7:
            content = json_value(json.loads(metadata["content"]), random)
            header["__metadata__"] = metadata | {"content": json.dumps(content)}
        else:
            header = json_value(header, random)
        body = data[8 + size :]
        if random.random() < 0.1:
            body = any_bytes(body, random)
        return reseal(header, body) if isinstance(header, dict) else data[:-1]

    return change


def idx_header(data: bytes, random: Random) -> bytes:
    n_axes = data[3]
    field = random.randrange(n_axes + 1)
    if field == n_axes:
        return data[:3] + bytes([random.randrange(256)]) + data[4:]
    value = random.choice(ODD_NUMBERS) % 2**32
    return data[: 4 + 4 * field] + struct.pack(">I", value) + data[8 + 4 * field :]


def hdf5_object(data: bytes, random: Random) -> bytes:
    """Replace one object of an HDF5 file by another, through the library itself."""
    buffer = io.BytesIO(data)
    with h5py.File(buffer, "r+") as file:
        names: list[str] = []
        file.visit(names.append)
        name = random.choice(sorted(names))
        other = random.choice(sorted(names))
        old = file[name]
        change = random.choice(HDF5_CHANGES)
        if random.random() < 0.15 and len(old.attrs):
            key = random.choice(sorted(old.attrs))
            odd = random.choice((-1, 2**40, np.nan, "x" * 1000, np.zeros((2, 2)), h5py.Empty("f8"), b"\x1b[2J"))
            old.attrs[key] = odd
            return _closed(file, buffer)
        del file[name]
        change(file, name, other, old, random)
        return _closed(file, buffer)


def _closed(file: h5py.File, buffer: io.BytesIO) -> bytes:
    file.close()
    return buffer.getvalue()


def _nothing(file, name, other, old, random): ...


def _group(file, name, other, old, random):
    file.create_group(name)


def _external_link(file, name, other, old, random):
    file[name] = h5py.ExternalLink("/etc/hostname", "/x")


def _soft_link(file, name, other, old, random):
    file[name] = h5py.SoftLink(f"/{random.choice((name, other))}")


def _hard_link(file, name, other, old, random):
    if other in file:
        file[name] = file[other]


def _external_storage(file, name, other, old, random):
    shape = getattr(old, "shape", None) or (4,)
    file.create_dataset(name, shape, "u1", external=[("/etc/passwd", 0, h5py.h5f.UNLIMITED)])


def _virtual(file, name, other, old, random):
    shape, dtype = getattr(old, "shape", None) or (4,), getattr(old, "dtype", np.dtype("i8"))
    layout = h5py.VirtualLayout(shape, dtype if dtype.kind in "iuf" else "i8")
    layout[...] = h5py.VirtualSource("missing.h5", "x", shape)
    file.create_virtual_dataset(name, layout)


def _never_written(file, name, other, old, random):
    dtype = getattr(old, "dtype", np.dtype("i8"))
    shape = random.choice(((2**40,), (2**20, 2**20), (7,), (), getattr(old, "shape", None) or (1,)))
    file.create_dataset(name, shape, dtype, chunks=True if shape and random.random() < 0.5 else None)


def _compressed(file, name, other, old, random):
    dtype = getattr(old, "dtype", np.dtype("f4"))
    file.create_dataset(name, data=np.zeros(2**18, dtype if dtype.kind in "iuf" else "f4"), compression="gzip")


def _null(file, name, other, old, random):
    file[name] = h5py.Empty(random.choice(("f8", "i4", "S3")))


def _other_dtype(file, name, other, old, random):
    shape = getattr(old, "shape", None) or ()
    file[name] = np.zeros(shape if np.prod(shape) < 1e6 else (), random.choice(("f8", "i1", "S4", "c16", "u8", "?")))


def _compound(file, name, other, old, random):
    file[name] = np.zeros(getattr(old, "shape", None) or (), np.dtype([("a", "i4"), ("b", "f8", (3,))]))


def _odd_values(file, name, other, old, random):
    shape, dtype = getattr(old, "shape", None), getattr(old, "dtype", None)
    if shape is None or dtype is None or dtype.kind not in "iuf":
        file[name] = random.choice(("", "x" * 40_000, "\x1b[2J$\\alpha$"))
    else:
        value = (
            random.choice((0, 1, -1, 255, 1e30, np.nan, np.inf)) if dtype.kind == "f" else random.choice((0, 1, 7, 100))
        )
        file[name] = np.full(shape, value, dtype)


def _other_shape(file, name, other, old, random):
    dtype = getattr(old, "dtype", np.dtype("f4"))
    shape = random.choice(((), (0,), (1,), (3, 3), (2, 2, 2), (100,)))
    file[name] = np.zeros(shape, dtype if dtype.kind in "iuf" else "f4")


HDF5_CHANGES = (
    _nothing,
    _group,
    _external_link,
    _soft_link,
    _hard_link,
    _external_storage,
    _virtual,
    _never_written,
    _compressed,
    _null,
    _other_dtype,
    _compound,
    _odd_values,
    _other_shape,
)


def toml_line(data: bytes, random: Random) -> bytes:
    """Change the value, or the name, in a line of a TOML file."""
    lines = data.decode().splitlines()
    at = random.randrange(len(lines))
    name = lines[at].split(" = ")[0]
    values = ("-1", "1e400", "nan", "inf", "true", '"x"', "[]", "{}", "10" * 3000, "0x" + "f" * 9000, "1979-05-27")
    values += ("[" * 5000 + "]" * 5000, '"\\u001b[2J"', "{a.b.c = 1}", '"' + "y" * 40_000 + '"')
    changed = random.choice((f"{name} = {random.choice(values)}", f'"{name}\\u001b" = 1', f"[{name}]", f"{name}.a = 1"))
    return "\n".join([*lines[:at], changed, *lines[at + 1 :]]).encode()
