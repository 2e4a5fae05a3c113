"""Grader of KV bytes a token, and of the users that fit."""

import random
from collections.abc import Callable

from exercises.grading import Diagnoses, Exercise, NotYet, call, guard
from exercises.judging.judge import judge
from exercises.judging.slips import slips
from phase1_tokens_embeddings.weights import kv_bytes_per_token

LLAMA3 = dict(num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, hidden_size=4096)
GPT2 = dict(num_hidden_layers=12, num_attention_heads=12, hidden_size=768)
QWEN3 = dict(
    num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8, hidden_size=1024, head_dim=128
)
QWEN3_4B = dict(
    num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8, hidden_size=2560, head_dim=128
)  # here all heads together are not as wide as the model
LLAMA2 = dict(num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=32, hidden_size=4096)


def _kv(config: dict, size: int = 2) -> int:
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads", heads)
    head_dim = config.get("head_dim", config["hidden_size"] // heads)
    return 2 * config["num_hidden_layers"] * kv_heads * head_dim * size


def _right_kv(config: dict, size: int = 2) -> int:
    heads = config["num_attention_heads"]
    return kv_bytes_per_token(
        config["num_hidden_layers"],
        config.get("num_key_value_heads", heads),
        config.get("head_dim", config["hidden_size"] // heads),
        size,
    )


QUERY_HEADS = {"* kv_heads *": "* heads *"}
NO_HEAD_DIM = {'config.get("head_dim", config["hidden_size"] // heads)': 'config["hidden_size"] // heads'}
KV = {
    "kv-only-one-of-two": {"return 2 *": "return"},
    "kv-query-heads": QUERY_HEADS,
    "kv-one-layer": {'config["num_hidden_layers"] * ': ""},
    "kv-head-dim-ignored": NO_HEAD_DIM,
    "kv-width-over-kv-heads": {"// heads": "// kv_heads"},
    "kv-whole-width": QUERY_HEADS | NO_HEAD_DIM,
    "kv-always-two-bytes": {"* size": "* 2"},
    "kv-other-default": ({"size: int = 2": "size: int = 4"}, {"size: int = 2": "size: int = 1"}),
}
SAYS = Diagnoses.of("p1e5_kv_bytes")
USERS = {
    "users-in-parts": lambda card, weights, token, n: (card - weights) / (token * n),
    "users-rounded": lambda card, weights, token, n: max(0, round((card - weights) / (token * n))),
    "users-rounded-up": lambda card, weights, token, n: max(0, -(-(card - weights) // (token * n))),
    "users-weights-forgotten": lambda card, weights, token, n: card // (token * n),
    "users-below-zero": (
        lambda card, weights, token, n: (card - weights) // (token * n),
        lambda card, weights, token, n: int((card - weights) / (token * n)),
    ),
    "users-of-one-token": lambda card, weights, token, n: max(0, card - weights) // token,
}


def grade_kv_bytes(kv_bytes: Callable, users_that_fit: Callable) -> None:
    try:
        guard(kv_bytes, dict(GPT2), 2, tried=f"kv_bytes({GPT2}, 2)")
    except NotYet as no:
        if no.diagnosis != "raises" or "num_key_value_heads" not in no.says:
            raise
        raise SAYS.no("kv-heads-missing", f"kv_bytes({GPT2}, 2)", "a KeyError", 36_864) from None
    rng = random.Random(4)
    cases: list[tuple] = [
        (LLAMA3, 2),
        (LLAMA3,),
        (GPT2, 2),
        (QWEN3, 2),
        (QWEN3_4B, 2),
        (LLAMA2, 1),
        (LLAMA3, 4),
    ]
    for _ in range(10):
        heads = rng.choice([4, 8, 16])
        config = dict(
            num_hidden_layers=rng.randrange(1, 50), num_attention_heads=heads, hidden_size=heads * 48
        )
        config["num_key_value_heads"] = heads // rng.choice([1, 2, 4])
        cases.append((config, rng.choice([1, 2, 4])))
    judge(
        kv_bytes,
        cases,
        _right_kv,
        slips(_kv, KV),
        SAYS,
        show=lambda *args: f"kv_bytes({', '.join(map(str, args))})",
    )

    users = [
        (24 * 10**9, 16_060_522_496, 131_072, 8_192),
        (16 * 10**9, 16_060_522_496, 131_072, 8_192),
        (10_000, 2_000, 10, 100),
        (10_999, 2_000, 10, 100),
        (100, 100, 10, 1),
        (100, 100, 1, 1),
        (101, 100, 1, 1),
    ]
    users += [
        (rng.randrange(10**6), rng.randrange(10**6), rng.randrange(1, 9), rng.randrange(1, 999))
        for _ in range(20)
    ]
    judge(
        users_that_fit,
        users,
        lambda card, weights, token, n: max(0, card - weights) // (token * n),
        USERS,
        SAYS,
        show=lambda *args: f"users_that_fit({', '.join(f'{a:,}' for a in args)})".replace(",", "_").replace(
            "_ ", ", "
        ),
    )
    if isinstance(found := call(users_that_fit, *users[0]), float):
        raise SAYS.no("users-as-float", "users_that_fit(...)", found, int(found))


EXERCISES = [
    Exercise("p1e5_kv_bytes", ("kv_bytes", "users_that_fit"), grade_kv_bytes),
]
