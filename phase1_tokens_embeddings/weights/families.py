"""The families of models as data: one row of choices each.

GPT-2, Llama, Qwen and Gemma stack the same kind of block and differ in a dozen small choices. A `Family` holds the choices that
all its models share. Sizes, windows and rotation speeds differ from model to model and are in its config.json; a row's
`settings` are the defaults of that file.

Sources: the papers and model cards named in `phase2_attention_kvcache/story/families_story.py`; defaults as in transformers.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from labkit.foreign import quoted


@dataclass(frozen=True)
class Family:
    """The choices that all models of a family share. The defaults are Llama's.

    Attributes:
        positions: "learned": a table of vectors, added to the tokens'. "rotary": queries and keys are rotated.
        norm: "layer" shifts and scales, "rms" only scales; "offset_rms" stores how far its scales are from 1.
        norm_at: of attention and MLP: "before" it, "after" it (before its result is added), or "around" it: both.
        qk_norm: queries and keys are normalized, too: each "head" by itself, or the whole "row" of a token.
        mlp: "gelu": two matrices. "swiglu", "geglu": three, one of them for gates; named after the gates' activation.
        scaled_embedding: the tokens' vectors are multiplied by sqrt(d_model).
        mixture: each block has several MLPs, the experts, and uses a few of them for a token.
        qkv_bias: queries, keys and values have biases, with any config.json.
        settings: defaults of a config.json. They also name the settings that only this family may have.
    """

    positions: Literal["learned", "rotary"] = "rotary"
    norm: Literal["layer", "rms", "offset_rms"] = "rms"
    norm_at: Literal["before", "after", "around"] = "before"
    qk_norm: Literal["head", "row"] | None = None
    mlp: Literal["gelu", "swiglu", "geglu"] = "swiglu"
    scaled_embedding: bool = False
    mixture: bool = False
    qkv_bias: bool = False
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def gated(self) -> bool:
        return self.mlp != "gelu"

    @property
    def normed_before(self) -> bool:
        return self.norm_at != "after"

    @property
    def normed_after(self) -> bool:
        return self.norm_at != "before"


BIASES = {"attention_bias": False, "mlp_bias": False}
# Windows in some layers: only where the file switches them on, from layer `max_window_layers` on.
LATE_WINDOWS = {
    "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28, "layer_types": None,
}  # fmt: skip
# Every n-th layer sees everything, the remaining layers see a window.
GEMMA = {
    "head_dim": 256, "tie_word_embeddings": True, "query_pre_attn_scalar": 256, "sliding_window": 4096,
    "attn_logit_softcapping": None, "final_logit_softcapping": None, "layer_types": None, "attention_bias": False,
}  # fmt: skip

FAMILIES: dict[str, Family] = {
    "gpt2": Family(
        positions="learned", norm="layer", mlp="gelu",
        settings={"tie_word_embeddings": True},
    ),
    "llama": Family(settings=BIASES),
    "mistral": Family(settings={"sliding_window": 4096}),
    "qwen2": Family(qkv_bias=True, settings=LATE_WINDOWS),
    "qwen3": Family(qk_norm="head", settings=LATE_WINDOWS | {"head_dim": 128, "attention_bias": False}),
    "smollm3": Family(
        settings=BIASES | {
            "tie_word_embeddings": True, "rope_theta": 2_000_000.0, "no_rope_layers": None,
            "no_rope_layer_interval": 4, "use_sliding_window": False, "sliding_window": None, "layer_types": None,
        },
    ),
    "phi3": Family(
        settings={
            "rms_norm_eps": 1e-5, "sliding_window": None, "original_max_position_embeddings": None,
            "partial_rotary_factor": 1.0,
        },
    ),
    "olmo2": Family(norm_at="after", qk_norm="row", settings={"rms_norm_eps": 1e-5, "attention_bias": False}),
    "gemma": Family(
        norm="offset_rms", mlp="geglu", scaled_embedding=True,
        settings={"head_dim": 256, "tie_word_embeddings": True, "attention_bias": False},
    ),
    "gemma2": Family(
        norm="offset_rms", norm_at="around", mlp="geglu", scaled_embedding=True,
        settings=GEMMA | {
            "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "sliding_window_pattern": 2,
        },
    ),
    "gemma3_text": Family(
        norm="offset_rms", norm_at="around", qk_norm="head", mlp="geglu", scaled_embedding=True,
        settings=GEMMA | {
            "rope_theta": 1_000_000.0, "rope_local_base_freq": 10_000.0, "sliding_window_pattern": 6,
        },
    ),
    "qwen3_moe": Family(
        qk_norm="head", mixture=True,
        settings={
            "attention_bias": False, "use_sliding_window": False, "sliding_window": 4096, "num_experts_per_tok": 8,
            "moe_intermediate_size": 768, "num_experts": 128, "num_local_experts": None, "norm_topk_prob": False, "decoder_sparse_step": 1,
            "mlp_only_layers": None,
        },
    ),
    "mixtral": Family(
        mixture=True,
        settings={
            "rms_norm_eps": 1e-5, "rope_theta": 1_000_000.0, "sliding_window": None, "num_experts_per_tok": 2,
            "num_local_experts": 8, "norm_topk_prob": True,
        },
    ),
    "olmoe": Family(
        qk_norm="row", mixture=True,
        settings={
            "rms_norm_eps": 1e-5, "attention_bias": False, "clip_qkv": None, "num_experts_per_tok": 8,
            "num_experts": 64, "norm_topk_prob": False,
        },
    ),
}  # fmt: skip
"""By the `model_type` of a config.json."""


def find_family(model_type: Any) -> Family:
    """The row of a family.

    Raises:
        ValueError: one that is not known.
    """
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ValueError(f"its model_type is {quoted(model_type)}; this course knows {', '.join(FAMILIES)}")
    return FAMILIES[model_type]
