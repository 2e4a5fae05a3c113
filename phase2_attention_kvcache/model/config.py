"""What a model needs to be told before it can compute: its shape, and a few settings. From a config.json."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phase1_tokens_embeddings.weights.model_shapes import SHAPES, ModelShape, shape_from_config

LONGEST_CONTEXT = 2**22  # rotary tables hold a row for each position, so a wrong number must not pass


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
