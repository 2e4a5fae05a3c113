"""Read the header of a GGUF file by hand: architecture, hyperparameters, vocabulary, tensors.

GGUF is the format of llama.cpp. One file holds everything that a program needs to run a model:

    "GGUF"  version 3  number of tensors  number of keys          24 bytes
    keys      "gpt2.block_count" -> 6, "tokenizer.ggml.tokens" -> ["!", ...]    architecture, vocabulary, ...
    tensors   "blk.0.attn_qkv.weight", sizes [256, 768], type F16, offset       a table of contents
    padding   up to a multiple of the alignment (32), so that the data can be mapped into memory as it is
    data      the numbers

Every string and every list comes with its own length, and a damaged or hostile file may hold any number there.
The reader checks each one against the bytes that are left in the file before it reads or allocates anything.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and `gguf.cpp` of llama.cpp.
"""

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np

from labkit.foreign import quoted, visible

MAGIC = b"GGUF"
VERSIONS = (2, 3)  # 1 had shorter counts and is gone
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
MAX_TENSOR_NAME, MAX_KEY = 64, 65535  # bytes, from the format's description


class BlockType(NamedTuple):
    """How a tensor type packs numbers: `size` of them share `nbytes` bytes."""

    name: str
    size: int
    nbytes: int


# Quantized numbers come in blocks that share a scale, so a size in bytes exists per block only.
GGML_TYPES = {int(kind): BlockType(kind.name, *sizes) for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
"""Number of the type in the file -> its name and block."""

# Kinds of metadata values: number in the file -> struct letter. 8 is a string, 9 a list.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


class GGUFTensor(NamedTuple):
    """One tensor. `dims`: innermost first, the reverse of torch. `offset`: from the data's start."""

    type: str
    dims: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True)
class GGUFHeader:
    """A checked header.

    Attributes:
        version: 2 or 3.
        metadata: key -> value: number, bool, text, list of texts, or numpy array.
        metadata_bytes: key -> bytes that key and value take in the file.
        tensors: name -> GGUFTensor, in the order of the data.
        alignment: each tensor begins at a multiple of this.
        data_start: where the data begins, in bytes from the file's start.
        file_bytes: size of the whole file.
    """

    version: int
    metadata: dict[str, Any]
    metadata_bytes: dict[str, int]
    tensors: dict[str, GGUFTensor]
    alignment: int
    data_start: int
    file_bytes: int


def read_gguf_header(path: str | Path) -> GGUFHeader:
    """Read and check everything but the numbers.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not a GGUF file, cut off, or a header that contradicts itself or the file.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file at {visible(path)}: give the path of a .gguf file")
    try:
        with path.open("rb") as file:
            if file.read(4) != MAGIC:
                raise ValueError("it does not begin with the letters GGUF")
            # Mapped, not read: the system fetches only the pages that are looked at.
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _read(_Cursor(data))
    except OSError as error:
        raise ValueError(
            f"{visible(path)} cannot be read ({error.strerror}): check its permissions"
        ) from None
    except ValueError as error:
        raise ValueError(f"{visible(path)} is not a sound GGUF file: {error}") from None


class _Cursor:
    """A position in the file that only moves forward, and never past the end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at = data, 4

    def need(self, nbytes: int, what: str) -> None:
        if nbytes > (left := len(self.data) - self.at):
            raise ValueError(f"{what} needs {nbytes} bytes at byte {self.at}, and {left} are left")

    def bytes(self, nbytes: int, what: str) -> bytes:
        self.need(nbytes, what)
        self.at += nbytes
        return self.data[self.at - nbytes : self.at]

    def number(self, letter: str, what: str) -> Any:
        """One number of the kind that `struct` calls by this letter."""
        return struct.unpack("<" + letter, self.bytes(struct.calcsize("<" + letter), what))[0]

    def text(self, what: str, limit: int | None = None) -> str:
        length = self.number("Q", f"the length of {what}")
        if limit is not None and length > limit:
            raise ValueError(f"{what} is {length} bytes long, {limit} at most are allowed")
        raw = self.bytes(length, what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"{what} is not UTF-8 text") from None


