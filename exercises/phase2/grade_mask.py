"""Grader of the causal mask."""

from collections.abc import Callable

import torch
from torch import Tensor

from exercises.grading import Diagnoses, Exercise, guard
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
SAYS = Diagnoses.of("p2e1_causal_mask")


def grade_mask(may_see: Callable) -> None:
    sizes = [(3, 3), (2, 5), (1, 1), (1, 5), (4, 4), (3, 7), (8, 8), (5, 6), (16, 40)]
    first = guard(may_see, 2, 5)
    if isinstance(first, Tensor) and first.dtype != torch.bool:
        raise SAYS.no("mask-not-bool", "may_see(2, 5)", first, right_mask(2, 5))
    judge(may_see, sizes, right_mask, MASKS, SAYS, show=lambda n, m: f"may_see({n}, {m})")


EXERCISES = [
    Exercise("p2e1_causal_mask", ("may_see",), grade_mask),
]
