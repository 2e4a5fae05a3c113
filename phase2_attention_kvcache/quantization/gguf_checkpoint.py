"""A model from a GGUF file. It attaches as a row of `CHECKPOINT_FORMATS`. Quantized matrices stay quantized in memory.

Plain tensors (F32, F16, BF16) become ordinary weights. A matrix in blocks becomes a `QuantizedLinear`, the token table a
`QuantizedEmbedding`; a tied head shares the table's memory.
"""

from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from labkit.foreign import visible
from phase1_tokens_embeddings.weights.ggml_blocks import PLAIN, dequantize_blocks
from phase1_tokens_embeddings.weights.gguf_file import GGUFHeader, read_gguf_header
from phase1_tokens_embeddings.weights.gguf_model import (
    ROPE_FACTORS,
    config_from_gguf,
    from_interleaved,
    read_blocks,
)
from phase1_tokens_embeddings.weights.safetensors_file import TensorEntry
from phase2_attention_kvcache.model.checkpoint import check_memory, finish_loading, fit_model, parse_dtype
from phase2_attention_kvcache.model.config import ModelConfig, read_config
from phase2_attention_kvcache.model.positions import rotary_frequencies, rotary_tables
from phase2_attention_kvcache.quantization.quantized_formats import BLOCK_CODES, split_blocks
from phase2_attention_kvcache.quantization.quantized_linear import (
    QuantizedEmbedding,
    QuantizedLinear,
    QuantizedWeight,
)

Model = TypeVar("Model", bound=nn.Module)

# ours -> theirs, as in `checkpoint.py`
COMMON_NAMES = {
    "token_table.{}": ["token_embd.{}"],
    "position_table.{}": ["position_embd.{}"],
    "final_norm.{}": ["output_norm.{}"],
    "blocks.{}.attention_norm.{}": ["blk.{}.attn_norm.{}"],
    "blocks.{}.attention.out.{}": ["blk.{}.attn_output.{}"],
    "blocks.{}.mlp_norm.{}": ["blk.{}.ffn_norm.{}"],
    "blocks.{}.mlp.up.{}": ["blk.{}.ffn_up.{}"],
    "blocks.{}.mlp.gate_up.{}": ["blk.{}.ffn_gate.{}", "blk.{}.ffn_up.{}"],
    "blocks.{}.mlp.down.{}": ["blk.{}.ffn_down.{}"],
    "head.{}": ["output.{}"],
}
GGUF_NAMES = {
    "gpt2": COMMON_NAMES | {"blocks.{}.attention.qkv.{}": ["blk.{}.attn_qkv.{}"]},
    "llama": COMMON_NAMES | {"blocks.{}.attention.qkv.{}": [f"blk.{{}}.attn_{p}.{{}}" for p in "qkv"]},
}


def read_settings(file: Path) -> dict[str, Any]:
    """The settings of a GGUF file, in the words of a config.json."""
    return config_from_gguf(read_gguf_header(file))


def load(kind: type[Model], file: Path, dtype: str | torch.dtype, device: str) -> Model:
    """See `Transformer.from_pretrained`. `dtype`: of all weights that are not quantized, and of all computing."""
    config, target, header = read_config(file), parse_dtype(dtype), read_gguf_header(file)
    entries = {
        name: TensorEntry(tensor.type, tensor.dims[::-1], (0, tensor.nbytes))
        for name, tensor in header.tensors.items()
        if name != ROPE_FACTORS
    }
    check_memory(file, entries.values(), target, device)
    model, parts = fit_model(kind, config, file, entries, GGUF_NAMES[config.family])
    shapes = {ours: t.shape for ours, t in model.state_dict().items()}

    state: dict[str, Tensor] = {}
    quantized: dict[str, list[QuantizedWeight]] = {}  # by the name of the layer
    for ours, names in parts.items():
        if all(entries[name].dtype in PLAIN for name in names) or ours.startswith("position_table"):
            pieces = [read_plain(config, file, header, name) for name in names]
            state[ours] = torch.cat(pieces).to(device, target)
        elif ours.endswith(".weight") and len(shapes[ours]) == 2:
            weights = [read_quantized(config, file, header, name) for name in names]
            quantized[ours.removesuffix(".weight")] = [w.to(device) for w in weights]
        else:
            raise ValueError(
                f"{visible(file)}: {names[0]} is {entries[names[0]].dtype}, a vector must be F32"
            )
    model.load_state_dict(state, strict=False, assign=True)
    for ours, weights in quantized.items():
        if ours == "token_table":
            model.token_table = QuantizedEmbedding(weights[0], target)
            if config.tied:
                model.head = QuantizedLinear(weights, None)
        else:
            model.set_submodule(ours, QuantizedLinear(weights, state.get(f"{ours}.bias")))
    model = finish_loading(model)
    if config.family == "llama" and ROPE_FACTORS in header.tensors:
        factors = read_plain(config, file, header, ROPE_FACTORS).flatten()
        if len(factors) != config.head_dim // 2 or not ((factors > 0) & factors.isfinite()).all():
            raise ValueError(f"{visible(file)}: {ROPE_FACTORS} needs {config.head_dim // 2} numbers above 0")
        frequencies = rotary_frequencies(config.head_dim, config.rope_theta, config.rope_scaling) / factors
        model.cos, model.sin = (t.to(device) for t in rotary_tables(config.max_context, frequencies))
    return model


def rope_factors(config: ModelConfig) -> Tensor | None:
    """By how much a scaling of the kind "llama3" slows each pair: [head_dim / 2], the form in which GGUF keeps it.

    None for other kinds: what treats all pairs alike is one number, and has a key of its own there.
    """
    scaling, plain = config.rope_scaling, (config.head_dim, config.rope_theta)
    if scaling is None or scaling.get("rope_type", scaling.get("type")) != "llama3":
        return None
    return rotary_frequencies(*plain) / rotary_frequencies(*plain, scaling)


def read_plain(config: ModelConfig, file: Path, header: GGUFHeader, name: str) -> Tensor:
    """A tensor's numbers in float32, in the order in which this course wants them."""
    tensor = header.tensors[name]
    values = dequantize_blocks(tensor.type, read_blocks(file, header, name)).view(tensor.dims[::-1])
    return in_our_order(config, name, values)


def read_quantized(config: ModelConfig, file: Path, header: GGUFHeader, name: str) -> QuantizedWeight:
    """A matrix as it is stored."""
    tensor, blocks = header.tensors[name], in_our_order(config, name, read_blocks(file, header, name))
    if (kind := tensor.type.lower()) in BLOCK_CODES:
        return QuantizedWeight(kind, split_blocks(kind, blocks))
    return QuantizedWeight(tensor.type, {"blocks": blocks})


def in_our_order(config: ModelConfig, name: str, rows: Tensor) -> Tensor:
    """Undo GGUF's permutation of the rows of a Llama's queries and keys. It works for quantized rows too, since rows move whole."""
    if config.family == "llama" and ".attn_q." in name:
        return from_interleaved(rows, config.num_heads)
    if config.family == "llama" and ".attn_k." in name:
        return from_interleaved(rows, config.num_kv_heads)
    return rows
