"""Answers to p1e4_header: right ones, and mistakes by the diagnosis they must get."""

import json
import struct

from tests.exercises.changed import changed


def _read(data, byteorder="little", base=None, check_length=True, check_offsets=True, lowest=0, skip=True):
    if check_length and len(data) < 8:
        raise ValueError("too short")
    n = int.from_bytes(data[:8], byteorder)
    if check_length and n > len(data) - 8:
        raise ValueError("header longer than the file")
    start = 8 + n if base is None else base(n)
    out = {}
    for name, e in json.loads(data[8 : 8 + n].decode()).items():
        if skip and name == "__metadata__":
            continue
        first, end = e["data_offsets"]
        if check_offsets and (first < lowest or end < first or 8 + n + end > len(data)):
            raise ValueError("outside the file")
        out[name] = (e["dtype"], e["shape"], start + first, start + end)
    return out


def right_with_view(data):
    view = memoryview(data)
    if len(view) < 8:
        raise ValueError(f"a file of {len(view)} bytes")
    length = struct.unpack_from("<Q", view)[0]
    header, numbers = view[8 : 8 + length], view[8 + length :]
    if len(header) != length:
        raise ValueError("cut off")
    entries = json.loads(bytes(header))
    entries.pop("__metadata__", None)
    found = {}
    for name, entry in entries.items():
        a, b = entry["data_offsets"]
        if a < 0 or not a <= b <= len(numbers):
            raise ValueError(name)
        found[name] = (entry["dtype"], tuple(entry["shape"]), 8 + length + a, 8 + length + b)
    return found


def big_endian(data):
    n = struct.unpack(">Q", data[:8])[0]
    if n > len(data) - 8:
        raise ValueError("header longer than the file")
    return _read(data, "big")


def metadata_as_entry(data):
    out = {}
    n = struct.unpack("<Q", data[:8])[0]
    if n > len(data) - 8:
        raise ValueError("too long")
    for name, e in json.loads(data[8 : 8 + n]).items():
        first, end = e.get("data_offsets", (0, 0))
        out[name] = (e.get("dtype"), e.get("shape", []), 8 + n + first, 8 + n + end)
    return out


def four_byte_length(data):
    n = struct.unpack("<I", data[:4])[0]
    return _read(struct.pack("<Q", n) + data[8:])


RIGHT = [lambda data: _read(data), right_with_view]
WRONG = {
    "header-big-endian": [big_endian, lambda data: _read(data, "big", check_length=False)],
    "header-forgot-the-eight": lambda data: _read(data, base=lambda n: n),
    "header-offsets-from-the-data": lambda data: _read(data, base=lambda n: 0),
    "header-length-only-skipped": lambda data: _read(data, base=lambda n: 8),
    "header-metadata-is-no-tensor": [lambda data: _read(data, skip=False), metadata_as_entry],
    "header-believes-the-length": [
        lambda data: _read(data, check_length=False),
        four_byte_length,
        changed(_read, {"n > len(data) - 8": "n > len(data) - 7"}),
        changed(right_with_view, {"len(view) < 8": "len(view) < 7"}),
    ],
    "header-believes-the-offsets": [
        lambda data: _read(data, check_offsets=False),
        lambda data: _read(data, lowest=-7),
    ],
}
