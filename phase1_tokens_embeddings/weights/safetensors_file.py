"""Read the header of a safetensors file by hand: what is in it, and whether it can be trusted.

A safetensors file is as plain as a file of tensors can be:

    8 bytes    N, the length of the header (little-endian, unsigned)
    N bytes    the header, JSON: {"name": {"dtype": "F16", "shape": [8, 4], "data_offsets": [0, 64]}, ...}
    the rest   the numbers of all tensors, one after the other; offsets count from here

A loader that believes a header can be made to read past the end of the file, to allocate terabytes, or
to give the same bytes to two tensors. So every figure in the header is held against the size of the file
before anything is read or allocated.

Source: the format's description, https://github.com/huggingface/safetensors#format.
"""

import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from labkit.foreign import parse_json, quoted, read_json, visible

# Room for 60,000 tensors. The header of a 70B model takes 80 kB. The format allows 100 MB; what Python makes of that
# much JSON takes 3 GB.
MAX_HEADER_BYTES = 8_000_000
MAX_INDEX_BYTES = (
    32_000_000  # an index names the tensors of all shards; that of a model of 10^12 weights takes 15 MB
)
_MAX_COUNT = 2**64 - 1  # sizes are 64-bit unsigned numbers in the format

DTYPE_BITS: Mapping[str, int] = {
    "F64": 64, "I64": 64, "U64": 64, "C64": 64,
    "F32": 32, "I32": 32, "U32": 32,
    "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I8": 8, "U8": 8, "BOOL": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip
"""Bits of one number of each type."""


class TensorEntry(NamedTuple):
    """One tensor. `offsets`: its first byte and the byte after its last, counted from the data's start."""

    dtype: str
    shape: tuple[int, ...]
    offsets: tuple[int, int]

    @property
    def nbytes(self) -> int:
        return self.offsets[1] - self.offsets[0]


@dataclass(frozen=True)
class SafetensorsHeader:
    """A checked header.

    Attributes:
        tensors: name -> TensorEntry, in the order of the data.
        metadata: free text of the writer, such as {"format": "pt"}.
        header_bytes: size of the JSON. The data begins at `8 + header_bytes`.
        file_bytes: size of the whole file.
    """

    tensors: dict[str, TensorEntry]
    metadata: dict[str, str]
    header_bytes: int
    file_bytes: int

    @property
    def data_start(self) -> int:
        return 8 + self.header_bytes


def read_safetensors_header(path: str | Path) -> SafetensorsHeader:
    """Read and check the header. The tensors themselves are not read.

    What it accepts, the tensors fill the file exactly: no overlap, no gap, nothing left over, and each
    takes the bytes that its shape and dtype ask for.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not a safetensors file, cut off, or a header that contradicts itself or the file.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file at {visible(path)}: give the path of a .safetensors file")
    try:
        with path.open("rb") as file:
            file_bytes = os.fstat(file.fileno()).st_size
            header_bytes = _header_length(file.read(8), file_bytes)
            raw = file.read(header_bytes)
        if len(raw) != header_bytes:
            raise ValueError("it shrank while it was read: is a download still running?")
        if not raw.startswith(b"{"):
            raise ValueError("the header does not begin with '{'")
        document = parse_json(raw, _no_duplicates)
        metadata = document.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(map(_is_text, [*metadata, *metadata.values()])):
            raise ValueError("__metadata__ must map text to text")
        tensors = {name: _check_entry(name, entry) for name, entry in document.items()}
        tensors = dict(sorted(tensors.items(), key=lambda item: item[1].offsets))
        _check_layout(tensors, data_bytes=file_bytes - 8 - header_bytes)
    except OSError as error:
        raise ValueError(
            f"{visible(path)} cannot be read ({error.strerror}): check its permissions"
        ) from None
    except ValueError as error:
        raise ValueError(f"{visible(path)} is not a sound safetensors file: {error}") from None
    return SafetensorsHeader(tensors, metadata, header_bytes, file_bytes)


def checkpoint_files(folder: str | Path) -> list[Path]:
    """The safetensors files of a model folder: `model.safetensors`, or the shards of its index.

    Raises:
        FileNotFoundError: there are none, or one that the index names is missing.
        ValueError: the index is not what it should be.
    """
    folder = Path(folder)
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.is_file():
        return [whole]
    if not index.is_file():
        raise FileNotFoundError(
            f"no model.safetensors in {visible(folder)}: fetch the model in safetensors format"
        )
    try:
        names = sorted(_shards(read_json(index, MAX_INDEX_BYTES)))
    except ValueError as error:
        raise ValueError(f"{visible(index)} is not an index of shards: {error}") from None
    there = {file.name for file in folder.iterdir() if file.is_file()}
    if missing := [name for name in names if name not in there]:
        raise FileNotFoundError(
            f"{visible(folder)} lacks {visible(missing[0])}, which its index names: fetch the model again"
        )
    return [folder / name for name in names]


def _shards(index: Any) -> set[str]:
    files = index.get("weight_map") if isinstance(index, dict) else None
    # A plain name keeps a hostile index from reaching out of the folder.
    if not isinstance(files, dict) or not all(
        isinstance(n, str) and Path(n).name == n for n in files.values()
    ):
        raise ValueError("weight_map must map tensor names to names of files in the same folder")
    if not files:
        raise ValueError("weight_map is empty")
    return set(files.values())


def open_tensors(path: str | Path) -> safe_open:
    """The library's reader, for the numbers of a file whose header has been checked.

    Raises:
        ValueError: the library refuses the file.
    """
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise ValueError(f"{visible(path)} is not a sound safetensors file: {visible(error, 200)}") from None


# ------------------------------------------------------------------ the checks, in the order they are made


def _header_length(first: bytes, file_bytes: int) -> int:
    if len(first) < 8:
        raise ValueError(f"it is too short: {file_bytes} bytes, at least 10 needed")
    (length,) = struct.unpack("<Q", first)
    # The length comes from the file, so it may be anything up to 2^64: never allocate before this test.
    if length > file_bytes - 8:
        raise ValueError(
            f"it announces a header of {length} bytes but holds {file_bytes}: cut off, or not safetensors"
        )
    if length > MAX_HEADER_BYTES:
        raise ValueError(f"it announces a header of {length} bytes: {MAX_HEADER_BYTES} are plenty")
    return length


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Two entries of one name: each JSON parser picks another one, so two programs would see two models.
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ValueError(f"{quoted(twice)} occurs twice")
    return result


def _check_entry(name: str, entry: Any) -> TensorEntry:
    label = f"tensor {quoted(name)}"
    if (
        not _is_text(name)
        or not isinstance(entry, dict)
        or entry.keys() != {"dtype", "shape", "data_offsets"}
    ):
        raise ValueError(
            f"{label} needs a name in UTF-8, a dtype, a shape and data_offsets, and nothing else"
        )
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise ValueError(f"{label} has the unknown dtype {quoted(dtype)}")
    if not _are_sizes(shape):
        raise ValueError(f"{label} has the shape {quoted(shape)}: sizes must be whole numbers from 0 up")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ValueError(f"{label} has the data_offsets {quoted(offsets)}: [first, end] is needed")

    # As the package counts: numbers first, then bits. So [2**62, 0] is an empty tensor, [2**62, 4, 0] an overflow.
    count = 1
    for size in shape:  # stop at the first overflow: a million huge sizes would keep us multiplying for ever
        count *= size
        if count > _MAX_COUNT:
            break
    bits = count * DTYPE_BITS[dtype]
    if bits > _MAX_COUNT:
        raise ValueError(f"{label} has the shape {quoted(shape)}: larger than any file")
    begin, end = offsets
    if bits != 8 * (end - begin):
        raise ValueError(
            f"{label} of shape {quoted(shape)} in {dtype} takes {bits / 8:g} bytes, not {end - begin}"
        )
    return TensorEntry(dtype, tuple(shape), (begin, end))


def _is_text(value: Any) -> bool:
    # JSON can spell half of a UTF-16 pair ("\\ud800"), which is no character and cannot be written as UTF-8.
    return isinstance(value, str) and not re.search("[\\ud800-\\udfff]", value)


def _are_sizes(values: Any) -> bool:
    # `type(v) is int`: in Python True is an int too, but not in a header.
    return isinstance(values, list) and all(type(v) is int and 0 <= v <= _MAX_COUNT for v in values)


def _check_layout(tensors: dict[str, TensorEntry], data_bytes: int) -> None:
    """Every byte of the data belongs to exactly one tensor. `tensors` are sorted by their offsets."""
    end, before = 0, "the start of the data"
    for name, entry in tensors.items():
        begin = entry.offsets[0]
        if begin < end:
            raise ValueError(f"tensor {quoted(name)} begins at {begin}, inside {before}, which ends at {end}")
        if begin > end:
            raise ValueError(f"{begin - end} bytes before tensor {quoted(name)} belong to no tensor")
        end, before = entry.offsets[1], f"tensor {quoted(name)}"
    if end != data_bytes:
        raise ValueError(f"its tensors take {end} bytes, the file holds {data_bytes} bytes of data")
