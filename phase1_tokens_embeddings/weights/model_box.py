"""The contents of a model file, in one form for both formats: the "box".

A safetensors file holds only tensors, so config.json and tokenizer.json beside it count as part of the box. A GGUF
file is the whole box.
"""

import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from labkit.foreign import read_json, visible
from phase1_tokens_embeddings.tokens.tokenizer import BPETokenizer
from phase1_tokens_embeddings.weights.config_settings import MAX_CONFIG_BYTES
from phase1_tokens_embeddings.weights.gguf_file import GGUFHeader, read_gguf_header
from phase1_tokens_embeddings.weights.model_shapes import MAX_ROWS, Part, shape_from_config
from phase1_tokens_embeddings.weights.safetensors_file import read_safetensors_header

_PATTERNS: list[tuple[Part, str]] = [  # tried in this order, on the names of GPT-2, Llama and GGUF
    ("other", r"\.attn\.(masked_)?bias$|rotary|rope"),  # masks and tables that old checkpoints carry along
    ("positions", r"\bwpe\b|position_embd|embed_positions"),
    ("embedding", r"\bwte\b|token_embd|embed_tokens"),
    ("head", r"lm_head|^output\."),
    ("norms", r"norm|\bln_"),
    ("attention", r"attn"),
    ("MLP", r"mlp|ffn"),
]


def part_of(name: str) -> Part:
    """Which part of the model a tensor belongs to.

    >>> part_of("transformer.h.0.attn.c_attn.weight"), part_of("blk.3.ffn_norm.weight")
    ('attention', 'norms')
    """
    return next((part for part, pattern in _PATTERNS if re.search(pattern, name)), "other")


@dataclass
class Box:
    """The contents of a model file, in either format.

    Attributes:
        files: (name, bytes) of each file that belongs to the model.
        architecture: such as "gpt2"; None where the file does not say.
        vocabulary: number of tokens; None where no vocabulary is there.
        hyperparameters: name -> value.
        parameters: part of the model -> count of numbers.
        sizes: section -> bytes; the sum is the size of all files.
        dtypes: type -> number of tensors.
        largest: the largest tensors as (name, shape, dtype, bytes).
    """

    files: list[tuple[str, int]]
    architecture: str | None = None
    vocabulary: int | None = None
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    parameters: Counter[str] = field(default_factory=Counter)
    sizes: Counter[str] = field(default_factory=Counter)
    dtypes: Counter[str] = field(default_factory=Counter)
    largest: list[tuple[str, tuple[int, ...], str, int]] = field(default_factory=list)

    def add_tensor(self, name: str, shape: tuple[int, ...], dtype: str, nbytes: int) -> None:
        part = part_of(name)
        self.parameters[part] += prod(shape)
        self.sizes[part] += nbytes
        self.dtypes[dtype] += 1
        self.largest = sorted([*self.largest, (name, shape, dtype, nbytes)], key=lambda t: -t[3])[:5]

    @property
    def total_bytes(self) -> int:
        return sum(self.sizes.values())

    def facts(self) -> dict[str, str]:
        """The main facts, for a table."""
        names = ("layers", "width (d_model)", "heads", "KV heads", "MLP width", "context")
        numbers = {"vocabulary": self.vocabulary, **{n: self.hyperparameters.get(n) for n in names}}
        numbers |= {"tensors": sum(self.dtypes.values()), "parameters": sum(self.parameters.values())}
        return {
            "files": ", ".join(visible(name) for name, _ in self.files),
            "architecture": visible(self.architecture or "-"),
            **{name: f"{n:,}" if isinstance(n, int) else "-" for name, n in numbers.items()},
            "types": ", ".join(f"{n} x {dtype}" for dtype, n in self.dtypes.most_common()),
            "bytes in all": f"{self.total_bytes:,}",
        }


def open_safetensors(files: list[Path]) -> Box:
    """The box of a model in one or several safetensors files, with the files beside them."""
    box = Box([(f.name, f.stat().st_size) for f in files])
    for file in files:
        header = read_safetensors_header(file)
        box.sizes["header"] += header.data_start
        for name, tensor in header.tensors.items():
            box.add_tensor(name, tensor.shape, tensor.dtype, tensor.nbytes)
    beside = (("config.json", "header", _add_config), ("tokenizer.json", "vocabulary", _add_tokenizer))
    for name, section, add in beside:
        if (file := files[0].with_name(name)).is_file():
            box.files.append((name, file.stat().st_size))
            box.sizes[section] += file.stat().st_size
            add(box, file)
    return box


def _add_config(box: Box, file: Path) -> None:
    try:
        config = read_json(file, MAX_CONFIG_BYTES)
        if isinstance(config, dict):
            kind, vocabulary = config.get("model_type"), config.get("vocab_size")
            box.architecture = kind if isinstance(kind, str) else None
            box.vocabulary = vocabulary if isinstance(vocabulary, int) and vocabulary <= MAX_ROWS else None
        shape = shape_from_config(config, "")
    except ValueError:
        return  # a model of another kind: its tensors are still worth a look
    box.hyperparameters = {
        "layers": shape.num_layers, "width (d_model)": shape.d_model, "heads": shape.num_heads,
        "KV heads": shape.num_kv_heads, "MLP width": shape.d_ff, "context": shape.max_context,
    }  # fmt: skip


def _add_tokenizer(box: Box, file: Path) -> None:
    with suppress(ValueError):  # another kind of tokenizer: the size in the config stands
        box.vocabulary = BPETokenizer.from_file(file).vocab_size


def open_gguf(file: Path) -> Box:
    """The box of a GGUF file."""
    header = read_gguf_header(file)
    box = Box([(file.name, header.file_bytes)])
    arch = header.metadata.get("general.architecture")
    box.architecture = arch if isinstance(arch, str) else None
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    box.vocabulary = len(tokens) if isinstance(tokens, list) else None
    keys = {"layers": "block_count", "width (d_model)": "embedding_length", "heads": "attention.head_count",
            "KV heads": "attention.head_count_kv", "MLP width": "feed_forward_length",
            "context": "context_length"}  # fmt: skip
    for title, key in keys.items():
        value = header.metadata.get(f"{arch}.{key}")
        if isinstance(value, int):
            box.hyperparameters[title] = value
    box.sizes["vocabulary"] = sum(n for k, n in header.metadata_bytes.items() if k.startswith("tokenizer."))
    for name, tensor in header.tensors.items():
        box.add_tensor(name, tensor.dims[::-1], tensor.type, tensor.nbytes)
    box.sizes["header"] = header.file_bytes - sum(box.sizes.values())  # table of contents, keys, padding
    return box


def missing_keys(header: GGUFHeader) -> list[str]:
    """Which of architecture, hyperparameters and vocabulary a GGUF file lacks: it may hold a part of a model."""
    arch = header.metadata.get("general.architecture")
    arch = arch if isinstance(arch, str) else "ARCHITECTURE"
    needed = ["general.architecture", f"{arch}.block_count", "tokenizer.ggml.tokens"]
    return [key for key in needed if key not in header.metadata]
