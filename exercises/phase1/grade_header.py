"""Grader of reading a safetensors header. The reference is the safetensors library."""

import json
import struct
from collections.abc import Callable
from typing import Any

from exercises.grading import Diagnoses, Exercise, NotYet, call, guard, same
from exercises.judging.judge import judge

SAYS = Diagnoses.of("p1e4_header")


def _file(header: dict[str, Any], data: bytes, pad: int = 0) -> bytes:
    text = json.dumps(header).encode() + b" " * pad
    return struct.pack("<Q", len(text)) + text + data


def _entry(dtype: str, shape: list[int], first: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, end]}


def _read_with(base: Callable[[int], int]) -> Callable:
    """A reader that takes the start of the data from `base(header length)`."""

    def read(data: bytes) -> dict:
        n = struct.unpack("<Q", data[:8])[0]
        tensors = {}
        for name, e in json.loads(data[8 : 8 + n]).items():
            first, end = e["data_offsets"]
            tensors[name] = (e["dtype"], e["shape"], base(n) + first, base(n) + end)
        return tensors

    return read


def _right_header(data: bytes) -> dict:
    """Independent of the learner's: through the safetensors library."""
    from safetensors import deserialize

    sizes = {name: (t["dtype"], t["shape"]) for name, t in deserialize(data)}
    n = int.from_bytes(data[:8], "little")
    entries = json.loads(data[8 : 8 + n])
    return {
        name: (entries[name]["dtype"], shape, *(8 + n + offset for offset in entries[name]["data_offsets"]))
        for name, (_, shape) in sizes.items()
    }


READING = {
    "header-forgot-the-eight": _read_with(lambda n: n),
    "header-offsets-from-the-data": _read_with(lambda n: 0),
    "header-length-only-skipped": _read_with(lambda n: 8),
}


def grade_header(read_header: Callable) -> None:
    plain = [
        _file({"a": _entry("F32", [2], 0, 8)}, bytes(8)),
        _file({"w": _entry("F16", [2, 3], 0, 12), "b": _entry("BF16", [3], 12, 18)}, bytes(18), pad=5),
        _file({"x": _entry("U8", [0], 0, 0)}, b""),
        _file({}, b""),
    ]
    show = lambda data: f"read_header of a file of {len(data)} bytes that begins {data[:24]!r}"  # noqa: E731

    # Read the other way round the length is astronomic, and what happens then depends on the reader.
    try:
        judge(read_header, [(data,) for data in plain], _right_header, READING, SAYS, show=show)
    except NotYet as no:
        if no.diagnosis == "raises" or no.diagnosis == "wrong-result":
            _ask_if_big_endian(read_header, no)
        raise
    _grade_metadata(read_header)
    _grade_hostile(read_header)


def _ask_if_big_endian(read_header: Callable, found: NotYet) -> None:
    text = json.dumps({"a": _entry("F32", [2], 0, 8)}).encode()
    swapped = struct.pack(">Q", len(text)) + text + bytes(8)
    try:
        result = call(read_header, swapped)
    except Exception:
        return
    if set(result) == {"a"}:
        raise SAYS.no(
            "header-big-endian",
            "read_header of a file whose length is written the wrong way round",
            str(result),
            "an error: no such file exists",
        ) from found


def _grade_metadata(read_header: Callable) -> None:
    data = _file({"__metadata__": {"format": "pt"}, "a": _entry("F32", [2], 0, 8)}, bytes(8))
    tried, expected = "read_header of a file with __metadata__ in its header", _right_header(data)
    try:
        got = guard(read_header, data, tried=tried)
    except NotYet as no:
        if no.diagnosis != "raises":
            raise
        got = str(no)
    if not same(got, expected):
        raise SAYS.no("header-metadata-is-no-tensor", tried, got, expected)


def _grade_hostile(read_header: Callable) -> None:
    good = _file({"a": _entry("F32", [2], 0, 8)}, bytes(8))
    n = int.from_bytes(good[:8], "little")
    hostile = {
        "header-believes-the-length": {
            "a header of 2^60 bytes": struct.pack("<Q", 2**60) + good[8:],
            "a header of 2^64 - 1 bytes": struct.pack("<Q", 2**64 - 1) + good[8:],
            "a header of 2^64 - 8 bytes": struct.pack("<Q", 2**64 - 8) + good[8:],
            "a length whose upper half is not 0": struct.pack("<Q", n + 2**32) + good[8:],
            "a file that was cut off inside its header": good[:30],
            "a file that lacks the last byte of its header": _file({}, b"", pad=4)[:-1],
            "a file of 3 bytes": good[:3],
            "a file of 7 bytes": good[:7],
        },
        "header-believes-the-offsets": {
            "a tensor that ends behind the file": good[:-1],
            "a tensor whose end comes before its beginning": _file({"a": _entry("F32", [0], 8, 4)}, bytes(8)),
            **{
                f"a tensor that begins at {first}": _file(
                    {"a": _entry("U8", [8 - first], first, 8)}, bytes(8)
                )
                for first in (-1, -4, -8, -9)
            },
        },
    }
    for diagnosis, files in hostile.items():
        for name, data in files.items():
            try:
                got: Any = call(read_header, data)
            except Exception as error:
                # json's own complaint about a header that is cut off is a ValueError, too, but it comes too late:
                # with a length of 2^60 a reader of real files has asked for that memory by then.
                too_late = isinstance(error, json.JSONDecodeError | UnicodeDecodeError)
                if isinstance(error, ValueError) and not too_late:
                    continue
                got = f"{type(error).__name__}: {error}"
            raise SAYS.no(diagnosis, f"read_header of {name}", got, "a ValueError")


EXERCISES = [
    Exercise("p1e4_header", ("read_header",), grade_header),
]
