"""Grader of the row of a family, read off its files."""

from collections.abc import Callable
from functools import cache
from typing import Any

from exercises.grading import Diagnoses, Exercise
from exercises.judging.judge import judge
from exercises.judging.slips import slips
from exercises.phase2.unknown_models import Shapes, UnknownModel
from phase1_tokens_embeddings.weights.families import Family

SAYS = Diagnoses.of("p2e10_family")
CASES = [
    UnknownModel(Family()),
    UnknownModel(Family(norm="layer", mlp="gelu"), biases=True),
    UnknownModel(Family(positions="learned", norm="layer", mlp="gelu")),
    UnknownModel(Family(qk_norm="head")),
    UnknownModel(Family(norm_at="after", qk_norm="row"), num_kv_heads=4),
    UnknownModel(Family(norm_at="around", mlp="geglu"), biases=True),
    UnknownModel(
        Family(norm_at="around", qk_norm="head", mlp="geglu"), num_heads=2, num_kv_heads=1, head_dim=16
    ),
    UnknownModel(Family(), fused=True, num_kv_heads=4),
    UnknownModel(Family(mlp="geglu"), fused=True),
    UnknownModel(Family(qk_norm="row", mixture=True)),
    UnknownModel(Family(qk_norm="head", mixture=True)),
    UnknownModel(Family(mixture=True, mlp="gelu")),
]


def right_choices(config: dict[str, Any], shapes: Shapes) -> dict[str, Any]:
    def has(word: str) -> bool:
        return any(word in name.split(".") for name in shapes)

    biased = any(name.endswith("norm.bias") for name in shapes)
    before, after = has("input_layernorm"), has("post_feedforward_layernorm")
    gated, activation = has("gate_proj") or has("gate_up_proj"), config["hidden_act"]
    wide = [shape for name, shape in shapes.items() if name.endswith("q_norm.weight")]
    return {
        "positions": "learned" if has("embed_positions") else "rotary",
        "norm": "layer" if biased else "rms",
        "norm_at": "around" if before and after else "after" if after else "before",
        "qk_norm": None if not wide else "head" if wide[0] == (config["head_dim"],) else "row",
        "mlp": "gelu" if not gated else "swiglu" if activation == "silu" else "geglu",
        "mixture": has("experts"),
    }


MISTAKES = {
    "family-post-attention-is-after": {"post_feedforward_layernorm": "post_attention_layernorm"},
    "family-around-is-after": {"before and after": "False"},
    "family-after-missed": {'has("post_feedforward_layernorm")': "False"},
    "family-norm-always-rms": {'"layer" if biased else "rms"': '"rms"'},
    "family-norm-by-any-bias": {'"norm.bias"': '".bias"'},
    "family-qk-missed": {"None if not wide else": "None and"},
    "family-qk-always-head": {'"head" if wide[0] == (config["head_dim"],) else "row"': '"head"'},
    "family-qk-by-kv-heads": {
        'wide[0] == (config["head_dim"],)': 'config["num_key_value_heads"] < config["num_attention_heads"]'
    },
    "family-gate-by-activation": {
        'has("gate_proj") or has("gate_up_proj")': 'config["hidden_act"] == "silu"'
    },
    "family-gate-always-silu": {'config["hidden_act"]': '"silu"'},
    "family-fused-gate-missed": {' or has("gate_up_proj")': ""},
    "family-router-is-a-gate": {'has("gate_up_proj")': 'has("gate_up_proj") or has("gate")'},
    "family-experts-missed": {'has("experts")': "False"},
    "family-learned-by-config": {'has("embed_positions")': '"max_position_embeddings" in config'},
}


@cache
def announced() -> list[tuple[dict[str, Any], Shapes]]:
    """What the files of each case say."""
    return [model.announced() for model in CASES]


def grade_family(choices: Callable) -> None:
    judge(choices, announced(), right_choices, slips(right_choices, MISTAKES), SAYS, show=show)


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
