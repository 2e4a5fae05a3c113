"""Grader of the row of a family, read off its files."""

from collections.abc import Callable
from functools import cache
from typing import Any

from exercises.grading import Diagnoses, Exercise
from exercises.judging.judge import judge, variants
from exercises.phase2.strangers import Shapes, Stranger
from phase1_tokens_embeddings.weights.families import Family

SAYS = Diagnoses.of("p2e10_family")
MISTAKES = (
    "family-post-attention-is-after",
    "family-around-is-after",
    "family-after-missed",
    "family-norm-always-rms",
    "family-norm-by-any-bias",
    "family-qk-missed",
    "family-qk-always-head",
    "family-qk-by-kv-heads",
    "family-gate-by-activation",
    "family-gate-always-silu",
    "family-fused-gate-missed",
    "family-router-is-a-gate",
    "family-experts-missed",
    "family-learned-by-config",
)
CASES = [
    Stranger(Family()),
    Stranger(Family(norm="layer", mlp="gelu"), biases=True),
    Stranger(Family(positions="learned", norm="layer", mlp="gelu")),
    Stranger(Family(qk_norm="head")),
    Stranger(Family(norm_at="after", qk_norm="row"), num_kv_heads=4),
    Stranger(Family(norm_at="around", mlp="geglu"), biases=True),
    Stranger(Family(norm_at="around", qk_norm="head", mlp="geglu"), num_heads=2, num_kv_heads=1, head_dim=16),
    Stranger(Family(), fused=True, num_kv_heads=4),
    Stranger(Family(mlp="geglu"), fused=True),
    Stranger(Family(qk_norm="row", mixture=True)),
    Stranger(Family(qk_norm="head", mixture=True)),
    Stranger(Family(mixture=True, mlp="gelu")),
]


def right_choices(config: dict[str, Any], shapes: Shapes, mistake: str = "") -> dict[str, Any]:
    """With a mistake, if one is named."""

    def has(word: str) -> bool:
        return any(word in name.split(".") for name in shapes)

    biased = any(name.endswith("norm.bias") for name in shapes)
    before, after = has("input_layernorm"), has("post_feedforward_layernorm")
    gated, activation = has("gate_proj") or has("gate_up_proj"), config["hidden_act"]
    wide = [shape for name, shape in shapes.items() if name.endswith("q_norm.weight")]
    qk_norm = None if not wide else "head" if wide[0] == (config["head_dim"],) else "row"
    positions = "learned" if has("embed_positions") else "rotary"
    match mistake:
        case "family-post-attention-is-after":
            after = has("post_attention_layernorm")
        case "family-around-is-after":
            before = before and not after
        case "family-after-missed":
            after = False
        case "family-norm-always-rms":
            biased = False
        case "family-norm-by-any-bias":
            biased = any(name.endswith(".bias") for name in shapes)
        case "family-qk-missed":
            qk_norm = None
        case "family-qk-always-head":
            qk_norm = (wide and "head") or None
        case "family-qk-by-kv-heads":
            qk_norm = qk_norm and (
                "head" if config["num_key_value_heads"] < config["num_attention_heads"] else "row"
            )
        case "family-gate-by-activation":
            gated = activation == "silu"
        case "family-gate-always-silu":
            activation = "silu"
        case "family-fused-gate-missed":
            gated = has("gate_proj")
        case "family-router-is-a-gate":
            gated = gated or has("gate")
        case "family-learned-by-config":
            positions = "learned" if "max_position_embeddings" in config else "rotary"
    return {
        "positions": positions,
        "norm": "layer" if biased else "rms",
        "norm_at": "around" if before and after else "after" if after else "before",
        "qk_norm": qk_norm,
        "mlp": "gelu" if not gated else "swiglu" if activation == "silu" else "geglu",
        "mixture": has("experts") and mistake != "family-experts-missed",
    }


@cache
def announced() -> list[tuple[dict[str, Any], Shapes]]:
    """What the files of each case say."""
    return [stranger.announced() for stranger in CASES]


def grade_family(choices: Callable) -> None:
    judge(choices, announced(), right_choices, variants(right_choices, MISTAKES), SAYS, show=show)


def show(config: dict[str, Any], shapes: Shapes) -> str:
    """The call, with what is in a layer by the last words of its names."""
    parts = [name.split(".0.", 1)[1] for name in shapes if ".layers.0." in name]
    few = ", ".join(
        part.removesuffix(".weight") for part in parts if "experts.1" not in part and "experts.2" not in part
    )
    return f"choices(config of {config['hidden_act']!r}, layer 0: {few})"


EXERCISES = [
    Exercise("p2e10_family", ("choices",), grade_family),
]
