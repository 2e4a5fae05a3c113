"""What a model needs to be told before it can compute: its shape, and a few settings. From a config.json, or GGUF."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from labkit.foreign import quoted, visible
from phase1_tokens_embeddings.weights.families import Family, find_family
from phase1_tokens_embeddings.weights.gguf_model import is_gguf, read_raw_config
from phase1_tokens_embeddings.weights.model_shapes import SHAPES, ModelShape, flag, number, shape_from_config
from phase2_attention_kvcache.model.positions import rotary_frequencies

Rotation = Literal["full", "local"]


@dataclass(frozen=True)
class ModelConfig(ModelShape):
    """The shape of a model (Phase 1), and the few settings more that computing needs.

    What all models of a family share is in `choices`; what differs from layer to layer is asked for by layer:
    `window(layer)`, `rotation(layer)`.

    Attributes:
        norm_eps: keeps a norm from dividing by zero.
        attention_bias, mlp_bias: whether the matrices have a bias. (`qkv_bias`: only those of queries, keys, values.)
        rope_theta, rope_scaling: speeds of the rotation (see `positions.py`); not used by GPT-2.
        local_rope_theta: in layers with a window, where they turn at another speed (Gemma 3).
        no_rope_layers: layers whose queries and keys are not turned (SmolLM3).
        query_pre_attn_scalar: scores are divided by its root; None: by that of head_dim.
        attn_softcap, final_softcap: scores of attention, and of the next token, are bent to stay below it:
            cap * tanh(score / cap). None: not.
        norm_topk_prob: of a mixture: whether the weights of the chosen experts are made to add up to 1.
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
        """By which of its two tables of angles a layer turns queries and keys; None: by none."""
        if self.choices.positions != "rotary" or layer in self.no_rope_layers:
            return None
        return "local" if self.local_rope_theta is not None and self.window(layer) else "full"


GPT2_124M = ModelConfig(**vars(SHAPES["gpt2"]))
"""The shape of GPT-2 "small". With random weights it is as fast as the real one, and needs no download."""

# What is read of every config.json, beside its family's own `settings`; by the word that GPT-2 has for it, and all others.
READ = {
    *("model_type", "vocab_size", "tie_word_embeddings", "eos_token_id", "bos_token_id"),
    "quantization_config",
    *("n_embd", "n_head", "n_layer", "n_positions", "n_inner", "layer_norm_epsilon", "activation_function"),
    *("scale_attn_weights", "scale_attn_by_inverse_layer_idx"),
    *("hidden_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers", "intermediate_size"),
    *("head_dim", "max_position_embeddings", "rms_norm_eps", "hidden_act", "hidden_activation"),
    *("rope_theta", "rope_scaling", "rope_parameters", "attention_bias"),
}
# What changes nothing here: notes, and settings of training and of other tasks.
WITHOUT_EFFECT = {
    *("architectures", "auto_map", "transformers_version", "torch_dtype", "dtype", "task_specific_params"),
    *("pad_token_id", "use_cache", "cache_implementation", "initializer_range", "pretraining_tp", "n_ctx"),
    *("attn_pdrop", "embd_pdrop", "resid_pdrop", "attention_dropout", "hidden_dropout", "residual_dropout"),
    *("output_router_logits", "router_aux_loss_coef", "router_jitter_noise", "problem_type", "return_dict"),
    *("id2label", "label2id", "chunk_size_feed_forward", "unsloth_fixed", "reorder_and_upcast_attn"),
    *("summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"),
    *("is_llama_config", "transformers.js_config", "predict_special_tokens", "output_past"),
}  # fmt: skip
# Of some settings, one value is computed here.
ONLY = {"decoder_sparse_step": 1, "mlp_only_layers": None, "clip_qkv": None, "partial_rotary_factor": 1.0}
SILENT = (None, False, [], {}, "")  # values with which a setting says nothing


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
        family = find_family(shape.family)
        check_settings(raw, family)
        raw = family.settings | raw
        settings = _gpt2_settings(raw) if shape.family == "gpt2" else _settings(raw, family, shape)
        if family.positions == "rotary":  # a rotation that is not computed here is refused now
            rotary_frequencies(shape.head_dim, settings["rope_theta"], settings["rope_scaling"])
        ends = _token_ids(raw, "eos_token_id", shape.vocab_size)
        _token_ids(raw, "bos_token_id", shape.vocab_size)
        return ModelConfig(**vars(shape), **settings, eos_token_ids=ends)
    except ValueError as error:
        raise ValueError(f"{visible(path)} cannot be used: {error}") from None


