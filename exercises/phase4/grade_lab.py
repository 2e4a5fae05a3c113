"""Grader of debugging lab 4: hashes of blocks that were never filled."""

from collections.abc import Callable
from typing import Any

from exercises.grading import NotYet
from exercises.judging.judge import When
from exercises.judging.solutions import Solution
from exercises.phase4.names_lab import play

SEEDS = (0, 12, 24, 38, 40, 51, 56, 57, 58, *range(1, 12))  # in the first nine the bug leaves false names
TOLD = "random requests with priorities in a small cache; each block records the tokens computed in it"

NAMES = "manager.uncache(victim.block_table, first=victim.num_computed_tokens // manager.block_size)"
FREE = "manager.free(victim.block_table)"
ALL_NAMES, BACK_TO_0 = "manager.uncache(victim.block_table)", "victim.num_computed_tokens = 0"
CONFIG = "scheduler.config, chunked_prefill=False, long_prefill_token_threshold=0"


def _other(field: str) -> When:
    return When(lambda got, want, _: got[field] != want[field])


LAB = Solution(
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


@LAB.grader
def grade_names(preempt: Callable, lying: Any) -> None:
    LAB.judge(
        "preempt",
        preempt,
        [(seed,) for seed in SEEDS],
        play=lambda preempt: lambda seed: vars(play(seed, preempt)),
        show=lambda seed: f"{TOLD} (seed {seed})",
        present=_first_field,
    )
    _the_example(lying)


def _the_example(lying: Any) -> None:
    """Grade the list of Tom's blocks: it shows whether the learner understands the cause."""
    try:
        numbers = {int(i) for i in lying}
    except (TypeError, ValueError):
        raise NotYet("wrong-type", "Give a list of block numbers.", "lying", repr(lying), "[...]") from None
    if numbers != set(LAB.answers["lying"]):
        diagnosis = "other-blocks (one missing)" if numbers == {3} else "other-blocks"
        raise LAB.says().no(diagnosis, "lying", sorted(numbers), "other numbers")
