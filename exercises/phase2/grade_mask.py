"""Grader of the causal mask."""

from collections.abc import Callable

import torch
from torch import Tensor

from exercises.grading import guard
from exercises.judging.judge import When
from exercises.judging.solutions import Solution

SEEN = "torch.arange(num_keys)[None, :] <= positions[:, None]"
EXERCISE = Solution(
    "p2e1_causal_mask",
    may_see={
        "mask-blind-to-itself": {"<=": "<"},
        "mask-sees-the-next": {"positions[:, None]": "positions[:, None] + 1"},
        "mask-top-left": {"(num_keys - num_queries, num_keys)": "(num_queries)"},
        # True where attention is forbidden, as in torch.nn.MultiheadAttention.
        "mask-upside-down": {"<=": ">"},
        "mask-looks-ahead": {"<=": ">="},
        "mask-turned": {"[None, :] <= positions[:, None]": "[:, None] <= positions[None, :]"},
        "mask-forgets-old-keys": {SEEN: "torch.ones(num_queries, num_queries, dtype=torch.bool).tril()"},
        "mask-hides-old-keys": {SEEN: f"({SEEN}) & (torch.arange(num_keys) >= num_keys - num_queries)"},
        "mask-of-all-tokens": {SEEN: "torch.ones(num_keys, num_keys).tril().bool()"},
        "mask-sees-all": {SEEN: "torch.full((num_queries, num_keys), True)"},
        "mask-hides-too-much": When(lambda got, want, n, m: not (got & ~want).any()),
        "mask-shows-too-much": When(lambda got, want, n, m: not (want & ~got).any()),
    },
)


@EXERCISE.grader
def grade_mask(may_see: Callable) -> None:
    first = guard(may_see, 2, 5)
    if isinstance(first, Tensor) and first.dtype != torch.bool:
        raise EXERCISE.says().no("mask-not-bool", "may_see(2, 5)", first, EXERCISE.answers["may_see"](2, 5))
    sizes = [(3, 3), (2, 5), (1, 1), (1, 5), (4, 4), (3, 7), (8, 8), (5, 6), (16, 40)]
    EXERCISE.judge("may_see", may_see, sizes)
