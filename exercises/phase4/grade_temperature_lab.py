"""Grader of debugging lab 4b: one value a request becomes one value a row."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from exercises.grading import NotYet, show
from exercises.judging.judge import When
from exercises.judging.solutions import Solution

MENDS_IT, REPLACES_FIRST = [0.8, 0.8, 1, 1, 1, 2.7], [0, 0, 1, 1, 1, 2]


def _of_nobody(
    got: Any, want: Any, x: Tensor, ends: Tensor, replace_from: int = 0, replace_to: int = 0
) -> bool:
    """Whether there are numbers that no request has, whole or not."""
    known = {*x.tolist(), *x.long().tolist(), *x.round().tolist(), float(replace_to), 0.0}
    return len(got) == len(want) and any(value not in known for value in got[1:])


REPLACED = "torch.where(x == replace_from, replace_to, x).to(x.dtype)"
ROWS, VALUES = "values.repeat_interleave(num_tokens)", "    values = "
LAB = Solution(
    "p4d2_temperature_from_nowhere",
    expand_batch_to_tokens={
        "nothing-arrives": {ROWS: f"torch.zeros_like({ROWS})"},
        "other-kind-of-number": {".to(x.dtype)": ".float()"},
        "nothing-replaced": {REPLACED: "x"},
        "always-replaced": {REPLACED: "torch.full_like(x, replace_to)"},
        "ends-as-lengths": {ROWS: "values.repeat_interleave(cu_num_tokens)"},
        "one-row-late": {
            ROWS: "values[torch.bucketize(torch.arange(int(cu_num_tokens[-1])), cu_num_tokens)]"
        },
        "no-whole-numbers": (  # cut off, or rounded
            {VALUES: f"    x = x.long().to(x.dtype)\n{VALUES}"},
            {VALUES: f"    x = x.round()\n{VALUES}"},
        ),
        "numbers-of-nobody": When(_of_nobody),
    },
    colleague={},
)


def _with_kind(result: Any) -> list:
    """The kind of number first, then the numbers: both must be right."""
    if not isinstance(result, Tensor) or result.dim() != 1:
        raise NotYet("wrong-type", f"Return a tensor with one dimension, not {show(result, 60)}.")
    return [str(result.dtype).removeprefix("torch."), *result.tolist()]


CASES = [
    (torch.tensor([0.8, 0.0, 2.7]), torch.tensor([2, 5, 6]), 0, 1),
    (torch.tensor([0.8, 0.0, 2.7]), torch.tensor([2, 5, 6], dtype=torch.int32), 0, 1),
    (torch.tensor([50, 3, 4096], dtype=torch.int32), torch.tensor([4, 5, 8]), 0, 0),
    (torch.tensor([50, 3, 4096]), torch.tensor([4, 5, 8]), 0, 0),
    (torch.tensor([0.9, 1.0, 0.35, 0.9]), torch.tensor([1, 2, 3, 4]), 0, 0),
    (torch.tensor([0.0]), torch.tensor([5]), 0, 1),
    (torch.tensor([1.3, 0.6, 0.0, 0.0, 0.2]), torch.tensor([0, 3, 3, 7, 8]), 0, 1),  # two without drafts
    (torch.tensor([0.0, 0.5]), torch.tensor([3, 4]), 0, 0),
    (torch.tensor([-1.0, 0.5]), torch.tensor([3, 4]), -1, 2),
    (torch.tensor([0.0, 1.0, 0.5]), torch.tensor([3, 4, 5])),  # nothing said: nothing replaced
]


@LAB.grader
def grade_temperature(expand_batch_to_tokens: Callable, colleague: Any) -> None:
    LAB.judge("expand_batch_to_tokens", expand_batch_to_tokens, CASES, clean=_with_kind)
    _the_colleague(colleague)


def _the_colleague(numbers: Any) -> None:
    """Whether the second half of the cause is understood: whole numbers."""
    try:
        given = [float(number) for number in numbers]
    except (TypeError, ValueError):
        says = "Give a list of six temperatures."
        raise NotYet("wrong-type", says, "colleague", repr(numbers), "[...]") from None
    if given == LAB.answers["colleague"]:
        return
    diagnosis = "colleague-replaces-first" if given == REPLACES_FIRST else "colleague-other"
    if len(given) == 6 and torch.allclose(torch.tensor(given), torch.tensor(MENDS_IT)):
        diagnosis = "colleague-mends-it"
    raise LAB.says().no(diagnosis, "colleague", show(given), "six other numbers")
