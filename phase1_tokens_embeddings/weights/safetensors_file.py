"""Read the header of a safetensors file by hand: its tensors and their offsets.

A safetensors file is as plain as a file of tensors can be:

    8 bytes    N, the length of the header (little-endian, unsigned)
    N bytes    the header, JSON: {"name": {"dtype": "F16", "shape": [8, 4], "data_offsets": [0, 64]}, ...}
    the rest   the numbers of all tensors, one after the other; offsets count from here

A loader that believes a header can be made to read past the end of the file, to allocate terabytes, or
to give the same bytes to two tensors. Here the length is held against the size of the file before the header is
read, and the package `safetensors` holds every figure in it against the file. (`gguf_file.py` shows such checks
written out.)

Source: the format's description, https://github.com/huggingface/safetensors#format.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from labkit.foreign import read_json, visible

# Room for 60,000 tensors. The header of a 70B model takes 80 kB. The format allows 100 MB, which would
# take 3 GB as Python objects.
MAX_HEADER_BYTES = 8_000_000
# An index names the tensors of all shards; that of a model of 10^12 weights takes 15 MB.
MAX_INDEX_BYTES = 32_000_000


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
        header_bytes: size of the JSON. The data begins at `8 + header_bytes`.
    """

    tensors: dict[str, TensorEntry]
    header_bytes: int

    @property
    def data_start(self) -> int:
        return 8 + self.header_bytes


def read_safetensors_header(path: str | Path) -> SafetensorsHeader:
    """Read and check the header. The tensors themselves are not read: they fill the rest of the file exactly.

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
            # The length comes from the file, so it may be anything up to 2^64: nothing is allocated before these tests.
            header_bytes = int.from_bytes(file.read(8), "little")
            if header_bytes > file_bytes - 8:
                raise _unsound(
                    path,
                    f"it announces a header of {header_bytes} bytes but holds {file_bytes}: cut off, or not safetensors",
                )
            if header_bytes > MAX_HEADER_BYTES:
                raise _unsound(
                    path, f"it announces a header of {header_bytes} bytes: {MAX_HEADER_BYTES} are plenty"
                )
            raw = file.read(header_bytes)
        # The package refuses contradictions within the header and with the file.
        open_tensors(path, framework="np")
        document = json.loads(raw)
    except OSError as error:
        raise ValueError(
            f"{visible(path)} cannot be read ({error.strerror}): check its permissions"
        ) from None
    document.pop("__metadata__", None)  # free text of the writer, such as {"format": "pt"}
    tensors = {
        name: TensorEntry(entry["dtype"], tuple(entry["shape"]), tuple(entry["data_offsets"]))
        for name, entry in sorted(document.items(), key=lambda item: item[1]["data_offsets"])
    }
    return SafetensorsHeader(tensors, header_bytes)


def checkpoint_files(folder: str | Path) -> list[Path]:
    """The safetensors files of a model folder: `model.safetensors`, or the shards of its index.

    Raises:
        FileNotFoundError: there are none, or one that the index names is missing.
        ValueError: the index is not valid.
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


def open_tensors(path: str | Path, framework: str = "pt") -> safe_open:
    """The package's reader, for the numbers of a file.

    Raises:
        ValueError: the package refuses the file.
    """
    try:
        return safe_open(path, framework=framework)
    except SafetensorError as error:
        raise _unsound(path, visible(error, 200)) from None


def _unsound(path: str | Path, fault: str) -> ValueError:
    return ValueError(f"{visible(path)} is not a sound safetensors file: {fault}")