def check_settings(raw: dict[str, Any], family: Family) -> None:
    """Refuse what is not understood: a setting that is passed over could change every answer.

    Raises:
        ValueError: names the setting.
    """
    known = READ | WITHOUT_EFFECT | family.settings.keys()
    if raw.get("use_sliding_window") is False:  # no windows: then it does not matter where they would begin
        known = known | {"max_window_layers"}
    for key, value in raw.items():
        if key in ONLY and value not in (ONLY[key], *SILENT):
            raise ValueError(f"{key} is {quoted(value)}; computed here is only {ONLY[key]}")
        if key not in known and not key.startswith("_") and value not in SILENT:
            raise ValueError(
                f"its setting {quoted(key)} ({quoted(value)}) is not known here, and could change every answer; "
                "if it has no effect on this model, take it out of the file"
            )


def _gpt2_settings(raw: dict[str, Any]) -> dict[str, Any]:
    activation = raw.get("activation_function", "gelu_new")
    if activation not in ("gelu_new", "gelu_pytorch_tanh"):
        raise ValueError(f"activation {quoted(activation)} is not computed here, only 'gelu_new'")
    if flag(raw, "scale_attn_by_inverse_layer_idx", False) or not flag(raw, "scale_attn_weights", True):
        raise ValueError("this way of scaling attention is not computed here")
    return dict(norm_eps=number(raw, "layer_norm_epsilon", 1e-5))


def _settings(raw: dict[str, Any], family: Family, shape: ModelShape) -> dict[str, Any]:
    """Of all families but GPT-2, which has words of its own."""
    names = ("silu",) if family.mlp == "swiglu" else ("gelu_pytorch_tanh", "gelu_new")
    activation = raw.get("hidden_activation") or raw.get("hidden_act") or names[0]
    if activation not in names:
        raise ValueError(f"activation {quoted(activation)} is not computed here, only {names[0]!r}")
    optional = ("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping")
    scalar, attn_cap, final_cap = (
        None if raw.get(key) is None else number(raw, key, 1.0, least=1e-3) for key in optional
    )
    return dict(
        norm_eps=number(raw, "rms_norm_eps", 1e-6),
        attention_bias=flag(raw, "attention_bias", False),
        mlp_bias=flag(raw, "mlp_bias", False),
        no_rope_layers=_no_rope_layers(raw, shape.num_layers),
        query_pre_attn_scalar=scalar,
        attn_softcap=attn_cap,
        final_softcap=final_cap,
        norm_topk_prob=flag(raw, "norm_topk_prob", False),
        **_rope_settings(raw),
    )


def _rope_settings(raw: dict[str, Any]) -> dict[str, Any]:
    """Newer files keep everything about rotation in rope_parameters, older ones in two fields."""
    rope, scaling = raw.get("rope_parameters"), raw.get("rope_scaling")
    local = {} if raw.get("rope_local_base_freq") is None else {"rope_theta": raw["rope_local_base_freq"]}
    if isinstance(rope, dict) and "full_attention" in rope:  # one group for each kind of layer
        rope, local = rope["full_attention"], rope.get("sliding_attention", local)
    if not all(isinstance(group, dict | None) for group in (rope, scaling, local)):
        raise ValueError("rope_parameters and rope_scaling must be groups of settings")
    if local and local.get("rope_type", "default") != "default":
        raise ValueError(
            f"layers with a window turn by {quoted(local['rope_type'])}: only default is computed"
        )
    return dict(
        rope_theta=number(raw | (rope or {}), "rope_theta", 10000.0, least=1.0),
        rope_scaling=rope or scaling,
        local_rope_theta=number(local, "rope_theta", 10000.0, least=1.0) if local else None,
    )


def _no_rope_layers(raw: dict[str, Any], num_layers: int) -> tuple[int, ...]:
    """`no_rope_layers` of a file says for each layer whether it turns: 1, or 0. Or every n-th does not."""
    turns = raw.get("no_rope_layers")
    if turns is None and raw.get("no_rope_layer_interval") is None:
        return ()
    if turns is None:
        every = int(number(raw, "no_rope_layer_interval", 4, least=1))
        turns = [(layer + 1) % every for layer in range(num_layers)]
    if not isinstance(turns, list) or len(turns) < num_layers or not all(type(turn) is int for turn in turns):
        raise ValueError(f"no_rope_layers is {quoted(turns)}: {num_layers} layers need a 1 or a 0 each")
    return tuple(layer for layer in range(num_layers) if not turns[layer])


def _token_ids(raw: dict[str, Any], key: str, vocab_size: int) -> tuple[int, ...]:
    """A token id, several, or none. The sampler bans and finds them by their place among the scores."""
    ids = raw.get(key)
    ids = [] if ids is None else ids if isinstance(ids, list) else [ids]
    if not all(type(i) is int and 0 <= i < vocab_size for i in ids):
        raise ValueError(
            f"{key} is {quoted(raw[key])}: token ids of this model go from 0 to {vocab_size - 1}"
        )
    return tuple(ids)
