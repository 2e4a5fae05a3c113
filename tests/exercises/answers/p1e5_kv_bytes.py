"""Answers to p1e5_kv_bytes: right ones, and mistakes by the diagnosis they must get."""


def kv(config, size=2):
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim", config["hidden_size"] // heads)
    return 2 * config["num_hidden_layers"] * config.get("num_key_value_heads", heads) * head_dim * size


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


def users(card, weights, token, n):
    return max(0, (card - weights) // (token * n))


def users_by_counting(card, weights, token, n):
    left = card - weights
    if left <= 0:
        return 0
    tokens = left // token
    return tokens // n


def query_heads(config, size=2):
    heads = config["num_attention_heads"]
    return (
        2
        * config["num_hidden_layers"]
        * heads
        * config.get("head_dim", config["hidden_size"] // heads)
        * size
    )


def over_kv_heads(config, size=2):
    kv_heads = config.get("num_key_value_heads", config["num_attention_heads"])
    head_dim = config.get("head_dim", config["hidden_size"] // kv_heads)
    return 2 * config["num_hidden_layers"] * kv_heads * head_dim * size


def query_heads_and_no_head_dim(config, size=2):
    heads = config["num_attention_heads"]
    return 2 * config["num_hidden_layers"] * heads * (config["hidden_size"] // heads) * size


def rounded_up(card, weights, token, n):
    import math

    return max(0, math.ceil((card - weights) / (token * n)))


def users_as_float(card, weights, token, n):
    import numpy as np

    return np.floor(max(0, card - weights) / (token * n))


def kv_fills_in_what_is_missing(config, size=2):
    config.setdefault("num_key_value_heads", config["num_attention_heads"])
    return kv(config, size)


RIGHT = [(kv, users), (kv, users_as_float), (kv_step_by_step, users_by_counting)]
WRONG = {
    "kv-only-one-of-two": (lambda config, size=2: kv(config, size) // 2, users),
    "kv-query-heads": (query_heads, users),
    "kv-one-layer": (lambda config, size=2: kv(config, size) // config["num_hidden_layers"], users),
    "kv-head-dim-ignored": (
        lambda config, size=2: kv({k: v for k, v in config.items() if k != "head_dim"}, size),
        users,
    ),
    "kv-width-over-kv-heads": (over_kv_heads, users),
    "kv-whole-width": (query_heads_and_no_head_dim, users),
    "kv-always-two-bytes": (lambda config, size=2: kv(config), users),
    "kv-other-default": (lambda config, size=4: kv(config, size), users),
    "wrong-signature": (lambda config, size: kv(config, size), users),
    "kv-heads-missing": (
        lambda config, size=2: kv({**config, "num_key_value_heads": config["num_key_value_heads"]}, size),
        users,
    ),
    "users-in-parts": (kv, lambda card, weights, token, n: (card - weights) / token / n),
    "users-rounded": (kv, lambda card, weights, token, n: max(0, round((card - weights) / (token * n)))),
    "users-rounded-up": (kv, rounded_up),
    "users-weights-forgotten": (kv, lambda card, weights, token, n: card // (token * n)),
    "users-below-zero": [
        (kv, lambda card, weights, token, n: (card - weights) // (token * n)),
        (kv, lambda card, weights, token, n: int((card - weights) / (token * n))),
    ],
    "wrong-result": (kv, lambda card, weights, token, n: max(1, card - weights) // (token * n)),
    "users-of-one-token": (kv, lambda card, weights, token, n: max(0, (card - weights) // token)),
    "changes-its-input": (kv_fills_in_what_is_missing, users),
}
