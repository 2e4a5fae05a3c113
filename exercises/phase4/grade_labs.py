"""Graders of debugging labs 4 and 4b: hashes of blocks that were never filled, one value a request as one value a row."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from exercises.judging.comparing import show
from exercises.judging.judge import Exercise, When
from exercises.judging.verdict import NotYet
from exercises.phase4.names_lab import play

# ---------------------------------------------------------------------- lab 4: names without contents

SEEDS = (0, 12, 24, 38, 40, 51, 56, 57, 58, 1, 2, 3)  # in the first nine the bug leaves false names
TOLD = "random requests with priorities in a small cache; each block records the tokens computed in it"

NAMES = "manager.uncache(victim.block_table, first=victim.num_computed_tokens // manager.block_size)"
FREE = "manager.free(victim.block_table)"
ALL_NAMES, BACK_TO_0 = "manager.uncache(victim.block_table)", "victim.num_computed_tokens = 0"
CONFIG = "scheduler.config, chunked_prefill=False, long_prefill_token_threshold=0"


def _other(field: str) -> When:
    return When(lambda got, want, _: got[field] != want[field])


NAMES_LAB = Exercise(
    "p4d1_names_without_blocks",
    30.0,
    preempt={
        "half-filled-block": (
            {
                "victim.num_computed_tokens // manager.block_size": "-(-victim.num_computed_tokens // manager.block_size)"
            },
            When(lambda got, want, _: bool(got["lies"]) and all(got["lies_of_half_filled"])),
        ),
        "uncached-after-free": (
            {f"{NAMES}\n    {FREE}": f"{FREE}\n    {NAMES}"},
            {NAMES: "pass", BACK_TO_0: f"{BACK_TO_0}\n    {NAMES}"},
            _other("uncached_too_late"),
        ),
        "names-without-contents": ({NAMES: "pass"}, _other("lies")),
        "caching-off": {NAMES: f"{ALL_NAMES}\n    manager.enable_prefix_caching = False"},
        "true-names-taken": (
            {NAMES: ALL_NAMES},
            {NAMES: f"{BACK_TO_0}\n    {NAMES}"},
            When(lambda got, want, _: any(a < b for a, b in zip(got["names"], want["names"]))),
        ),
        "keeps-computed": ({BACK_TO_0: "pass"}, _other("kept_computed")),
        "broken-books": ({FREE: "pass"}, _other("broken_books")),
        "victim-lost": ({"scheduler.waiting.put_back(victim)": "pass"}, _other("not_waiting")),
        "not-counted": {"victim.num_preemptions += 1": "pass"},
        "stuck": {  # no victim is in the middle of its prompt then, but a prompt larger than the budget never begins
            BACK_TO_0: f"""from dataclasses import replace

    scheduler.config = replace({CONFIG})
    {BACK_TO_0}"""
        },
    },
    lying={},
)


def _first_field(got: dict[str, Any], want: dict[str, Any]) -> tuple[str, str]:
    """The first field that differs."""
    field = next(field for field in want if got[field] != want[field])
    return f"{field}: {str(got[field])[:300]}", f"{field}: {str(want[field])[:300]}"


@NAMES_LAB.grader
def grade_names(preempt: Callable, lying: Any) -> None:
    NAMES_LAB.judge(
        "preempt",
        preempt,
        [(seed,) for seed in SEEDS],
        play=lambda preempt, seed: vars(play(seed, preempt)),
        show=lambda seed: f"{TOLD} (seed {seed})",
        present=_first_field,
    )
    known = {"other-blocks (one missing)": [3], "other-blocks": []}
    _expect_numbers(NAMES_LAB, "lying", lying, lambda them: sorted(map(int, {*them})), known, "other numbers")


def _expect_numbers(
    lab: Exercise, asked: str, given: Any, clean: Callable, known: Mapping[str, list], hidden: str
) -> None:
    """Grade a list of numbers: it shows whether the learner understands the cause.

    Args:
        known: by diagnosis, wrong lists; the last diagnosis is that of all others.
    """
    try:
        numbers = clean(given)
    except (TypeError, ValueError):
        says = "Give a list of numbers."
        raise NotYet("wrong-type", says, asked, repr(given), "[...]") from None
    if numbers != lab.answers[asked]:
        diagnosis = next((told for told, wrong in known.items() if numbers == wrong), [*known][-1])
        raise lab.says().no(diagnosis, asked, show(numbers), hidden)


# ---------------------------------------------------------------------- lab 4b: a temperature from nowhere


def _of_nobody(
    got: Any, want: Any, x: Tensor, ends: Tensor, replace_from: int = 0, replace_to: int = 0
) -> bool:
    """Whether there are numbers that no request has, whole or not."""
    known = {*x.tolist(), *x.long().tolist(), *x.round().tolist(), float(replace_to), 0.0}
    return len(got) == len(want) and any(value not in known for value in got[1:])


REPLACED = "torch.where(x == replace_from, replace_to, x).to(x.dtype)"
ROWS, VALUES = "values.repeat_interleave(num_tokens)", "    values = "
TEMPERATURE_LAB = Exercise(
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
        "uninitialised-rows": When(_of_nobody),
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


@TEMPERATURE_LAB.grader
def grade_temperature(expand_batch_to_tokens: Callable, colleague: Any) -> None:
    TEMPERATURE_LAB.judge("expand_batch_to_tokens", expand_batch_to_tokens, CASES, clean=_with_kind)
    known = {
        "colleague-mends-it": [0.8, 0.8, 1, 1, 1, 2.7],
        "colleague-replaces-first": [0, 0, 1, 1, 1, 2],
        "colleague-other": [],
    }
    _expect_numbers(
        TEMPERATURE_LAB, "colleague", colleague, lambda them: [*map(float, them)], known, "six other numbers"
    )
