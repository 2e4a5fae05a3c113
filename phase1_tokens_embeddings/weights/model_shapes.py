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
from phase1_tokens_embeddings.weights.config_settings import MAX_CONFIG_BYTES, flag, windows_from_config
from phase1_tokens_embeddings.weights.families import Family, find_family

Part = Literal["embedding", "positions", "attention", "MLP", "norms", "head", "other"]
# A config.json is a page of text that can ask for anything. No model comes near these limits.
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
        family: its `model_type`, a row of `FAMILIES`.
        num_kv_heads: heads that own keys and values. Fewer than `num_heads` is grouped-query attention.
        d_ff: width inside the MLP; of a mixture, inside each expert.
        max_context: longest context in tokens that the model was made for.
        tied: the output head is the embedding matrix, stored once.
        qkv_bias: attention has biases on queries, keys and values (Qwen2; GPT-2 has all its biases anyway).
        source: the repository of the config.json.
        windows: for each layer, how many tokens a token sees there, see `window`; (): all see everything.
        num_experts, experts_per_token: of a mixture, in each layer; 0: none.
    """

    name: str
    family: str
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
    windows: tuple[int | None, ...] = ()
    num_experts: int = 0
    experts_per_token: int = 0

    @property
    def choices(self) -> Family:
        """The choices that all models of this family share."""
        return find_family(self.family)

    def window(self, layer: int) -> int | None:
        """How many tokens a token of this layer sees: itself and those just before. None: all before it.

        With a window of w, position p sees p - w + 1 to p.
        """
        return self.windows[layer] if self.windows else None

    def tensors(self) -> Iterator[TensorSpec]:
        """Every tensor of the model, once."""
        c, d, gpt2 = self.choices, self.d_model, self.family == "gpt2"
        q_width, kv_width = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim

        def norm(name: str, i: int | None = None, width: int = d) -> Iterator[TensorSpec]:
            yield TensorSpec(f"{name}.weight", (width,), "norms", i)
            if c.norm == "layer":  # LayerNorm shifts and scales, RMSNorm only scales
                yield TensorSpec(f"{name}.bias", (width,), "norms", i)

        def linear(name: str, n_out: int, n_in: int, part: Part, i: int, bias: bool) -> Iterator[TensorSpec]:
            yield TensorSpec(f"{name}.weight", (n_out, n_in), part, i)
            if bias:
                yield TensorSpec(f"{name}.bias", (n_out,), part, i)

        yield TensorSpec("token_embd.weight", (self.vocab_size, d), "embedding")
        if c.positions == "learned":
            yield TensorSpec("position_embd.weight", (self.max_context, d), "positions")
        for i in range(self.num_layers):
            blk = f"blk.{i}"
            if c.normed_before:
                yield from norm(f"{blk}.attn_norm", i)
            if gpt2:
                yield from linear(f"{blk}.attn_qkv", q_width + 2 * kv_width, d, "attention", i, True)
            else:
                yield from linear(f"{blk}.attn_q", q_width, d, "attention", i, self.qkv_bias)
                yield from linear(f"{blk}.attn_k", kv_width, d, "attention", i, self.qkv_bias)
                yield from linear(f"{blk}.attn_v", kv_width, d, "attention", i, self.qkv_bias)
            if c.qk_norm:
                for name, width in (("q", q_width), ("k", kv_width)):
                    whole = c.qk_norm == "row"
                    yield from norm(f"{blk}.attn_{name}_norm", i, width if whole else self.head_dim)
            yield from linear(f"{blk}.attn_output", d, q_width, "attention", i, gpt2)
            if c.normed_after:
                yield from norm(f"{blk}.post_attention_norm", i)
            if c.normed_before:
                yield from norm(f"{blk}.ffn_norm", i)
            if c.mixture:
                yield TensorSpec(f"{blk}.ffn_gate_inp.weight", (self.num_experts, d), "MLP", i)
                for name, *matrix in (("up", self.d_ff, d), ("gate", self.d_ff, d), ("down", d, self.d_ff)):
                    shape = (self.num_experts, *matrix)
                    yield TensorSpec(f"{blk}.ffn_{name}_exps.weight", shape, "MLP", i)
            else:
                yield from linear(f"{blk}.ffn_up", self.d_ff, d, "MLP", i, gpt2)
                if c.gated:
                    yield from linear(f"{blk}.ffn_gate", self.d_ff, d, "MLP", i, False)
                yield from linear(f"{blk}.ffn_down", d, self.d_ff, "MLP", i, gpt2)
            if c.normed_after:
                yield from norm(f"{blk}.post_ffw_norm", i)
        yield from norm("output_norm")
        if not self.tied:
            yield TensorSpec("output.weight", (self.vocab_size, d), "head")

    @property
    def num_parameters(self) -> int:
        return sum(t.size for t in self.tensors())

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses: of a mixture's experts, the chosen ones."""
        idle = self.num_experts - self.experts_per_token
        return self.num_parameters - 3 * idle * self.num_layers * self.d_model * self.d_ff

    def parameters_by_part(self) -> dict[Part, int]:
        sizes = {part: sum(t.size for t in self.tensors() if t.part == part) for part in PARTS}
        return {part: size for part, size in sizes.items() if size}


def _gpt2(name: str, d_model: int, num_layers: int, num_heads: int) -> ModelShape:
    return ModelShape(
        name, "gpt2", 50257, d_model, num_layers, num_heads, num_heads, d_model // num_heads, 4 * d_model,
        1024, tied=True, source=f"openai-community/{name}",
    )  # fmt: skip


def _shape(
    name: str, source: str, *numbers: int, tied: bool = False, family: str = "llama", **more: Any
) -> ModelShape:
    qkv_bias = find_family(family).qkv_bias
    return ModelShape(name, family, *numbers, tied=tied, qkv_bias=qkv_bias, source=source, **more)


