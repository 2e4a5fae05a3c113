"""What a model needs to be told before it can compute: its shape, and a few settings. From a config.json, or GGUF."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.foreign import quoted, visible
from phase1_tokens_embeddings.weights.gguf_model import is_gguf, read_raw_config
from phase1_tokens_embeddings.weights.model_shapes import (
    SHAPES,
    ModelShape,
    flag,
    number,
    shape_from_config,
)
from phase2_attention_kvcache.model.positions import rotary_frequencies


@dataclass(frozen=True)
class ModelConfig(ModelShape):
    """The shape of a model (Phase 1), and the few settings more that computing needs.

    Attributes:
        norm_eps: keeps a norm from dividing by zero.
        attention_bias, mlp_bias: whether the matrices have a bias.
        rope_theta, rope_scaling: speeds of the rotation (see `positions.py`); not used by GPT-2.
        eos_token_ids: tokens that end a text.
    """

    norm_eps: float = 1e-5
    attention_bias: bool = True
    mlp_bias: bool = True
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None
    eos_token_ids: tuple[int, ...] = ()


GPT2_124M = ModelConfig(**vars(SHAPES["gpt2"]))
"""The shape of GPT-2 "small". With random weights it is as fast as the real one, and needs no download."""


def read_config(folder: Path) -> ModelConfig:
    """config.json of a folder, or the keys of a GGUF file -> ModelConfig.

    The sizes are read and checked by Phase 1's `shape_from_config`.

    Raises:
        ValueError: not readable, another architecture, or an option that this model does not compute.
    """
    path = folder if is_gguf(folder) else folder / "config.json"
    try:
        raw = read_raw_config(folder)
        shape = shape_from_config(raw, folder.name)
        if raw["model_type"] not in ("gpt2", "llama"):
            raise ValueError(
                f"model_type is {quoted(raw['model_type'])}; this course runs 'gpt2' and 'llama'"
            )
        settings = _gpt2_settings(raw) if shape.family == "gpt2" else _llama_settings(raw)
        if shape.family == "llama":  # a rotation that is not computed here is refused now
            rotary_frequencies(shape.head_dim, settings["rope_theta"], settings["rope_scaling"])
        ends = _token_ids(raw, "eos_token_id", shape.vocab_size)
        _token_ids(raw, "bos_token_id", shape.vocab_size)
        return ModelConfig(**vars(shape), **settings, eos_token_ids=ends)
    except ValueError as error:
        raise ValueError(f"{visible(path)} cannot be used: {error}") from None


def _gpt2_settings(raw: dict[str, Any]) -> dict[str, Any]:
    activation = raw.get("activation_function", "gelu_new")
    if activation not in ("gelu_new", "gelu_pytorch_tanh"):
        raise ValueError(f"activation {quoted(activation)} is not computed here, only 'gelu_new'")
    if flag(raw, "scale_attn_by_inverse_layer_idx", False) or not flag(raw, "scale_attn_weights", True):
        raise ValueError("this way of scaling attention is not computed here")
    return dict(norm_eps=number(raw, "layer_norm_epsilon", 1e-5))


def _llama_settings(raw: dict[str, Any]) -> dict[str, Any]:
    if raw.get("hidden_act", "silu") != "silu":
        raise ValueError(f"activation {quoted(raw['hidden_act'])} is not computed here, only 'silu'")
    # Newer files keep everything about rotation in rope_parameters, older ones in two fields.
    rope, scaling = raw.get("rope_parameters"), raw.get("rope_scaling")
    if not isinstance(rope, dict | None) or not isinstance(scaling, dict | None):
        raise ValueError("rope_parameters and rope_scaling must be groups of settings")
    return dict(
        norm_eps=number(raw, "rms_norm_eps", 1e-6),
        attention_bias=flag(raw, "attention_bias", False),
        mlp_bias=flag(raw, "mlp_bias", False),
        rope_theta=number(raw | (rope or {}), "rope_theta", 10000.0, least=1.0),
        rope_scaling=rope or scaling,
    )


def _token_ids(raw: dict[str, Any], key: str, vocab_size: int) -> tuple[int, ...]:
    """A token id, several, or none. The sampler bans and finds them by their place among the scores."""
    ids = raw.get(key)
    ids = [] if ids is None else ids if isinstance(ids, list) else [ids]
    if not all(type(i) is int and 0 <= i < vocab_size for i in ids):
        raise ValueError(
            f"{key} is {quoted(raw[key])}: token ids of this model go from 0 to {vocab_size - 1}"
        )
    return tuple(ids)
