"""Grader of the row of a family, read off its files."""

from collections.abc import Callable
from functools import cache
from typing import Any

from exercises.judging.judge import Exercise
from exercises.phase2.unknown_models import Shapes, UnknownModel
from phase1_tokens_embeddings.weights.families import Family

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

NORM = '"layer" if any(name.endswith("norm.bias") for name in shapes) else "rms"'
WIDTH, FEWER = (
    'widths[0] == config["head_dim"]',
    'config["num_key_value_heads"] != config["num_attention_heads"]',
)
GATED = '"gate_proj" in parts or "gate_up_proj" in parts'
EXERCISE = Exercise(
    "p2e10_family",
    choices={
        "family-post-attention-is-after": {'"post_feedforward_layernorm"': '"post_attention_layernorm"'},
        "family-around-is-after": {'"around" if after and before else "after"': '"after"'},
        "family-after-missed": {'"post_feedforward_layernorm" in parts': "False"},
        "family-norm-always-rms": {NORM: '"rms"'},
        "family-norm-by-any-bias": {'"norm.bias"': '".bias"'},
        "family-qk-missed": {'"q_norm.weight"': '"q_layernorm.weight"'},
        "family-qk-always-head": {f'"head" if {WIDTH} else "row"': '"head"'},
        "family-qk-by-kv-heads": {WIDTH: FEWER},
        "family-gate-by-activation": {GATED: 'config["hidden_act"] == "silu"'},
        "family-gate-always-silu": {'"swiglu" if config["hidden_act"] == "silu" else "geglu"': '"swiglu"'},
        "family-fused-gate-missed": {' or "gate_up_proj" in parts': ""},
        "family-router-is-a-gate": {GATED: f'"gate" in parts or {GATED}'},
        "family-experts-missed": {'"experts" in parts': "False"},
        "family-learned-by-config": {'"embed_positions" in parts': '"max_position_embeddings" in config'},
    },
)


@cache
def announced() -> list[tuple[dict[str, Any], Shapes]]:
    """What the files of each case say."""
    return [model.announced() for model in CASES]


@EXERCISE.grader
def grade_family(choices: Callable) -> None:
    EXERCISE.judge("choices", choices, announced(), show=show)


def show(config: dict[str, Any], shapes: Shapes) -> str:
    """The call, with what is in a layer by the last words of its names."""
    parts = [name.split(".0.", 1)[1] for name in shapes if ".layers.0." in name]
    few = ", ".join(
        part.removesuffix(".weight") for part in parts if "experts.1" not in part and "experts.2" not in part
    )
    return f"choices(config of {config['hidden_act']!r}, layer 0: {few})"