def _read(cursor: _Cursor) -> GGUFHeader:
    version = cursor.number("I", "the version")
    if version not in VERSIONS:
        hint = ", a big-endian file" if version.to_bytes(4, "little")[::-1][0] in VERSIONS else ""
        raise ValueError(f"its version is {version}{hint}; this reader knows little-endian versions 2 and 3")
    num_tensors = cursor.number("Q", "the number of tensors")
    num_keys = cursor.number("Q", "the number of keys")
    # The smallest key takes 13 bytes, the smallest tensor 24: a table that claims more than fit is refused.
    cursor.need(13 * num_keys + 24 * num_tensors, f"a table of {num_keys} keys and {num_tensors} tensors")

    metadata: dict[str, Any] = {}
    metadata_bytes: dict[str, int] = {}
    for _ in range(num_keys):
        begin = cursor.at
        key = cursor.text("a key", MAX_KEY)
        if key in metadata:
            raise ValueError(f"the key {quoted(key)} occurs twice")
        kind = cursor.number("I", f"the kind of key {quoted(key)}")
        metadata[key] = _read_value(cursor, kind, f"key {quoted(key)}")
        metadata_bytes[key] = cursor.at - begin

    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"general.alignment is {quoted(alignment)}: a power of two is needed")

    tensors: dict[str, GGUFTensor] = {}
    for _ in range(num_tensors):
        name = cursor.text("a tensor's name", MAX_TENSOR_NAME)
        if name in tensors:
            raise ValueError(f"the tensor {quoted(name)} occurs twice")
        tensors[name] = _read_tensor(cursor, f"tensor {quoted(name)}")
    tensors = dict(sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].nbytes)))
    # Without tensors (a vocabulary alone) there is no data to begin anywhere, and some programs leave the padding out.
    data_start = pad(cursor.at, alignment)
    if not tensors:
        data_start = min(data_start, len(cursor.data))
    _check_layout(tensors, alignment, len(cursor.data) - data_start)
    return GGUFHeader(version, metadata, metadata_bytes, tensors, alignment, data_start, len(cursor.data))


def _read_value(cursor: _Cursor, kind: int, what: str) -> Any:
    if kind in SCALARS:
        return cursor.number(SCALARS[kind], what)
    if kind == STRING:
        return cursor.text(what)
    if kind != ARRAY:
        raise ValueError(f"{what} has the unknown kind {kind}")

    kind, count = cursor.number("I", what), cursor.number("Q", what)
    if kind == STRING:
        cursor.need(8 * count, f"{what}, a list of {count} texts,")  # an empty text takes 8 bytes: its length
        return [cursor.text(what) for _ in range(count)]
    if kind in SCALARS:
        dtype = np.dtype(SCALARS[kind]).newbyteorder("<")
        cursor.need(count * dtype.itemsize, f"{what}, a list of {count} numbers,")
        return np.frombuffer(cursor.bytes(count * dtype.itemsize, what), dtype)
    # Lists of lists are among them, as with llama.cpp: a short file could nest them thousands of levels deep.
    raise ValueError(f"{what} is a list of the unknown kind {kind}")


def _read_tensor(cursor: _Cursor, what: str) -> GGUFTensor:
    num_dims = cursor.number("I", what)
    if num_dims > MAX_DIMENSIONS:
        raise ValueError(f"{what} has {num_dims} dimensions, {MAX_DIMENSIONS} at most are allowed")
    dims = tuple(cursor.number("Q", what) for _ in range(num_dims))
    type_id, offset = cursor.number("I", what), cursor.number("Q", what)
    if type_id not in GGML_TYPES:
        raise ValueError(f"{what} has the unknown type {type_id}")
    block = GGML_TYPES[type_id]
    count = prod(dims)
    if count >= 2**63 or any(size >= 2**63 for size in dims):
        raise ValueError(f"{what} has the sizes {list(dims)}: negative, or larger than any file")
    row = dims[0] if dims else 1
    if row % block.size:
        raise ValueError(
            f"{what} has rows of {row}, which do not divide into {block.name} blocks of {block.size}"
        )
    return GGUFTensor(block.name, dims, offset, count // block.size * block.nbytes)


def pad(nbytes: int, alignment: int) -> int:
    """Round up to a multiple of the alignment."""
    return -(-nbytes // alignment) * alignment


def _check_layout(tensors: dict[str, GGUFTensor], alignment: int, data_bytes: int) -> None:
    """Tensors, sorted by offset, follow each other with padding between them and nothing else."""
    end = 0
    for name, tensor in tensors.items():
        if tensor.offset != pad(end, alignment):
            fault = "inside" if tensor.offset < end else "not at the end of"
            raise ValueError(f"tensor {quoted(name)} begins at {tensor.offset}, {fault} the one before it")
        end = tensor.offset + tensor.nbytes
    if end > data_bytes:
        raise ValueError(f"its tensors take {end} bytes, the file holds {max(data_bytes, 0)} bytes of data")
    if data_bytes > pad(end, alignment):
        raise ValueError(f"{data_bytes - end} bytes after the last tensor belong to no tensor")
