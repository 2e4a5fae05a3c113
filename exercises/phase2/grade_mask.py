"""Grader of the causal mask."""

from collections.abc import Callable

import torch
from torch import Tensor

from exercises.grading import Diagnoses, guard
from exercises.judging.judge import When, judge


def right_mask(n: int, m: int) -> Tensor:
    """Token for token: query i stands at position m - n + i."""
    return torch.tensor([[key <= m - n + i for key in range(m)] for i in range(n)])


MASKS = {
    "mask-blind-to-itself": lambda n, m: torch.ones(n, m, dtype=torch.bool).tril(m - n - 1),
    "mask-sees-the-next": lambda n, m: torch.ones(n, m, dtype=torch.bool).tril(m - n + 1),
    "mask-top-left": lambda n, m: torch.ones(n, m, dtype=torch.bool).tril(),
    "mask-upside-down": lambda n, m: ~right_mask(n, m),
    "mask-looks-ahead": lambda n, m: torch.ones(n, m, dtype=torch.bool).triu(m - n),
    "mask-turned": lambda n, m: right_mask(n, m).T.contiguous(),
    "mask-forgets-old-keys": lambda n, m: torch.ones(n, n, dtype=torch.bool).tril(),
    "mask-hides-old-keys": lambda n, m: torch.cat(
        [torch.zeros(n, m - n), torch.ones(n, n).tril()], dim=1
    ).bool(),
    "mask-of-all-tokens": lambda n, m: torch.ones(m, m, dtype=torch.bool).tril(),
    "mask-sees-all": lambda n, m: torch.ones(n, m, dtype=torch.bool),
    "mask-hides-too-much": When(lambda got, want, n, m: not (got & ~want).any()),
    "mask-shows-too-much": When(lambda got, want, n, m: not (want & ~got).any()),
}
MASKS_SAYS = {
    "mask-blind-to-itself": "Off by one: a token does not see itself. It may look at itself and at all before it.",
    "mask-sees-the-next": "Off by one: each token sees the one after it. When the model writes, that one does not exist yet.",
    "mask-top-left": "The first query was taken for token 0. The queries are the last N of M tokens: the first stands at M - N.",
    "mask-upside-down": "Yes and no are exchanged: True is to say that the query may look.",
    "mask-looks-ahead": "Each token sees itself and what comes after it. It is the other way round.",
    "mask-turned": "Rows and columns are exchanged: a row is a query, a column a key.",
    "mask-forgets-old-keys": "The table has no columns for the older keys. There are M keys, whatever the number of queries.",
    "mask-hides-old-keys": "The new tokens see only each other. They are to look at the older keys as well, all of them.",
    "mask-of-all-tokens": "There is a row for every token. Only the last N of them ask.",
    "mask-sees-all": "Every query sees every key, the future ones included.",
    "mask-hides-too-much": "Keys are hidden that the query may see. It looks at itself and at all before it, however far back.",
    "mask-shows-too-much": "A query sees keys that come after it.",
}
NOT_BOOL = Diagnoses({"mask-not-bool": "The table holds numbers. It is to hold True and False: torch.bool."})


def grade_mask(may_see: Callable) -> None:
    sizes = [(3, 3), (2, 5), (1, 1), (1, 5), (4, 4), (3, 7), (8, 8), (5, 6), (16, 40)]
    first = guard(may_see, 2, 5)
    if isinstance(first, Tensor) and first.dtype != torch.bool:
        raise NOT_BOOL.no("mask-not-bool", "may_see(2, 5)", first, right_mask(2, 5))
    judge(may_see, sizes, right_mask, MASKS, MASKS_SAYS, show=lambda n, m: f"may_see({n}, {m})")
