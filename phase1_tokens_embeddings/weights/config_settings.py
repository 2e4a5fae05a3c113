"""The settings of a config.json: the known names, and values that are checked as they are read.

A setting that is not known is refused, and so is a value of the wrong kind: both could change every answer of a model.
"""

from pathlib import Path
from typing import Any

from labkit.foreign import quoted, read_json, visible
from phase1_tokens_embeddings.weights.families import Family

MAX_CONFIG_BYTES = 1_000_000
# Settings read from every config.json, besides its family's own; first GPT-2's names, then the names of all other families.
READ = {
    *("model_type", "vocab_size", "tie_word_embeddings", "eos_token_id", "bos_token_id"),
    *("n_embd", "n_head", "n_layer", "n_positions", "n_inner", "layer_norm_epsilon", "activation_function"),
    *("scale_attn_weights", "scale_attn_by_inverse_layer_idx"),
    *("hidden_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers", "intermediate_size"),
    *("head_dim", "max_position_embeddings", "rms_norm_eps", "hidden_act", "hidden_activation"),
    *("rope_theta", "rope_scaling", "rope_parameters", "attention_bias"),
}
# Settings that change nothing here: notes, and settings of training and of other tasks.
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


def check_settings(raw: dict[str, Any], family: Family) -> None:
    """Refuse a setting of a config.json that is not understood: to ignore it could change every answer.

    Raises:
        ValueError: names the setting.
    """
    known = READ | WITHOUT_EFFECT | family.settings.keys()
    if raw.get("use_sliding_window") is False:  # without windows it has no effect where they would begin
        known = known | {"max_window_layers"}
    for key, value in raw.items():
        if key in ONLY and value not in (ONLY[key], *SILENT):
            raise ValueError(f"{key} is {quoted(value)}; computed here is only {ONLY[key]}")
        if key not in known and not key.startswith("_") and value not in SILENT:
            raise ValueError(
                f"its setting {quoted(key)} ({quoted(value)}) is not known here, and could change every answer; "
                "if it has no effect on this model, take it out of the file"
            )


def windows_from_config(config: dict[str, Any], num_layers: int) -> tuple[int | None, ...]:
    """How many tokens each layer sees, see `ModelShape.window`; () where all layers see everything.

    Newer files name the kind of each layer (`layer_types`), older ones give a rule.
    """
    window, kinds = config.get("sliding_window"), config.get("layer_types")
    if window is None or not flag(config, "use_sliding_window", True):
        return ()
    if type(window) is not int or window < 1:
        raise ValueError(f"sliding_window is {quoted(window)}: a window has 1 token or more")
    local, everything = "sliding_attention", "full_attention"
    if kinds is None and (every := config.get("sliding_window_pattern")) is not None:
        if type(every) is not int or every < 1:
            raise ValueError(f"sliding_window_pattern is {quoted(every)}, 1 or more is needed")
        kinds = [local if (layer + 1) % every else everything for layer in range(num_layers)]
    elif kinds is None and type(first := config.get("max_window_layers")) is int:
        kinds = [local if layer >= first else everything for layer in range(num_layers)]
    elif kinds is None and "no_rope_layers" in config:
        raise ValueError("it switches windows on, but layer_types does not say in which layers")
    elif kinds is None:
        kinds = [local] * num_layers
    fitting = isinstance(kinds, list) and len(kinds) == num_layers
    if not fitting or not {*map(str, kinds)} <= {local, everything}:
        raise ValueError(
            f"layer_types is {quoted(kinds)}: {num_layers} layers need as many times {local!r} or {everything!r}"
        )
    windows = tuple(window if kind == local else None for kind in kinds)
    return windows if any(windows) else ()


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


def rope_settings(raw: dict[str, Any]) -> dict[str, Any]:
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
    theta, scaling = number(raw | (rope or {}), "rope_theta", 10000.0, least=1.0), rope or scaling
    if scaling and scaling.get("rope_theta", theta) != theta:
        raise ValueError(f"theta is {theta}, but the scaling says rope_theta {quoted(scaling['rope_theta'])}")
    if scaling and scaling.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(
            f"partial_rotary_factor {quoted(scaling['partial_rotary_factor'])} is not supported: only 1 is"
        )
    return dict(
        rope_theta=theta,
        rope_scaling=scaling,
        local_rope_theta=number(local, "rope_theta", 10000.0, least=1.0) if local else None,
    )


def no_rope_layers(raw: dict[str, Any], num_layers: int) -> tuple[int, ...]:
    """The layers without rotary positions: `no_rope_layers` has 1 (rotary) or 0 per layer, or every n-th layer has none."""
    turns = raw.get("no_rope_layers")
    if turns is None and raw.get("no_rope_layer_interval") is None:
        return ()
    if turns is None:
        every = int(number(raw, "no_rope_layer_interval", 4, least=1))
        turns = [(layer + 1) % every for layer in range(num_layers)]
    if not isinstance(turns, list) or len(turns) < num_layers or not all(type(turn) is int for turn in turns):
        raise ValueError(f"no_rope_layers is {quoted(turns)}: {num_layers} layers need a 1 or a 0 each")
    return tuple(layer for layer in range(num_layers) if not turns[layer])


def generation_settings(path: Path) -> dict[str, Any]:
    """What a model folder's generation_config.json says; nothing where there is none.

    Raises:
        ValueError: a file without settings.
    """
    if not (file := path / "generation_config.json").is_file():
        return {}
    if not isinstance(raw := read_json(file, MAX_CONFIG_BYTES), dict):
        raise ValueError(f"{visible(file)} holds no settings")
    return raw


def end_tokens(path: Path, raw: dict[str, Any], vocab_size: int) -> tuple[int, ...]:
    """The tokens that end a text: config.json's, and those that generation_config.json adds, such as the end of a chat's turn."""
    own = token_ids(raw, "eos_token_id", vocab_size)
    try:
        added = token_ids(generation_settings(path), "eos_token_id", vocab_size)
    except ValueError as error:
        raise ValueError(f"generation_config.json: {error}") from None
    return tuple(dict.fromkeys(own + added))


def token_ids(raw: dict[str, Any], key: str, vocab_size: int) -> tuple[int, ...]:
    """A token id, several, or none. The sampler uses them as indices into the scores."""
    ids = raw.get(key)
    ids = [] if ids is None else ids if isinstance(ids, list) else [ids]
    if not all(type(i) is int and 0 <= i < vocab_size for i in ids):
        raise ValueError(
            f"{key} is {quoted(raw[key])}: token ids of this model go from 0 to {vocab_size - 1}"
        )
    return tuple(ids)
