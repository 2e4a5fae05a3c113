"""For the cells "Into the engine": is the learner's part ready, and how long does it take beside the course's?"""

import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def passed(name: str, *answers: Any) -> None:
    """Only what passes its check goes into the engine. A stub says "not attempted" here as well.

    Raises:
        NotAttempted, NotYet: as `check` does, with a line in place of the box, which the check above has shown.
    """
    from exercises.judging.registry import find
    from exercises.judging.sandbox import judge_safely

    verdict = judge_safely(find(name), answers)
    if verdict.state != "correct":
        if verdict.state == "not yet":
            print(f"First the check above: {verdict.diagnosis}")
        raise verdict.to_error()


def timed(run: Callable[[], T], rounds: int = 2) -> tuple[T, float]:
    """What `run` gives, and the seconds of its fastest round. The first round also warms the machine up."""
    fastest = float("inf")
    for _ in range(rounds):
        began = time.perf_counter()
        out = run()
        fastest = min(fastest, time.perf_counter() - began)
    return out, fastest


def speed(mine: float, course: float) -> str:
    """One line about two times. Rounded: the last digits are noise."""
    ratio = mine / course
    if ratio < 0.8:
        return f"Speed: faster than with the course's part, which takes {1 / ratio:.1f} times as long."
    if ratio < 1.25:
        return "Speed: about the same as with the course's part."
    return f"Speed: with your part it takes {ratio:.{int(ratio < 10)}f} times as long as with the course's."
