"""Answers to p1e5_kv_bytes: right ones, and mistakes by the diagnosis they must get."""

import numpy as np


def kv_step_by_step(config, size=2):
    if "head_dim" in config:
        numbers = config["head_dim"]
    else:
        numbers = config["hidden_size"] / config["num_attention_heads"]
    if "num_key_value_heads" in config:
        numbers *= config["num_key_value_heads"]
    else:
        numbers *= config["num_attention_heads"]
    key_and_value = numbers + numbers
    return int(key_and_value * size * config["num_hidden_layers"])


def users_by_counting(card, weights, token, n):
    left = card - weights
    if left <= 0:
        return 0
    tokens = left // token
    return tokens // n


def users_as_float(card, weights, token, n):
    return np.floor(max(0, card - weights) / (token * n))


LEFT, EACH = "(card_bytes - weight_bytes)", "(bytes_per_token * tokens_per_user)"
FIT = f"max(0, card_bytes - weight_bytes) // {EACH}"
RIGHT = [(kv_step_by_step, users_by_counting)]
WRONG = {
    "kv-only-one-of-two": {"return 2 * config": "return config"},
    "kv-query-heads": {"* kv_heads *": "* heads *"},
    "kv-one-layer": {' * config["num_hidden_layers"]': ""},
    "kv-head-dim-ignored": {'config.get("head_dim") or ': ""},
    "kv-width-over-kv-heads": {"// heads": "// kv_heads"},
    "kv-whole-width": {"* kv_heads *": "* heads *", 'config.get("head_dim") or ': ""},
    "kv-always-two-bytes": {"* bytes_per_number": "* 2"},
    "kv-other-default": {"bytes_per_number: int = 2": "bytes_per_number: int = 4"},
    "wrong-signature": {"bytes_per_number: int = 2": "bytes_per_number: int"},
    "kv-heads-missing": {'config.get("num_key_value_heads") or heads': 'config["num_key_value_heads"]'},
    "users-in-parts": {FIT: f"{LEFT} / {EACH}"},
    "users-as-float": {"users_that_fit": users_as_float},
    "users-rounded": {FIT: f"max(0, round({LEFT} / {EACH}))"},
    "users-rounded-up": {FIT: f"max(0, -(-{LEFT} // {EACH}))"},
    "users-weights-forgotten": {" - weight_bytes": ""},
    "users-below-zero": [{FIT: f"{LEFT} // {EACH}"}, {FIT: f"int({LEFT} / {EACH})"}],
    "wrong-result": {"max(0,": "max(1,"},
    "users-of-one-token": {" * tokens_per_user": ""},
    "changes-its-input": {
        'config.get("num_key_value_heads") or heads': 'config.setdefault("num_key_value_heads", heads)'
    },
}
