"""Grader of exercise 5.7: a decode kernel that is right and slow. Its results are judged, then what it loads, interpreted."""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

from torch import Tensor

from exercises.grading import NotAttempted
from exercises.judging.judge import When
from exercises.judging.slips import defined_by
from exercises.judging.solutions import CHECK, Solution
from exercises.judging.sources import cut, whole_source
from exercises.phase5.grade_decode import interpreted, make_case, shown
from exercises.phase5.launching import body_of
from phase5_real_gpu.ladder import count_loads

NAME = "p5e7_faster_decode"
ACC, TOTAL, SCORES = "acc * shrink[:, None]", "total * shrink", "scores = tl.where(exists[None, :], scores"
EXERCISE = Solution(
    NAME,
    40.0,
    group_decode={
        "rows-of-another-group": {"* GROUP": "", "+ tl.arange(0, GROUP)": "* 1 + tl.arange(0, GROUP)"},
        "unmasked-tail": {SCORES: "scores = tl.where(exists[None, :] | True, scores"},
        "acc-not-rescaled": {ACC: "acc"},
        "total-not-rescaled": {TOTAL: "total"},
        "not-divided": {"acc / total[:, None]": "acc"},
        "last-block-lost": {"tl.cdiv(context_len, BLOCK_SIZE)": "context_len // BLOCK_SIZE"},
        "each-head-again": When(lambda got, *_: got["each key is read"] > 1),
        "values-again": When(lambda got, *_: got["each key is read"] == 1 < got["each value is read"]),
        "less-than-a-block": When(lambda got, *_: got["loads of keys per block"] > 1),
    },
)
COUNTED = ("each-head-again", "values-again", "less-than-a-block")


@cache
def handed_out() -> Any:
    """The kernel that a learner is given."""
    text = cut(whole_source(NAME).partition(CHECK)[0]).student
    return defined_by(text, NAME, {"__name__": "handed_out"})["group_decode"]


def text_of(kernel: Any) -> list[str]:
    """Its words; none of a kernel that stands in no file or cell."""
    try:
        return inspect.getsource(body_of(kernel)).split()
    except OSError:
        return []


def results(kernel: Any) -> Callable[..., Tensor]:
    """What the kernel writes, if it is another one than the learner was given."""

    def play(*case: Tensor) -> Tensor:
        if text_of(kernel) == text_of(handed_out()):
            raise NotAttempted("This is the kernel as it was given to you. It is right, and slow.")
        return interpreted(kernel, by_kv_head=True)(*case)

    return play


def counted(kernel: Any) -> Callable[..., dict[str, float]]:
    """How often a kernel reads what the contexts hold. Fewer loads than one per block are as good as one."""

    def play(q: Tensor, k_cache: Tensor, v_cache: Tensor, tables: Tensor, lens: Tensor) -> dict[str, float]:
        with count_loads(keys=k_cache, values=v_cache) as found:
            interpreted(kernel, by_kv_head=True)(q, k_cache, v_cache, tables, lens)
        kv_heads, dim = k_cache.shape[2:]
        needed = 4 * int(lens.sum()) * kv_heads * dim
        blocks = kv_heads * sum(-(-n // k_cache.shape[1]) for n in lens.tolist())
        return {
            "each key is read": found.loaded["keys"] / needed,
            "each value is read": found.loaded["values"] / needed,
            "loads of keys per block": max(1.0, found.loads.count("keys") / blocks),
        }

    return play


@EXERCISE.grader
def grade_faster(group_decode: Any) -> None:
    right = [diagnosis for diagnosis in EXERCISE.mistakes["group_decode"] if diagnosis not in COUNTED]
    cases = [
        make_case(0, [11, 5], 4, 4, 2, 8),
        make_case(1, [9], 8, 4, 1, 8),
        make_case(2, [6, 3], 2, 2, 2, 4),
    ]
    how = dict(show=shown, tolerance=2e-3, keeps_input=False)
    EXERCISE.judge("group_decode", group_decode, cases, play=results, only=right, **how)
    EXERCISE.judge("group_decode", group_decode, cases[:2], play=counted, only=COUNTED, **how)
