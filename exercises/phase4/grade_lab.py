"""Grader of debugging lab 4: names on blocks that were never filled."""

from collections.abc import Callable
from typing import Any, NoReturn

from exercises.grading import Diagnoses, Exercise, NotYet, call, guard
from exercises.phase4.names_lab import play

SAYS = Diagnoses.of("p4d1_names_without_blocks")

SEEDS = (0, 12, 24, 38, 40, 51, 56, 57, 58, *range(1, 12))  # in the first nine the bug leaves false names
TOLD = "random requests with priorities in a small cache; blocks remember whose tokens were computed in them"
LYING = {2, 3}  # of Tom's four blocks, in the example of the notebook


def grade_names(preempt_one: Callable, lying: Any) -> str:
    def watched(scheduler, output):
        tried = "a step in which blocks run out, under the policy priority"
        return guard(preempt_one, scheduler, output, tried=tried)

    def fail(diagnosis: str, got: Any = "", expected: Any = "") -> NoReturn:
        raise SAYS.no(diagnosis, TOLD, got, expected)

    lies, half, fewer = [], [], None
    for seed in SEEDS:
        course, mine = play(seed, None), call(play, seed, watched)
        if mine.not_waiting:
            fail("victim-lost", mine.not_waiting, "in the queue")
        if mine.kept_computed:
            fail("keeps-computed", mine.kept_computed)
        if mine.broken_books:
            fail("broken-books", mine.broken_books)
        if mine.lies:
            lies, half = lies + mine.lies, half + mine.lies_of_half_filled
            if not all(half):
                break
            continue
        if mine.victims[:1] != course.victims[:1]:
            fail("other-victim", str(mine.victims[:1]), str(course.victims[:1]) + " (step, request)")
        if -1 in mine.names:
            fail("caching-off")
        for step, (a, b) in enumerate(zip(mine.names, course.names), 1):
            if a < b:
                fewer = fewer or (step, a, b)
                break
        if mine.stuck:
            fail("stuck")
        if fewer is None and mine.plans != course.plans:
            fail("other-steps")
        if fewer is None and mine.counts != course.counts:
            fail(
                "not-counted",
                f"{mine.counts[0]} in all",
                f"{course.counts[0]} in all, and for each request its own",
            )
    if lies:
        diagnosis = "half-filled-block" if all(half) else "names-without-contents"
        fail(diagnosis, lies[0], "no name on a block that does not hold what it says")
    if fewer is not None:
        step, a, b = fewer
        fail("true-names-taken", f"{a} names after step {step}", f"{b} names")
    _the_example(lying)
    return "20 servers with random priorities and little memory: every name tells the truth, and no true one is gone."


def _the_example(lying: Any) -> None:
    """Tom's blocks: whether the cause is understood, and not only the symptom gone."""
    try:
        numbers = {int(i) for i in lying}
    except (TypeError, ValueError):
        raise NotYet(
            "wrong-type", "A list of block numbers is asked for.", "lying", repr(lying), "[...]"
        ) from None
    if numbers == LYING:
        return
    diagnosis = "other-blocks (one missing)" if numbers == {3} else "other-blocks"
    raise SAYS.no(diagnosis, "lying", sorted(numbers), "other numbers")


EXERCISES = [
    Exercise("p4d1_names_without_blocks", ("preempt_one", "lying"), grade_names, seconds=20.0),
]
