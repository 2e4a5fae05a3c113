"""Write a small GGUF file by hand, and turn a GPT-2 folder into one.

`read_gguf_header` in `gguf_file.py` shows the format from the reader's side; here it is from the writer's.
Matrices go in as F16. What is small and delicate (norms, biases, positions) stays F32.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; the names of keys and tensors follow
`convert_hf_to_gguf.py` of llama.cpp.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from phase1_tokens_embeddings.tokens.tokenizer import BPETokenizer
from phase1_tokens_embeddings.tokens.tokenizer_files import printable
from phase1_tokens_embeddings.weights.gguf_file import DEFAULT_ALIGNMENT, MAGIC, pad
from phase1_tokens_embeddings.weights.model_shapes import read_shape
from phase1_tokens_embeddings.weights.safetensors_file import (
    SafetensorsHeader,
    checkpoint_files,
    read_safetensors_header,
)

Value = bool | int | float | str | Sequence[int] | Sequence[str]
UINT32, INT32, FLOAT32, BOOL, TEXT, LIST = 4, 5, 6, 7, 8, 9  # kinds of metadata values
TYPE_IDS = {np.dtype("float32"): 0, np.dtype("float16"): 1}
NORMAL_TOKEN, CONTROL_TOKEN = 1, 3


def write_gguf(path: str | Path, metadata: Mapping[str, Value], tensors: Mapping[str, np.ndarray]) -> None:
    """Write a GGUF file of version 3.

    Args:
        metadata: keys and values. A whole number becomes a UINT32, a fraction a FLOAT32.
        tensors: float32 or float16 arrays, with their shapes as in torch.

    Raises:
        ValueError: an array of another type.
    """
    with Path(path).open("wb") as file:
        # 1. What will come.
        file.write(MAGIC + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
        # 2. The keys.
        for key, value in metadata.items():
            file.write(_text(key) + _value(value))
        # 3. The table of contents. Offsets count from the start of the data.
        offset = 0
        for name, array in tensors.items():
            if array.dtype not in TYPE_IDS:
                raise ValueError(f"tensor {name!r} is {array.dtype}: float32 and float16 can be written")
            dims = array.shape[::-1]  # innermost first
            file.write(_text(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims))
            file.write(struct.pack("<IQ", TYPE_IDS[array.dtype], offset))
            offset += pad(array.nbytes, DEFAULT_ALIGNMENT)
        # 4. The data, each tensor at a multiple of the alignment.
        _pad_file(file)
        for array in tensors.values():
            file.write(
                np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
            )
            _pad_file(file)


def _pad_file(file: BinaryIO) -> None:
    file.write(b"\0" * (pad(file.tell(), DEFAULT_ALIGNMENT) - file.tell()))


def _text(text: str) -> bytes:
    raw = text.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Value) -> bytes:
    if isinstance(value, bool):  # before int: True is an int as well
        return struct.pack("<I?", BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", UINT32, value)
    if isinstance(value, float):
        return struct.pack("<If", FLOAT32, value)
    if isinstance(value, str):
        return struct.pack("<I", TEXT) + _text(value)
    if value and isinstance(value[0], str):
        return struct.pack("<IIQ", LIST, TEXT, len(value)) + b"".join(_text(item) for item in value)
    return struct.pack(f"<IIQ{len(value)}i", LIST, INT32, len(value), *value)


def read_tensor(path: str | Path, header: SafetensorsHeader, name: str) -> np.ndarray:
    """One tensor of a safetensors file as float32, by hand.

    Raises:
        ValueError: it holds no F32, F16 or BF16 numbers.
    """
    entry = header.tensors[name]
    types = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
    if entry.dtype not in types:
        raise ValueError(f"tensor {name!r} holds {entry.dtype}: F32, F16 and BF16 can be converted")
    with Path(path).open("rb") as file:
        file.seek(header.data_start + entry.offsets[0])
        numbers = np.frombuffer(file.read(entry.nbytes), types[entry.dtype]).reshape(entry.shape)
    if entry.dtype == "BF16":  # BF16 is the upper half of an FP32: put 16 zeros behind it
        return (numbers.astype("u4") << 16).view("f4")
    return numbers.astype("f4")


# ------------------------------------------------------------------ GPT-2 -> GGUF

_NAMES = {
    "wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm", "lm_head": "output",
    "ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
}  # fmt: skip


def gguf_name(name: str) -> str | None:
    """
    >>> gguf_name("transformer.h.0.attn.c_attn.weight")
    'blk.0.attn_qkv.weight'

    None for what is no weight: old checkpoints also store the attention mask.
    """
    match = re.fullmatch(r"(?:transformer\.)?(?:h\.(\d+)\.)?(.+)\.(weight|bias)", name)
    if not match or match[2] not in _NAMES:
        return None
    layer = f"blk.{match[1]}." if match[1] else ""
    return f"{layer}{_NAMES[match[2]]}.{match[3]}"


def gpt2_to_gguf(folder: str | Path, path: str | Path) -> None:
    """Put a GPT-2 model folder (config, tokenizer, weights) into one GGUF file.

    Raises:
        FileNotFoundError: the folder lacks a file.
        ValueError: not a GPT-2, or a broken file.
    """
    folder = Path(folder)
    shape = read_shape(folder / "config.json", folder.name)
    if shape.family != "gpt2":
        raise ValueError(f"{folder} holds no GPT-2: this small writer knows no other architecture")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tokenizer = BPETokenizer.from_file(folder / "tokenizer.json")

    special = set(tokenizer.special_tokens.values())
    spelled = [b.decode() if i in special else printable(b) for i, b in enumerate(tokenizer.token_bytes)]
    kinds = [CONTROL_TOKEN if i in special else NORMAL_TOKEN for i in range(len(spelled))]
    metadata: dict[str, Value] = {
        "general.architecture": "gpt2",
        "general.name": folder.name,
        "general.file_type": 1,  # mostly F16
        "gpt2.block_count": shape.num_layers,
        "gpt2.context_length": shape.max_context,
        "gpt2.embedding_length": shape.d_model,
        "gpt2.feed_forward_length": shape.d_ff,
        "gpt2.attention.head_count": shape.num_heads,
        "gpt2.attention.layer_norm_epsilon": float(config.get("layer_norm_epsilon", 1e-5)),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": spelled,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": [f"{spelled[a]} {spelled[b]}" for a, b in tokenizer.merges],
    }
    if tokenizer.eos_token_id is not None:
        metadata["tokenizer.ggml.bos_token_id"] = tokenizer.eos_token_id
        metadata["tokenizer.ggml.eos_token_id"] = tokenizer.eos_token_id

    tensors: dict[str, np.ndarray] = {}
    for file in checkpoint_files(folder):
        header = read_safetensors_header(file)
        for name in header.tensors:
            if (new_name := gguf_name(name)) is None:
                continue
            array = read_tensor(file, header, name)
            if array.ndim == 2 and new_name != "position_embd.weight":
                # GPT-2's checkpoint keeps matrices as [in, out], GGUF wants [out, in].
                array = (array.T if new_name.startswith("blk.") else array).astype("f2")
            tensors[new_name] = array
    write_gguf(path, metadata, tensors)
