"""The settings of a model: its shape (Phase 1) and a few more, read from a config.json and checked."""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from labkit.foreign import quoted, read_json, visible
from phase1_tokens_embeddings.weights import config_settings
from phase1_tokens_embeddings.weights.config_settings import flag, number
from phase1_tokens_embeddings.weights.families import Family, find_family
from phase1_tokens_embeddings.weights.model_shapes import SHAPES, ModelShape, shape_from_config
from phase2_attention_kvcache import CHECKPOINT_FORMATS
from phase2_attention_kvcache.model.positions import rotary_frequencies

Rotation = Literal["full", "local"]


@dataclass(frozen=True)
class ModelConfig(ModelShape):
    """The shape of a model (Phase 1), and the other settings that computing with it needs.

    `choices` holds the settings that all models of a family share. `window(layer)` and `rotation(layer)` differ by layer.

    Attributes:
        norm_eps: keeps a norm from dividing by zero.
        attention_bias, mlp_bias: True if the matrices have a bias. (`qkv_bias`: only those of queries, keys, values.)
        rope_theta, rope_scaling: speeds of the rotation (see `positions.py`); not used by GPT-2.
        local_rope_theta: the rope_theta of layers with a window, if it differs (Gemma 3).
        no_rope_layers: layers whose queries and keys are not rotated (SmolLM3).
        query_pre_attn_scalar: scores are divided by its square root; None: by the square root of head_dim.
        attn_softcap, final_softcap: a score of attention, or a logit, becomes cap * tanh(score / cap). None: no cap.
        norm_topk_prob: True if a mixture of experts scales the weights of the chosen experts to add up to 1.
        eos_token_ids: tokens that end a text.
    """

    norm_eps: float = 1e-5
    attention_bias: bool = True
    mlp_bias: bool = True
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None
    local_rope_theta: float | None = None
    no_rope_layers: tuple[int, ...] = ()
    query_pre_attn_scalar: float | None = None
    attn_softcap: float | None = None
    final_softcap: float | None = None
    norm_topk_prob: bool = False
    eos_token_ids: tuple[int, ...] = ()

    @property
    def attention_scale(self) -> float:
        """Scores of attention are multiplied by it."""
        return (self.query_pre_attn_scalar or self.head_dim) ** -0.5

    def rotation(self, layer: int) -> Rotation | None:
        """The table of angles by which a layer rotates queries and keys; None: no rotation."""
        if self.choices.positions != "rotary" or layer in self.no_rope_layers:
            return None
        return "local" if self.local_rope_theta is not None and self.window(layer) else "full"


GPT2_124M = ModelConfig(**vars(SHAPES["gpt2"]))
"""The shape of GPT-2 "small". With random weights it is as fast as the real one, and needs no download."""


def find_reader(path: Path) -> ModuleType | None:
    """The module that reads a checkpoint in another form (`CHECKPOINT_FORMATS`); None: a plain folder, read here."""
    if path.is_file():
        return import_module(CHECKPOINT_FORMATS[path.suffix])
    try:
        raw = read_json(path / "config.json", config_settings.MAX_CONFIG_BYTES)
    except ValueError:
        return None  # `read_config` says why
    settings = raw if isinstance(raw, dict) else {}
    module = next((m for key, m in CHECKPOINT_FORMATS.items() if settings.get(key) is not None), None)
    return None if module is None else import_module(module)


def read_config(path: Path) -> ModelConfig:
    """The settings of a model folder, or of a file in another form.

    The sizes are read and checked by Phase 1's `shape_from_config`.

    Raises:
        ValueError: not readable, another architecture, or an option that this model does not compute.
    """
    file = path if path.is_file() else path / "config.json"
    try:
        reader = find_reader(path)
        raw = (
            read_json(file, config_settings.MAX_CONFIG_BYTES)
            if reader is None
            else reader.read_settings(path)
        )
        shape = shape_from_config(raw, path.name)
        family = find_family(shape.family)
        config_settings.check_settings(raw, family)
        raw = family.settings | raw
        settings = _gpt2_settings(raw) if shape.family == "gpt2" else _settings(raw, family, shape)
        if family.positions == "rotary":  # a rotation that is not computed here is refused now
            rotary_frequencies(shape.head_dim, settings["rope_theta"], settings["rope_scaling"])
        ends = config_settings.end_tokens(path, raw, shape.vocab_size)
        config_settings.token_ids(raw, "bos_token_id", shape.vocab_size)
        return ModelConfig(**vars(shape), **settings, eos_token_ids=ends)
    except ValueError as error:
        raise ValueError(f"{visible(file)} cannot be used: {error}") from None


def _gpt2_settings(raw: dict[str, Any]) -> dict[str, Any]:
    _check_activation(raw.get("activation_function", "gelu_new"), ("gelu_new", "gelu_pytorch_tanh"))
    if flag(raw, "scale_attn_by_inverse_layer_idx", False) or not flag(raw, "scale_attn_weights", True):
        raise ValueError("this way of scaling attention is not computed here")
    return dict(norm_eps=number(raw, "layer_norm_epsilon", 1e-5))


def _settings(raw: dict[str, Any], family: Family, shape: ModelShape) -> dict[str, Any]:
    """The settings of all families except GPT-2, whose config.json has other names."""
    names = ("silu",) if family.mlp == "swiglu" else ("gelu_pytorch_tanh", "gelu_new")
    _check_activation(raw.get("hidden_activation") or raw.get("hidden_act") or names[0], names)
    optional = ("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping")
    scalar, attn_cap, final_cap = (
        None if raw.get(key) is None else number(raw, key, 1.0, least=1e-3) for key in optional
    )
    return dict(
        norm_eps=number(raw, "rms_norm_eps", 1e-6),
        attention_bias=flag(raw, "attention_bias", False),
        mlp_bias=flag(raw, "mlp_bias", False),
        no_rope_layers=config_settings.no_rope_layers(raw, shape.num_layers),
        query_pre_attn_scalar=scalar,
        attn_softcap=attn_cap,
        final_softcap=final_cap,
        norm_topk_prob=flag(raw, "norm_topk_prob", False),
        **config_settings.rope_settings(raw),
    )


def _check_activation(found: Any, names: tuple[str, ...]) -> None:
    if found not in names:
        raise ValueError(f"activation {quoted(found)} is not computed here, only {names[0]!r}")
