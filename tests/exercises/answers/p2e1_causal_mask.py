import torch


def old_then_new(num_queries, num_keys):
    old = torch.ones(num_queries, num_keys - num_queries) > 0
    return torch.cat([old, torch.ones(num_queries, num_queries).tril() > 0], dim=-1)


SEEN = "torch.arange(num_keys)[None, :] <= positions[:, None]"
RIGHT = [old_then_new]
WRONG = {
    "mask-not-bool": [
        {SEEN: f"({SEEN}).float()"},
        {SEEN: f'torch.zeros(num_queries, num_keys).masked_fill(~({SEEN}), float("-inf"))'},
    ],
    # A sliding window, as some models have it. This one does not.
    "mask-hides-too-much": {SEEN: f"({SEEN}).triu(num_keys - num_queries - 3)"},
    "mask-shows-too-much": {"positions[:, None]": "positions[:, None] + 2"},
}