def _windows(window: int, every: int, num_layers: int) -> tuple[int | None, ...]:
    """Every `every`-th layer sees all tokens."""
    return tuple(window if (layer + 1) % every else None for layer in range(num_layers))


_PUBLISHED = [
    # name, width, layers, heads
    _gpt2("gpt2", 768, 12, 12),
    _gpt2("gpt2-medium", 1024, 24, 16),
    _gpt2("gpt2-large", 1280, 36, 20),
    _gpt2("gpt2-xl", 1600, 48, 25),
    # name, source; vocabulary, width, layers, heads, KV heads, head width, MLP width, longest context
    _shape("smollm2-135m", "HuggingFaceTB/SmolLM2-135M",
           49152, 576, 30, 9, 3, 64, 1536, 8192, tied=True),
    _shape("qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B",
           151936, 896, 24, 14, 2, 64, 4864, 32768, tied=True, family="qwen2"),
    _shape("qwen3-0.6b", "Qwen/Qwen3-0.6B",
           151936, 1024, 28, 16, 8, 128, 3072, 40960, tied=True, family="qwen3"),
    _shape("gemma-3-1b", "google/gemma-3-1b-pt",
           262144, 1152, 26, 4, 1, 256, 6912, 32768, tied=True, family="gemma3_text", windows=_windows(512, 6, 26)),
    _shape("tinyllama-1.1b", "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
           32000, 2048, 22, 32, 4, 64, 5632, 2048),
    _shape("llama-3.2-1b", "meta-llama/Llama-3.2-1B",
           128256, 2048, 16, 32, 8, 64, 8192, 131072, tied=True),
    _shape("olmo-2-1b", "allenai/OLMo-2-0425-1B",
           100352, 2048, 16, 16, 16, 128, 8192, 4096, family="olmo2"),
    _shape("gemma-2-2b", "google/gemma-2-2b",
           256000, 2304, 26, 8, 4, 256, 9216, 8192, tied=True, family="gemma2", windows=_windows(4096, 2, 26)),
    _shape("smollm3-3b", "HuggingFaceTB/SmolLM3-3B",
           128256, 2048, 36, 16, 4, 128, 11008, 65536, tied=True, family="smollm3"),
    _shape("llama-3.2-3b", "meta-llama/Llama-3.2-3B",
           128256, 3072, 28, 24, 8, 128, 8192, 131072, tied=True),
    _shape("phi-3-mini", "microsoft/Phi-3-mini-4k-instruct",
           32064, 3072, 32, 32, 32, 96, 8192, 4096, family="phi3", windows=(2047,) * 32),
    _shape("llama-2-7b", "meta-llama/Llama-2-7b-hf",
           32000, 4096, 32, 32, 32, 128, 11008, 4096),
    _shape("mistral-7b-v0.1", "mistralai/Mistral-7B-v0.1",
           32000, 4096, 32, 32, 8, 128, 14336, 32768, family="mistral", windows=(4096,) * 32),
    _shape("mistral-7b", "mistralai/Mistral-7B-v0.3",
           32768, 4096, 32, 32, 8, 128, 14336, 32768, family="mistral"),
    _shape("qwen2.5-7b", "Qwen/Qwen2.5-7B",
           152064, 3584, 28, 28, 4, 128, 18944, 131072, family="qwen2"),
    _shape("olmoe-1b-7b", "allenai/OLMoE-1B-7B-0924",
           50304, 2048, 16, 16, 16, 128, 1024, 4096, family="olmoe", num_experts=64, experts_per_token=8),
    _shape("llama-3-8b", "meta-llama/Meta-Llama-3-8B",
           128256, 4096, 32, 32, 8, 128, 14336, 8192),
    _shape("qwen3-8b", "Qwen/Qwen3-8B",
           151936, 4096, 36, 32, 8, 128, 12288, 40960, family="qwen3"),
    _shape("qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B",
           151936, 2048, 48, 32, 4, 128, 768, 40960, family="qwen3_moe", num_experts=128, experts_per_token=8),
    _shape("mixtral-8x7b", "mistralai/Mixtral-8x7B-v0.1",
           32000, 4096, 32, 32, 8, 128, 14336, 32768, family="mixtral", num_experts=8, experts_per_token=2),
    _shape("llama-3-70b", "meta-llama/Meta-Llama-3-70B",
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
        ValueError: not JSON, a family that is not known, or sizes that make no sense.
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
    family = find_family(kind)
    config = family.settings | config

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
    d, heads = size("hidden_size"), size("num_attention_heads")
    kv_heads, layers = size("num_key_value_heads", heads), size("num_hidden_layers", at_most=MAX_LAYERS)
    if heads % kv_heads:
        raise ValueError(f"{heads} heads cannot share {kv_heads} KV heads evenly")
    experts, chosen, d_ff = 0, 0, "intermediate_size"
    if family.mixture:
        experts = size("num_experts" if config.get("num_local_experts") is None else "num_local_experts")
        chosen = size("num_experts_per_tok", at_most=experts)
        d_ff = "moe_intermediate_size" if "moe_intermediate_size" in config else d_ff
    return ModelShape(
        name, kind, size("vocab_size", at_most=MAX_ROWS), d, layers, heads, kv_heads,
        size("head_dim", d // heads, at_most=MAX_WIDTH // heads), size(d_ff),
        size("max_position_embeddings", at_most=MAX_ROWS), flag(config, "tie_word_embeddings", False),
        family.qkv_bias, windows=windows_from_config(config, layers), num_experts=experts, experts_per_token=chosen,
    )  # fmt: skip
