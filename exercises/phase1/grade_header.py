"""Grader of reading a safetensors header."""

import json
import struct
from collections.abc import Callable
from typing import Any

from exercises.judging.judge import Exercise, When

Entry = tuple[str, list[int], int, int]


def _file(header: dict[str, Any], data: bytes, pad: int = 0) -> bytes:
    text = json.dumps(header).encode() + b" " * pad
    return struct.pack("<Q", len(text)) + text + data


def _entry(dtype: str, shape: list[int], first: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, end]}


def _file_of(entry: dict[str, Any]) -> bytes:
    return _file({"a": entry}, bytes(8))


A = _entry("F32", [2], 0, 8)
GOOD = _file_of(A)
LENGTH = int.from_bytes(GOOD[:8], "little")
PLAIN = {
    "one tensor": GOOD,
    "two tensors, and spaces behind the header": _file(
        {"w": _entry("F16", [2, 3], 0, 12), "b": _entry("BF16", [3], 12, 18)}, bytes(18), pad=5
    ),
    "a tensor of no numbers": _file({"x": _entry("U8", [0], 0, 0)}, b""),
    "no tensor": _file({}, b""),
    "a length that is written the wrong way round": struct.pack(">Q", LENGTH) + GOOD[8:],
    "__metadata__ in the header": _file({"__metadata__": {"format": "pt"}, "a": A}, bytes(8)),
}
TOO_LONG = {
    "a header of 2^60 bytes": struct.pack("<Q", 2**60) + GOOD[8:],
    "a header of 2^64 - 1 bytes": struct.pack("<Q", 2**64 - 1) + GOOD[8:],
    "a header of 2^64 - 8 bytes": struct.pack("<Q", 2**64 - 8) + GOOD[8:],
    "a length whose upper half is not 0": struct.pack("<Q", LENGTH + 2**32) + GOOD[8:],
    "a cut inside the header": GOOD[:30],
    "a header without its last byte": _file({}, b"", pad=4)[:-1],
    "3 bytes in all": GOOD[:3],
    "7 bytes in all": GOOD[:7],
}
OUTSIDE = {
    "a tensor that ends behind the file": GOOD[:-1],
    "a tensor whose end comes before its beginning": _file_of(_entry("F32", [0], 8, 4)),
    **{f"a tensor that begins at {n}": _file_of(_entry("U8", [8 - n], n, 8)) for n in (-1, -4, -8, -9)},
}


def read_safely(read_header: Callable, name: str, data: bytes) -> dict[str, Entry] | str:
    """What is read of a file. A hostile one has to be refused by a ValueError of the reader's own."""
    if name in PLAIN and "wrong way" not in name:
        return read_header(data)
    try:
        return {"read": read_header(data)}
    except Exception as error:
        # json's own complaint about a header that is cut off is a ValueError, too, but it comes too late:
        # with a length of 2^60 a reader of real files has asked for that memory by then.
        too_late = isinstance(error, json.JSONDecodeError | UnicodeDecodeError)
        refused = isinstance(error, ValueError) and not too_late
        return {"refused": "by a ValueError" if refused else f"{type(error).__name__}: {error}"}


PLACES = "start + first, start + end)"
HEADER, IS_METADATA = "if start > len(data):", 'name == "__metadata__"'
FITS = "0 <= first <= end <= len(data) - start"
EXERCISE = Exercise(
    "p1e4_header",
    read_header={
        "header-big-endian": ({'"<Q"': '">Q"'}, {'"<Q"': '">Q"', HEADER: "if False:"}),
        "header-forgot-the-eight": {PLACES: "length + first, length + end)"},
        "header-offsets-from-the-data": {PLACES: "first, end)"},
        "header-length-only-skipped": {PLACES: "8 + first, 8 + end)"},
        "header-metadata-is-no-tensor": ({IS_METADATA: "False"}, When(lambda got, *_: "__metadata__" in got)),
        "header-refuses-a-good-file": (
            {FITS: "0 <= first < end <= len(data) - start"},
            {FITS: "0 <= first <= end < len(data) - start"},
            {HEADER: "if start >= len(data):"},
        ),
        "header-believes-the-length": (
            {"len(data) < 8": "False", HEADER: "if False:"},
            {HEADER: "if False:"},
            {'"<Q", data[:8]': '"<I", data[:4]'},
            {HEADER: "if start > len(data) + 1:"},
            {"len(data) < 8": "len(data) < 7"},
            When(lambda got, want, name, _: name in TOO_LONG),
        ),
        "header-believes-the-offsets": (
            {FITS: "True"},
            {"0 <= first": "-7 <= first"},
            When(lambda got, want, name, _: name in OUTSIDE),
        ),
    },
)


@EXERCISE.grader
def grade_header(read_header: Callable) -> None:
    EXERCISE.judge(
        "read_header",
        read_header,
        [*PLAIN.items(), *TOO_LONG.items(), *OUTSIDE.items()],
        play=read_safely,
        show=lambda name, data: (
            f"read_header of a file of {len(data)} bytes ({name}) that begins {data[:24]!r}"
        ),
    )
