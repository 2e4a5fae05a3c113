"""Grader of debugging lab 4b: one value a request becomes one value a row."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from exercises.grading import Diagnoses, Exercise, NotYet, show
from exercises.judging.judge import When, judge
from exercises.judging.slips import slips

SAYS = Diagnoses.of("p4d2_temperature_from_nowhere")
COLLEAGUE = [1, 1, 1, 1, 1, 2]


def _expand(x: Tensor, ends: Tensor, replace_from: int = 0, replace_to: int = 0) -> Tensor:
    counts = torch.diff(ends, prepend=torch.zeros_like(ends[:1]))
    values = torch.where(x == replace_from, replace_to, x).to(x.dtype)
    return values.repeat_interleave(counts.long())


def _of_nobody(
    got: Any, want: Any, x: Tensor, ends: Tensor, replace_from: int = 0, replace_to: int = 0
) -> bool:
    """Whether there are numbers that no request has, whole or not."""
    known = {*x.tolist(), *x.long().tolist(), *x.round().tolist(), float(replace_to), 0.0}
    return len(got) == len(want) and any(value not in known for value in got[1:])


VALUES, ROWS = "torch.where(x == replace_from, replace_to, x)", "values.repeat_interleave(counts.long())"
MISTAKES = {
    "nothing-arrives": {ROWS: f"torch.zeros_like({ROWS})"},
    "other-kind-of-number": {".to(x.dtype)": ".float()"},
    "nothing-replaced": {VALUES: "x"},
    "always-replaced": {VALUES: "torch.full_like(x, replace_to)"},
    "ends-as-lengths": {"counts.long()": "ends.long()"},
    "one-row-late": {ROWS: "values[torch.bucketize(torch.arange(int(ends[-1])), ends.long())]"},
    # Cut off, or rounded.
    "no-whole-numbers": (
        {"values =": "x = x.long().to(x.dtype)\n    values ="},
        {"values =": "x = x.round()\n    values ="},
    ),
    "numbers-of-nobody": When(_of_nobody),
}


def _with_kind(result: Any) -> list:
    """The kind of number first, then the numbers: both must be right."""
    if not isinstance(result, Tensor) or result.dim() != 1:
        raise NotYet("wrong-type", f"A row of numbers, a tensor, is asked for; {show(result, 60)} came back.")
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


def grade_temperature(expand_batch_to_tokens: Callable, colleague: Any) -> str:
    def as_call(x, ends, replace_from=0, replace_to=0):
        kind = str(x.dtype).removeprefix("torch.")
        values = show([round(value, 4) for value in x.tolist()])
        return f"x = {values} ({kind}), cu_num_tokens = {ends.tolist()}, {replace_from} becomes {replace_to}"

    judge(
        expand_batch_to_tokens, CASES, _expand, slips(_expand, MISTAKES), SAYS, show=as_call, clean=_with_kind
    )  # fmt: skip
    _the_colleague(colleague)
    return f"{len(CASES)} steps: temperatures, top-p and top-k, with and without drafts."


def _the_colleague(numbers: Any) -> None:
    """Whether the second half of the cause is understood: whole numbers."""
    try:
        given = [float(number) for number in numbers]
    except (TypeError, ValueError):
        says = "A list of six temperatures is asked for."
        raise NotYet("wrong-type", says, "colleague", repr(numbers), "[...]") from None
    if given == COLLEAGUE:
        return
    exact = torch.tensor([0.8, 1.0, 2.7]).repeat_interleave(torch.tensor([2, 3, 1])).tolist()
    if len(given) == 6 and torch.allclose(torch.tensor(given), torch.tensor(exact)):
        diagnosis = "colleague-mends-it"
    elif given == [0, 0, 1, 1, 1, 2]:
        diagnosis = "colleague-replaces-first"
    else:
        diagnosis = "colleague-other"
    raise SAYS.no(diagnosis, "colleague", show(given), "other numbers")


EXERCISES = [
    Exercise("p4d2_temperature_from_nowhere", ("expand_batch_to_tokens", "colleague"), grade_temperature),
]
