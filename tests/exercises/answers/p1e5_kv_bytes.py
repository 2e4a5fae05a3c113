"""Answers to p1e5_kv_bytes: right ones, and mistakes by the diagnosis they must get."""


def kv(config, bytes_per_number=2):
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim", config["hidden_size"] // heads)
    return (
        2
        * config["num_hidden_layers"]
        * config.get("num_key_value_heads", heads)
        * head_dim
        * bytes_per_number
    )


def kv_step_by_step(config, bytes_per_number=2):
    if "head_dim" in config:
        numbers = config["head_dim"]
    else:
        numbers = config["hidden_size"] / config["num_attention_heads"]
    if "num_key_value_heads" in config:
        numbers *= config["num_key_value_heads"]
    else:
        numbers *= config["num_attention_heads"]
    key_and_value = numbers + numbers
    return int(key_and_value * bytes_per_number * config["num_hidden_layers"])


def users(card_bytes, weight_bytes, bytes_per_token, tokens_per_user):
    return max(0, (card_bytes - weight_bytes) // (bytes_per_token * tokens_per_user))


def users_by_counting(card_bytes, weight_bytes, bytes_per_token, tokens_per_user):
    left = card_bytes - weight_bytes
    if left <= 0:
        return 0
    tokens = left // bytes_per_token
    return tokens // tokens_per_user


def query_heads(config, bytes_per_number=2):
    heads = config["num_attention_heads"]
    return (
        2
        * config["num_hidden_layers"]
        * heads
        * config.get("head_dim", config["hidden_size"] // heads)
        * bytes_per_number
    )


def over_kv_heads(config, bytes_per_number=2):
    kv_heads = config.get("num_key_value_heads", config["num_attention_heads"])
    head_dim = config.get("head_dim", config["hidden_size"] // kv_heads)
    return 2 * config["num_hidden_layers"] * kv_heads * head_dim * bytes_per_number


def rounded_up(card_bytes, weight_bytes, bytes_per_token, tokens_per_user):
    import math

    return max(0, math.ceil((card_bytes - weight_bytes) / (bytes_per_token * tokens_per_user)))


def users_as_float(card_bytes, weight_bytes, bytes_per_token, tokens_per_user):
    import numpy as np

    return np.floor(max(0, card_bytes - weight_bytes) / (bytes_per_token * tokens_per_user))


def kv_fills_in_what_is_missing(config, bytes_per_number=2):
    config.setdefault("num_key_value_heads", config["num_attention_heads"])
    return kv(config, bytes_per_number)


RIGHT = [(kv, users), (kv, users_as_float), (kv_step_by_step, users_by_counting)]
WRONG = {
    "kv-only-one-of-two": (lambda config, bytes_per_number=2: kv(config, bytes_per_number) // 2, users),
    "kv-query-heads": (query_heads, users),
    "kv-one-layer": (
        lambda config, bytes_per_number=2: kv(config, bytes_per_number) // config["num_hidden_layers"],
        users,
    ),
    "kv-head-dim-ignored": (
        lambda config, bytes_per_number=2: kv(
            {k: v for k, v in config.items() if k != "head_dim"}, bytes_per_number
        ),
        users,
    ),
    "kv-width-over-kv-heads": (over_kv_heads, users),
    "kv-always-two-bytes": (lambda config, bytes_per_number=2: kv(config), users),
    "kv-heads-missing": (
        lambda config, bytes_per_number=2: kv(
            {**config, "num_key_value_heads": config["num_key_value_heads"]}, bytes_per_number
        ),
        users,
    ),
    "users-in-parts": (
        kv,
        lambda card_bytes, weight_bytes, bytes_per_token, tokens_per_user: (
            (card_bytes - weight_bytes) / bytes_per_token / tokens_per_user
        ),
    ),
    "users-rounded": (
        kv,
        lambda card_bytes, weight_bytes, bytes_per_token, tokens_per_user: max(
            0, round((card_bytes - weight_bytes) / (bytes_per_token * tokens_per_user))
        ),
    ),
    "users-rounded-up": (kv, rounded_up),
    "users-weights-forgotten": (
        kv,
        lambda card_bytes, weight_bytes, bytes_per_token, tokens_per_user: (
            card_bytes // (bytes_per_token * tokens_per_user)
        ),
    ),
    "users-below-zero": [
        (
            kv,
            lambda card_bytes, weight_bytes, bytes_per_token, tokens_per_user: (
                (card_bytes - weight_bytes) // (bytes_per_token * tokens_per_user)
            ),
        ),
        (
            kv,
            lambda card_bytes, weight_bytes, bytes_per_token, tokens_per_user: int(
                (card_bytes - weight_bytes) / (bytes_per_token * tokens_per_user)
            ),
        ),
    ],
    "users-of-one-token": (
        kv,
        lambda card_bytes, weight_bytes, bytes_per_token, tokens_per_user: max(
            0, (card_bytes - weight_bytes) // bytes_per_token
        ),
    ),
    "changes-its-input": (kv_fills_in_what_is_missing, users),
}
