SEEN = "torch.arange(num_keys)[None, :] <= positions[:, None]"
RIGHT = {SEEN: "torch.ones(num_queries, num_keys).tril(num_keys - num_queries) > 0"}
WRONG = {
    "mask-not-bool": [
        {SEEN: f"({SEEN}).float()"},
        {SEEN: f'torch.zeros(num_queries, num_keys).masked_fill(~({SEEN}), float("-inf"))'},
    ],
    # A sliding window, as some models have it. This one does not.
    "mask-hides-too-much": {SEEN: f"({SEEN}).triu(num_keys - num_queries - 3)"},
    "mask-shows-too-much": {"positions[:, None]": "positions[:, None] + 2"},
}
