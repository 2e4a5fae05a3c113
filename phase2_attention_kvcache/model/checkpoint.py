"""From a folder in the Hugging Face layout to our model: config.json, and the tensors by name.

Every family names its tensors in its own way, and GPT-2 stores its matrices turned by 90 degrees. The
table of names below is all there is to "supporting a model".
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from labkit.models import find_model
from phase1_tokens_embeddings.weights.model_shapes import shape_from_config
from phase1_tokens_embeddings.weights.safetensors_file import checkpoint_files, read_safetensors_header
from phase2_attention_kvcache.model.blocks import ModelConfig
from phase2_attention_kvcache.model.transformer import Transformer

# ours -> theirs. Several names on the right are joined along the output dimension.
GPT2_NAMES = {
    "token_table.weight": ["wte.weight"],
    "position_table.weight": ["wpe.weight"],
    "final_norm.weight": ["ln_f.weight"],
    "final_norm.bias": ["ln_f.bias"],
    "blocks.{}.attention_norm.weight": ["h.{}.ln_1.weight"],
    "blocks.{}.attention_norm.bias": ["h.{}.ln_1.bias"],
    "blocks.{}.attention.qkv.weight": ["h.{}.attn.c_attn.weight"],
    "blocks.{}.attention.qkv.bias": ["h.{}.attn.c_attn.bias"],
    "blocks.{}.attention.out.weight": ["h.{}.attn.c_proj.weight"],
    "blocks.{}.attention.out.bias": ["h.{}.attn.c_proj.bias"],
    "blocks.{}.mlp_norm.weight": ["h.{}.ln_2.weight"],
    "blocks.{}.mlp_norm.bias": ["h.{}.ln_2.bias"],
    "blocks.{}.mlp.up.weight": ["h.{}.mlp.c_fc.weight"],
    "blocks.{}.mlp.up.bias": ["h.{}.mlp.c_fc.bias"],
    "blocks.{}.mlp.down.weight": ["h.{}.mlp.c_proj.weight"],
    "blocks.{}.mlp.down.bias": ["h.{}.mlp.c_proj.bias"],
    "head.weight": ["lm_head.weight"],
}
LLAMA_NAMES = {
    "token_table.weight": ["embed_tokens.weight"],
    "final_norm.weight": ["norm.weight"],
    "blocks.{}.attention_norm.weight": ["layers.{}.input_layernorm.weight"],
    "blocks.{}.attention.qkv.{}": [f"layers.{{}}.self_attn.{p}_proj.{{}}" for p in "qkv"],
    "blocks.{}.attention.out.{}": ["layers.{}.self_attn.o_proj.{}"],
    "blocks.{}.mlp_norm.weight": ["layers.{}.post_attention_layernorm.weight"],
    "blocks.{}.mlp.gate_up.{}": [f"layers.{{}}.mlp.{p}_proj.{{}}" for p in ("gate", "up")],
    "blocks.{}.mlp.down.{}": ["layers.{}.mlp.down_proj.{}"],
    "head.weight": ["lm_head.weight"],
}
# Old checkpoints also store masks and frequencies, which are computed here.
IGNORED_ENDINGS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def parse_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """ "bfloat16" -> torch.bfloat16. Raises ValueError for what the course does not compute in."""
    if dtype in DTYPES.values():
        return dtype
    if dtype not in DTYPES:
        raise ValueError(f"unknown dtype {dtype!r}: use {', '.join(DTYPES)}")
    return DTYPES[dtype]


LONGEST_CONTEXT = 2**22  # rotary tables hold a row for each position, so a wrong number must not pass


def read_config(folder: Path) -> ModelConfig:
    """config.json -> ModelConfig. The sizes are read and checked by Phase 1's `shape_from_config`.

    Raises:
        ValueError: not readable, another architecture, or an option that this model does not compute.
    """
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(raw, dict):
            raise ValueError("it holds no settings")
        if raw.get("model_type") not in ("gpt2", "llama"):
            raise ValueError(f"model_type is {raw.get('model_type')!r}; this course runs 'gpt2' and 'llama'")
        shape = shape_from_config(raw, folder.name)
        if shape.max_context > LONGEST_CONTEXT:
            raise ValueError(f"a context of {shape.max_context:,} tokens is out of range")
        settings = _gpt2_settings(raw) if shape.family == "gpt2" else _llama_settings(raw)
        return ModelConfig(**vars(shape), **settings, eos_token_ids=_token_ids(raw.get("eos_token_id")))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be used: {error}") from None


def _gpt2_settings(raw: dict[str, Any]) -> dict[str, Any]:
    activation = raw.get("activation_function", "gelu_new")
    if activation not in ("gelu_new", "gelu_pytorch_tanh"):
        raise ValueError(f"activation {activation!r} is not computed here, only 'gelu_new'")
    if raw.get("scale_attn_by_inverse_layer_idx") or not raw.get("scale_attn_weights", True):
        raise ValueError("this way of scaling attention is not computed here")
    return dict(norm_eps=_number(raw, "layer_norm_epsilon", 1e-5))


def _llama_settings(raw: dict[str, Any]) -> dict[str, Any]:
    if raw.get("hidden_act", "silu") != "silu":
        raise ValueError(f"activation {raw['hidden_act']!r} is not computed here, only 'silu'")
    # Newer files keep everything about rotation in rope_parameters, older ones in two fields.
    rope = raw.get("rope_parameters") or {}
    scaling = rope or raw.get("rope_scaling")
    if not isinstance(rope, dict) or not isinstance(scaling, dict | None):
        raise ValueError("rope_parameters and rope_scaling must be groups of settings")
    return dict(
        norm_eps=_number(raw, "rms_norm_eps", 1e-6),
        attention_bias=bool(raw.get("attention_bias", False)),
        mlp_bias=bool(raw.get("mlp_bias", False)),
        rope_theta=_number(raw | rope, "rope_theta", 10000.0),
        rope_scaling=scaling,
    )


def _number(raw: dict[str, Any], key: str, default: float) -> float:
    value = raw.get(key)
    value = default if value is None else value
    if type(value) not in (int, float) or not 0 < value < 1e15:
        raise ValueError(f"{key} is {value!r}, a number above 0 is needed")
    return float(value)


def _token_ids(ids: Any) -> tuple[int, ...]:
    ids = [] if ids is None else ids if isinstance(ids, list) else [ids]
    if not all(type(i) is int for i in ids):
        raise ValueError(f"eos_token_id is {ids!r}, a token id or a list of them is needed")
    return tuple(ids)


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a model by their own names, without the prefix that some files put before them.

    The header of each file is checked first (phase 1), so that a damaged file is named as such.
    """
    tensors: dict[str, Tensor] = {}
    for file in checkpoint_files(folder):
        read_safetensors_header(file)
        with safe_open(file, framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118
                short = name.removeprefix("transformer.").removeprefix("model.")
                if not short.endswith(IGNORED_ENDINGS):
                    tensors[short] = stored.get_tensor(name)
    return tensors


def names_for(config: ModelConfig, ours: str) -> list[str]:
    """The tensors of the checkpoint that make up one of our parameters."""
    table = GPT2_NAMES if config.family == "gpt2" else LLAMA_NAMES
    parts = ours.split(".")
    if parts[0] != "blocks":
        return table[ours]
    layer, last = parts[1], parts[-1]
    generic = ".".join(["blocks", "{}", *parts[2:]])
    if generic in table:
        return [theirs.format(layer) for theirs in table[generic]]
    return [theirs.format(layer, last) for theirs in table[generic.removesuffix(last) + "{}"]]


def load_checkpoint(name: str | Path, dtype: str | torch.dtype, device: str) -> Transformer:
    """See `Transformer.from_pretrained`."""
    folder = find_model(name)
    config, target = read_config(folder), parse_dtype(dtype)
    tensors = read_tensors(folder)
    with torch.device("meta"):  # shapes without memory: the weights are put in as they are read
        model = Transformer(config)

    state: dict[str, Tensor] = {}
    missing: list[str] = []
    for ours, shaped in model.state_dict().items():
        theirs = names_for(config, ours)
        if absent := [t for t in theirs if t not in tensors]:
            missing += absent
            continue
        pieces = [tensors.pop(t) for t in theirs]
        if config.family == "gpt2" and shaped.ndim == 2 and ours.startswith("blocks"):
            pieces = [p.T if p.ndim == 2 else p for p in pieces]  # GPT-2 stores [in, out]
        rows = sum(len(p) if p.ndim else 0 for p in pieces)
        if rows != len(shaped) or any(p.shape[1:] != shaped.shape[1:] for p in pieces):
            raise ValueError(
                f"{folder}: {' + '.join(theirs)} has the wrong shape: "
                f"{' + '.join(str(list(p.shape)) for p in pieces)} found, "
                f"config.json asks for {list(shaped.shape)} (rows, columns)"
            )
        joined = torch.cat(pieces) if len(pieces) > 1 else pieces[0]
        state[ours] = joined.to(device, target).contiguous()
    if config.tied:
        tensors.pop("lm_head.weight", None)  # a second copy of the token table
    if missing or tensors:
        raise ValueError(
            f"{folder} does not fit its config.json: " + "; ".join(_complaints(missing, tensors))
        )
    model.load_state_dict(state, assign=True)
    return model.finish_loading()


def _complaints(missing: list[str], unexpected: dict[str, Tensor]) -> Iterator[str]:
    for what, names in (("missing", missing), ("unexpected", list(unexpected))):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            yield f"{what} {', '.join(names[:3])}{more}"
