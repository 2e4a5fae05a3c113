"""The contents of a model, in one form for both formats: the "box".

A safetensors file holds only tensors, so config.json and tokenizer.json beside it count as part of the box. A GGUF
file is the whole box.
"""

import re
from collections import Counter
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from labkit.foreign import visible
from phase1_tokens_embeddings.other_tokenizers import read_tokenizer
from phase1_tokens_embeddings.weights.gguf_file import read_gguf_header
from phase1_tokens_embeddings.weights.gguf_model import config_from_gguf
from phase1_tokens_embeddings.weights.model_shapes import ModelShape, Part, read_shape, shape_from_config
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
    """The contents of a model, in either format.

    Attributes:
        shape: from its settings.
        vocabulary: number of tokens.
        files: (name, bytes) of each file that belongs to the model.
        parameters: part of the model -> count of numbers.
        sizes: section -> bytes; the sum is the size of all files.
        dtypes: type -> number of tensors.
        largest: the largest tensors as (name, shape, dtype, bytes).
    """

    shape: ModelShape
    vocabulary: int
    files: list[tuple[str, int]]
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
        s = self.shape
        numbers = {
            "vocabulary": self.vocabulary, "layers": s.num_layers, "width (d_model)": s.d_model, "heads": s.num_heads,
            "KV heads": s.num_kv_heads, "MLP width": s.d_ff, "context": s.max_context,
            "tensors": sum(self.dtypes.values()), "parameters": sum(self.parameters.values()),
        }  # fmt: skip
        return {
            "files": ", ".join(visible(name) for name, _ in self.files),
            "architecture": s.family,
            **{name: f"{n:,}" for name, n in numbers.items()},
            "types": ", ".join(f"{n} x {dtype}" for dtype, n in self.dtypes.most_common()),
            "bytes in all": f"{self.total_bytes:,}",
        }


def open_safetensors(files: list[Path]) -> Box:
    """The box of a model in one or several safetensors files, with the files beside them."""
    config, tokenizer = (files[0].with_name(name) for name in ("config.json", "tokenizer.json"))
    shape, all_files = read_shape(config, ""), [*files, config, tokenizer]
    box = Box(shape, read_tokenizer(tokenizer).vocab_size, [(f.name, f.stat().st_size) for f in all_files])
    box.sizes += Counter(header=config.stat().st_size, vocabulary=tokenizer.stat().st_size)
    for file in files:
        header = read_safetensors_header(file)
        box.sizes["header"] += header.data_start
        for name, tensor in header.tensors.items():
            box.add_tensor(name, tensor.shape, tensor.dtype, tensor.nbytes)
    return box


def open_gguf(file: Path) -> Box:
    """The box of a GGUF file."""
    header = read_gguf_header(file)
    try:
        shape = shape_from_config(config_from_gguf(header), "")
    except ValueError as error:
        raise ValueError(f"{visible(file)}: {error}") from None
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list):
        raise ValueError(
            f"{visible(file)}: it has no vocabulary (tokenizer.ggml.tokens), so it is no complete model"
        )
    box = Box(shape, len(tokens), [(file.name, header.file_bytes)])
    box.sizes["vocabulary"] = sum(n for k, n in header.metadata_bytes.items() if k.startswith("tokenizer."))
    for name, tensor in header.tensors.items():
        box.add_tensor(name, tensor.dims[::-1], tensor.type, tensor.nbytes)
    box.sizes["header"] = header.file_bytes - sum(box.sizes.values())  # table of contents, keys, padding
    return box
