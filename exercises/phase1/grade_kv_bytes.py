"""Grader of KV bytes a token, and of the users that fit."""

import random
from collections.abc import Callable

from exercises.judging.judge import Exercise

LLAMA3 = dict(num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, hidden_size=4096)
GPT2 = dict(num_hidden_layers=12, num_attention_heads=12, hidden_size=768)
QWEN3 = dict(
    num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8, hidden_size=1024, head_dim=128
)
# Heads wider than the model.
QWEN3_4B = QWEN3 | dict(num_hidden_layers=36, num_attention_heads=32, hidden_size=2560)
LLAMA2 = LLAMA3 | dict(num_key_value_heads=32)

QUERY_HEADS, NO_HEAD_DIM = {"* kv_heads *": "* heads *"}, {'config.get("head_dim") or ': ""}
LEFT, EACH = "(card_bytes - weight_bytes)", "(bytes_per_token * tokens_per_user)"
FIT = f"max(0, card_bytes - weight_bytes) // {EACH}"
EXERCISE = Exercise(
    "p1e5_kv_bytes",
    kv_bytes={
        "kv-only-one-of-two": {"return 2 * config": "return config"},
        "kv-query-heads": QUERY_HEADS,
        "kv-factor-missing": ({" * kv_heads": ""}, {" * head_dim": ""}),
        "kv-one-layer": {' * config["num_hidden_layers"]': ""},
        "kv-head-dim-ignored": NO_HEAD_DIM,
        "kv-width-over-kv-heads": {"// heads": "// kv_heads"},
        "kv-whole-width": QUERY_HEADS | NO_HEAD_DIM,
        "kv-always-two-bytes": {"* bytes_per_number": "* 2"},
        "kv-other-default": (
            {"bytes_per_number: int = 2": "bytes_per_number: int = 4"},
            {"int = 2": "int = 1"},
        ),
        "kv-heads-missing": {'config.get("num_key_value_heads") or heads': 'config["num_key_value_heads"]'},
    },
    users_that_fit={
        "users-in-parts": {FIT: f"{LEFT} / {EACH}"},
        "users-as-float": {"return max": "return 1.0 * max"},
        "users-rounded": {FIT: f"max(0, round({LEFT} / {EACH}))"},
        "users-rounded-up": {FIT: f"max(0, -(-{LEFT} // {EACH}))"},
        "users-weights-forgotten": {" - weight_bytes": ""},
        "users-below-zero": ({FIT: f"{LEFT} // {EACH}"}, {FIT: f"int({LEFT} / {EACH})"}),
        "users-of-one-token": {" * tokens_per_user": ""},
    },
)


@EXERCISE.grader
def grade_kv_bytes(kv_bytes: Callable, users_that_fit: Callable) -> None:
    rng = random.Random(4)
    cases: list[tuple] = [(GPT2, 2), (LLAMA3,), *((config, 2) for config in (LLAMA3, QWEN3, QWEN3_4B))]
    cases += [(LLAMA2, 1), (LLAMA3, 4)]
    for _ in range(10):
        heads = rng.choice([4, 8, 16])
        config = dict(
            num_hidden_layers=rng.randrange(1, 50), num_attention_heads=heads, hidden_size=heads * 48
        )
        config["num_key_value_heads"] = heads // rng.choice([1, 2, 4])
        cases.append((config, rng.choice([1, 2, 4])))
    EXERCISE.judge("kv_bytes", kv_bytes, cases)

    users = [(card * 10**9, 16_060_522_496, 131_072, 8_192) for card in (24, 16)]
    users += [(10_000, 2_000, 10, 100), (10_999, 2_000, 10, 100)]
    users += [(100, 100, 10, 1), (100, 100, 1, 1), (101, 100, 1, 1)]
    for _ in range(20):
        users.append((rng.randrange(10**6), rng.randrange(10**6), rng.randrange(1, 9), rng.randrange(1, 999)))
    EXERCISE.judge(
        "users_that_fit",
        users_that_fit,
        users,
        show=lambda *args: f"users_that_fit({', '.join(f'{a:_}' for a in args)})",
        clean=lambda n: [n, "a float"] if isinstance(n, float) else [n, "a whole number"],
        present=lambda got, want: (got[0], want[0]),
    )
