"""The shapes of well-known models: data, and counts that follow from it.

A model's `config.json` holds about ten numbers. They fix every tensor of the model, and so its parameter
count, its size in memory and the size of its KV cache. Nothing here is measured and no count is copied: the
counts are computed from the shapes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal, NamedTuple

from labkit.errors import LabError
from labkit.foreign import quoted, read_json, visible
from labkit.models import embedded_models, find_model

Part = Literal["embedding", "positions", "attention", "MLP", "norms", "head", "other"]
# A config.json is a page of text that can ask for anything. No model comes near these; what is above fills the memory.
MAX_CONFIG_BYTES = 1_000_000
MAX_LAYERS, MAX_WIDTH, MAX_ROWS = 1_000, 2**20, 2**24  # rows: of the tables of tokens and positions

PARTS: tuple[Part, ...] = ("embedding", "positions", "attention", "MLP", "norms", "head", "other")


class TensorSpec(NamedTuple):
    """A tensor that a model of some shape must have. `shape` is [out, in] for a matrix; names as in GGUF."""

    name: str
    shape: tuple[int, ...]
    part: Part
    layer: int | None = None

    @property
    def size(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class ModelShape:
    """The numbers of a config.json that decide about memory.

    Attributes:
        family: "gpt2" (learned positions, biases, MLP of two matrices) or "llama" (rotary positions,
            RMSNorm, MLP of three matrices; also Mistral and Qwen2).
        num_kv_heads: heads that own keys and values. Fewer than `num_heads` is grouped-query attention.
        d_ff: width inside the MLP.
        max_context: longest context in tokens that the model was made for.
        tied: the output head is the embedding matrix, stored once.
        qkv_bias: attention has biases on queries, keys and values (Qwen2; GPT-2 has all its biases anyway).
        source: whose config.json.
    """

    name: str
    family: Literal["gpt2", "llama"]
    vocab_size: int
    d_model: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    d_ff: int
    max_context: int
    tied: bool
    qkv_bias: bool = False
    source: str = ""

    def tensors(self) -> Iterator[TensorSpec]:
        """Every tensor of the model, once."""
        d, gpt2 = self.d_model, self.family == "gpt2"
        q_width, kv_width = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim

        def norm(name: str, layer: int | None = None) -> Iterator[TensorSpec]:
            yield TensorSpec(f"{name}.weight", (d,), "norms", layer)
            if gpt2:  # LayerNorm shifts and scales, RMSNorm only scales
                yield TensorSpec(f"{name}.bias", (d,), "norms", layer)

        def linear(name: str, n_out: int, n_in: int, part: Part, i: int, bias: bool) -> Iterator[TensorSpec]:
            yield TensorSpec(f"{name}.weight", (n_out, n_in), part, i)
            if bias:
                yield TensorSpec(f"{name}.bias", (n_out,), part, i)

        yield TensorSpec("token_embd.weight", (self.vocab_size, d), "embedding")
        if gpt2:
            yield TensorSpec("position_embd.weight", (self.max_context, d), "positions")
        for i in range(self.num_layers):
            blk = f"blk.{i}"
            yield from norm(f"{blk}.attn_norm", i)
            if gpt2:
                yield from linear(f"{blk}.attn_qkv", q_width + 2 * kv_width, d, "attention", i, True)
            else:
                yield from linear(f"{blk}.attn_q", q_width, d, "attention", i, self.qkv_bias)
                yield from linear(f"{blk}.attn_k", kv_width, d, "attention", i, self.qkv_bias)
                yield from linear(f"{blk}.attn_v", kv_width, d, "attention", i, self.qkv_bias)
            yield from linear(f"{blk}.attn_output", d, q_width, "attention", i, gpt2)
            yield from norm(f"{blk}.ffn_norm", i)
            yield from linear(f"{blk}.ffn_up", self.d_ff, d, "MLP", i, gpt2)
            if not gpt2:
                yield from linear(f"{blk}.ffn_gate", self.d_ff, d, "MLP", i, False)
            yield from linear(f"{blk}.ffn_down", d, self.d_ff, "MLP", i, gpt2)
        yield from norm("output_norm")
        if not self.tied:
            yield TensorSpec("output.weight", (self.vocab_size, d), "head")

    @property
    def num_parameters(self) -> int:
        return sum(t.size for t in self.tensors())

    def parameters_by_part(self) -> dict[Part, int]:
        sizes = {part: sum(t.size for t in self.tensors() if t.part == part) for part in PARTS}
        return {part: size for part, size in sizes.items() if size}


def _gpt2(name: str, d_model: int, num_layers: int, num_heads: int) -> ModelShape:
    return ModelShape(
        name, "gpt2", 50257, d_model, num_layers, num_heads, num_heads, d_model // num_heads, 4 * d_model,
        1024, tied=True, source=f"openai-community/{name}",
    )  # fmt: skip


def _llama(name: str, source: str, *numbers: int, tied: bool = False, qkv_bias: bool = False) -> ModelShape:
    return ModelShape(name, "llama", *numbers, tied=tied, qkv_bias=qkv_bias, source=source)


_PUBLISHED = [
    # name, width, layers, heads
    _gpt2("gpt2", 768, 12, 12),
    _gpt2("gpt2-medium", 1024, 24, 16),
    _gpt2("gpt2-large", 1280, 36, 20),
    _gpt2("gpt2-xl", 1600, 48, 25),
    # name, source; vocabulary, width, layers, heads, KV heads, head width, MLP width, longest context
    _llama("tinyllama-1.1b", "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
           32000, 2048, 22, 32, 4, 64, 5632, 2048),
    _llama("llama-3.2-1b", "meta-llama/Llama-3.2-1B",
           128256, 2048, 16, 32, 8, 64, 8192, 131072, tied=True),
    _llama("llama-3.2-3b", "meta-llama/Llama-3.2-3B",
           128256, 3072, 28, 24, 8, 128, 8192, 131072, tied=True),
    _llama("llama-2-7b", "meta-llama/Llama-2-7b-hf",
           32000, 4096, 32, 32, 32, 128, 11008, 4096),
    _llama("mistral-7b", "mistralai/Mistral-7B-v0.3",
           32768, 4096, 32, 32, 8, 128, 14336, 32768),
    _llama("qwen2.5-7b", "Qwen/Qwen2.5-7B",
           152064, 3584, 28, 28, 4, 128, 18944, 131072, qkv_bias=True),
    _llama("llama-3-8b", "meta-llama/Meta-Llama-3-8B",
           128256, 4096, 32, 32, 8, 128, 14336, 8192),
    _llama("llama-3-70b", "meta-llama/Meta-Llama-3-70B",
           128256, 8192, 80, 64, 8, 128, 28672, 8192),
]  # fmt: skip
SHAPES: dict[str, ModelShape] = {shape.name: shape for shape in _PUBLISHED}
"""Published shapes, from the config.json of each model."""


def find_shape(name: str) -> ModelShape:
    """The shape of a published model, an embedded model, or the model in a folder. Never uses the network.

    Raises:
        LabError: unknown name, or a folder without config.json.
        ValueError: the config.json is of another kind of model, or broken.
    """
    key = name.strip().lower()
    if key in SHAPES:
        return SHAPES[key]
    if name in embedded_models() or Path(name).expanduser().is_dir():
        folder = find_model(name)
        called = name if name in embedded_models() else folder.resolve().name
        return read_shape(folder / "config.json", called)
    raise LabError(f"unknown model {name!r}: a folder, {', '.join([*embedded_models(), *SHAPES])}")


def read_shape(config_file: str | Path, name: str) -> ModelShape:
    """The shape in a Hugging Face config.json.

    Raises:
        ValueError: not JSON, a family that is not GPT-2 or Llama, or sizes that make no sense.
    """
    path = Path(config_file)
    try:
        return shape_from_config(read_json(path, MAX_CONFIG_BYTES), name)
    except ValueError as error:
        raise ValueError(f"{visible(path)} cannot be used: {error}") from None


def shape_from_config(config: dict[str, Any], name: str) -> ModelShape:
    """See `read_shape`."""
    if not isinstance(config, dict):
        raise ValueError("it holds no settings")
    kind = config.get("model_type")

    def size(key: str, default: int | None = None, at_most: int = MAX_WIDTH) -> int:
        value = config.get(key)
        value = default if value is None else value
        if type(value) is not int or not 0 < value <= at_most:
            raise ValueError(f"{key} is {quoted(value)}, a whole number from 1 to {at_most:,} is needed")
        return value

    if kind == "gpt2":
        d, heads = size("n_embd"), size("n_head")
        if d % heads:
            raise ValueError(f"n_embd {d} does not divide into {heads} heads")
        return ModelShape(
            name, "gpt2", size("vocab_size", at_most=MAX_ROWS), d, size("n_layer", at_most=MAX_LAYERS), heads, heads,
            d // heads, size("n_inner", 4 * d), size("n_positions", at_most=MAX_ROWS),
            flag(config, "tie_word_embeddings", True),
        )  # fmt: skip
    if kind in ("llama", "mistral", "qwen2"):
        d, heads = size("hidden_size"), size("num_attention_heads")
        kv_heads = size("num_key_value_heads", heads)
        if heads % kv_heads:
            raise ValueError(f"{heads} heads cannot share {kv_heads} KV heads evenly")
        return ModelShape(
            name, "llama", size("vocab_size", at_most=MAX_ROWS), d, size("num_hidden_layers", at_most=MAX_LAYERS),
            heads, kv_heads, size("head_dim", d // heads, at_most=MAX_WIDTH // heads), size("intermediate_size"),
            size("max_position_embeddings", at_most=MAX_ROWS), flag(config, "tie_word_embeddings", False),
            qkv_bias=kind == "qwen2",
        )  # fmt: skip
    raise ValueError(f"its model_type is {quoted(kind)}; this course knows gpt2, llama, mistral and qwen2")


def number(config: dict[str, Any], key: str, default: float, least: float = 1e-30) -> float:
    """A setting that is a number; `default` where the file does not say."""
    value = config.get(key)
    value = default if value is None else value
    if type(value) not in (int, float) or not least <= value <= 1e15:
        raise ValueError(f"{key} is {quoted(value)}, a number from {least:g} to 1e15 is needed")
    return float(value)


def flag(config: dict[str, Any], key: str, default: bool) -> bool:
    """A setting that is true or false; null stands for false."""
    value = config.get(key, default)
    if type(value) is not bool and value is not None:
        raise ValueError(f"{key} is {quoted(value)}, true or false is needed")
    return bool(value)
