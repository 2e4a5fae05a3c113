"""Answers to p1e4_header: right ones, and mistakes by the diagnosis they must get."""

import json
import struct


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


PLACES = "start + first, start + end)"
TOO_LONG = "if start > len(data):"
IS_METADATA = 'name == "__metadata__"'
IS_INSIDE = "0 <= first <= end <= len(data) - start"
RIGHT = [right_with_view]
WRONG = {
    "header-big-endian": [{'"<Q"': '">Q"'}, {'"<Q"': '">Q"', TOO_LONG: "if False:"}],
    "header-forgot-the-eight": {PLACES: "length + first, length + end)"},
    "header-offsets-from-the-data": {PLACES: "first, end)"},
    "header-length-only-skipped": {PLACES: "8 + first, 8 + end)"},
    "header-metadata-is-no-tensor": [
        {IS_METADATA: "False"},
        {
            IS_METADATA: "False",
            'entry["data_offsets"]': 'entry.get("data_offsets", (0, 0))',
            'entry["dtype"], entry["shape"]': 'entry.get("dtype"), entry.get("shape", [])',
        },
    ],
    "header-believes-the-length": [
        {"len(data) < 8": "False", TOO_LONG: "if False:"},
        {'"<Q", data[:8]': '"<I", data[:4]'},
        {TOO_LONG: "if start > len(data) + 1:"},
        {"len(data) < 8": "len(data) < 7"},
    ],
    "header-believes-the-offsets": [{IS_INSIDE: "True"}, {"0 <= first": "-7 <= first"}],
}
