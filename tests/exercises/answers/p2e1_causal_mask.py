"""Answers to p2e1_causal_mask: right ones, and mistakes by the diagnosis they must get."""

import torch


def in_loops(num_queries, num_keys):
    table = torch.zeros(num_queries, num_keys, dtype=torch.bool)
    for i in range(num_queries):
        for j in range(num_keys):
            if j <= num_keys - num_queries + i:
                table[i, j] = True
    return table


def old_then_new(num_queries, num_keys):
    old = torch.ones(num_queries, num_keys - num_queries) > 0
    return torch.cat([old, torch.ones(num_queries, num_queries).tril() > 0], dim=-1)


SEEN = "torch.arange(num_keys)[None, :] <= positions[:, None]"
RIGHT = [in_loops, old_then_new]
WRONG = {
    "mask-not-bool": [
        {SEEN: f"({SEEN}).float()"},
        {SEEN: f'torch.zeros(num_queries, num_keys).masked_fill(~({SEEN}), float("-inf"))'},
    ],
    # A sliding window, as some models have it. This one does not.
    "mask-hides-too-much": {SEEN: f"({SEEN}).triu(num_keys - num_queries - 3)"},
    "mask-shows-too-much": {"positions[:, None]": "positions[:, None] + 2"},
}
