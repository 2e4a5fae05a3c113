"""Answers to p2e1_causal_mask: right ones, and mistakes by the diagnosis they must get."""

import torch

from tests.exercises.changed import changed


def in_loops(num_queries, num_keys):
    table = torch.zeros(num_queries, num_keys, dtype=torch.bool)
    for i in range(num_queries):
        for j in range(num_keys):
            if j <= num_keys - num_queries + i:
                table[i, j] = True
    return table


def by_tril(num_queries, num_keys):
    return torch.ones(num_queries, num_keys, dtype=torch.bool).tril(diagonal=num_keys - num_queries)


def last_rows(num_queries, num_keys):
    """The mask of all tokens, of which the last rows are wanted."""
    everything = ~torch.triu(torch.ones(num_keys, num_keys), diagonal=1).bool()
    return everything[-num_queries:]


def old_then_new(num_queries, num_keys):
    old = torch.ones(num_queries, num_keys - num_queries) > 0
    return torch.cat([old, torch.ones(num_queries, num_queries).tril() > 0], dim=-1)


def by_positions(num_queries, num_keys):
    positions = torch.arange(num_keys - num_queries, num_keys)
    return torch.arange(num_keys) <= positions[:, None]


def turned(num_queries, num_keys):
    positions = torch.arange(num_keys - num_queries, num_keys)
    return torch.arange(num_keys)[:, None] <= positions[None, :]


def hides_old(num_queries, num_keys):
    table = torch.zeros(num_queries, num_keys, dtype=torch.bool)
    table[:, -num_queries:] = torch.ones(num_queries, num_queries).tril().bool()
    return table


def everything(num_queries, num_keys):
    return torch.full((num_queries, num_keys), True)


RIGHT = [in_loops, by_tril, last_rows, old_then_new]
WRONG = {
    "mask-blind-to-itself": changed(by_positions, {"<=": "<"}),
    "mask-sees-the-next": changed(by_positions, {"positions[:, None]": "positions[:, None] + 1"}),
    "mask-top-left": changed(by_tril, {"num_keys - num_queries": "0"}),
    # True where attention is forbidden, as in torch.nn.MultiheadAttention.
    "mask-upside-down": lambda num_queries, num_keys: torch.triu(
        torch.ones(num_queries, num_keys, dtype=torch.bool), diagonal=num_keys - num_queries + 1
    ),
    "mask-looks-ahead": changed(by_positions, {"<=": ">="}),
    "mask-turned": turned,
    "mask-forgets-old-keys": lambda num_queries, num_keys: torch.ones(
        num_queries, num_queries, dtype=torch.bool
    ).tril(),
    "mask-hides-old-keys": hides_old,
    "mask-of-all-tokens": lambda num_queries, num_keys: torch.ones(num_keys, num_keys).tril().bool(),
    "mask-sees-all": everything,
    "mask-not-bool": [
        lambda num_queries, num_keys: torch.ones(num_queries, num_keys).tril(diagonal=num_keys - num_queries),
        lambda num_queries, num_keys: torch.zeros(num_queries, num_keys).masked_fill(
            ~by_tril(num_queries, num_keys), float("-inf")
        ),
    ],
    # A sliding window, as some models have it. This one does not.
    "mask-hides-too-much": lambda num_queries, num_keys: by_tril(num_queries, num_keys).triu(
        diagonal=num_keys - num_queries - 3
    ),
    "mask-shows-too-much": changed(by_tril, {"num_keys - num_queries": "num_keys - num_queries + 2"}),
}
