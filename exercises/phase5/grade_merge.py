"""Grader of exercise 5.2: merging the splits of a context."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from exercises.grading import Diagnoses, Exercise, NotYet, guard, same
from exercises.judging.judge import call_and_expect_unchanged

SAYS = Diagnoses.of("p5e2_merge_splits")

Merge = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def correct(outs: Tensor, log_sums: Tensor) -> tuple[Tensor, Tensor]:
    """In double precision."""
    outs, log_sums = outs.double(), log_sums.double()
    there = log_sums > -math.inf
    if not there.any():
        return torch.zeros(outs.shape[1], dtype=torch.float64), torch.tensor(-math.inf, dtype=torch.float64)
    outs, log_sums = outs[there], log_sums[there]
    return log_sums.softmax(0) @ outs, log_sums.logsumexp(0)


def wrong_outs(outs: Tensor, log_sums: Tensor) -> dict[str, list[Tensor]]:
    """What each mistake makes of `out`, where no part is empty."""
    outs, logs = outs.double(), log_sums.double()
    weights = (logs - logs.max()).exp()
    powers = (logs - logs.max()).exp2()
    return {
        "averaged": [outs.mean(0)],
        "outs-added": [outs.sum(0)],
        "log-as-weight": [logs @ outs / logs.sum(), logs @ outs],
        "not-divided": [weights @ outs, logs.exp() @ outs],
        "powers-of-two": [powers @ outs / powers.sum()],
        "best-part-only": [outs[logs.argmax()]],
    }


def wrong_logs(log_sums: Tensor) -> dict[str, list[Tensor]]:
    """What each mistake makes of `log_sum`."""
    logs = log_sums.double()
    shifted = (logs - logs.max()).exp().sum()
    return {
        "log-sum-is-the-maximum": [logs.max()],
        "log-sums-added": [logs.sum()],
        "maximum-not-added-back": [shifted.log()],
        "sum-without-logarithm": [shifted, logs.exp().sum(), shifted + logs.max()],
        "log-sums-averaged": [logs.mean()],
    }


def grade_merge(merge: Merge) -> str:
    outs, logs = torch.tensor([[10.0], [40.0]]), torch.tensor([6.0, 2.0]).log()
    _compare(merge, outs, logs, "the example: out 10 and 40, log_sum log 6 and log 2", name=True)
    for seed, (parts, dim, spread) in enumerate(
        [(2, 4, 1.0), (3, 8, 2.0), (7, 8, 4.0), (1, 4, 1.0), (16, 32, 1.0)]
    ):
        g = torch.Generator().manual_seed(seed)
        outs, logs = torch.randn(parts, dim, generator=g), 3 + spread * torch.randn(parts, generator=g)
        _compare(merge, outs, logs, f"{parts} parts, head_dim {dim}, log_sum {_short(logs)}", name=parts > 1)
    _far_from_zero(merge)
    _empty_parts(merge)
    _nothing_at_all(merge)
    _merged_again(merge)
    poison = torch.tensor([[10.0], [math.nan], [40.0]])
    for args in ((outs, logs), (poison, torch.tensor([6.0, 0.0, 2.0]).log())):
        call_and_expect_unchanged(merge, args, f"{len(args[0])} parts, log_sum {_short(args[1])}")
    return "1 to 16 parts beside float64; sums of weights of e^1000 and e^-1000; empty parts full of NaN; merged parts merged again."


def _call(merge: Merge, outs: Tensor, logs: Tensor, tried: str) -> tuple[Tensor, Tensor]:
    got = guard(merge, outs.clone(), logs.clone(), tried=tried)
    if got is None:
        raise NotYet("returns-nothing", "None came back. Is a `return` missing?", tried)
    if not isinstance(got, (tuple, list)) or len(got) != 2:
        raise SAYS.no("not-a-pair", tried, _show(got), "(out, log_sum)")
    out, log_sum = (torch.as_tensor(x, dtype=torch.float64).detach() for x in got)
    if out.numel() != outs.shape[1] or log_sum.numel() != 1:
        says = "`out` has head_dim numbers, `log_sum` is a single one."
        got = f"shapes {tuple(out.shape)} and {tuple(log_sum.shape)}"
        raise NotYet("wrong-shape", says, tried, got, f"shapes {(outs.shape[1],)} and ()")
    return out.reshape(-1), log_sum.reshape(())


def _compare(merge: Merge, outs: Tensor, logs: Tensor, tried: str, name: bool = False) -> None:
    got, expected = _call(merge, outs, logs, tried), correct(outs, logs)
    shown, wanted = _pair(got), _pair(expected)
    known = [(0, wrong_outs(outs, logs)), (1, wrong_logs(logs))] if name else []
    if _right(got, expected):
        return
    for which, mistakes in known:
        if same(got[which], expected[which], 1e-4):
            continue
        for mistake, wrongs in mistakes.items():
            if any(same(got[which], wrong, 1e-4) for wrong in wrongs):
                raise SAYS.no(mistake, tried, shown, wanted)
        break
    which = "log_sum" if same(got[0], expected[0], 1e-4) else "out"
    raise SAYS.no(f"wrong-result ({which})", tried, shown, wanted)


def _right(got: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> bool:
    return same(got[0], expected[0], 1e-4) and same(got[1], expected[1], 1e-4)


def _far_from_zero(merge: Merge) -> None:
    for middle in (1000.0, -1000.0):
        g = torch.Generator().manual_seed(30)
        outs, logs = torch.randn(4, 8, generator=g), middle + torch.randn(4, generator=g)
        tried = f"4 parts, log_sum {_short(logs)}"
        got, expected = _call(merge, outs, logs, tried), correct(outs, logs)
        if not all(bool(torch.isfinite(x).all()) for x in got) or not bool(got[0].any()):
            raise SAYS.no("no-maximum", tried, _pair(got), _pair(expected))
        _compare(merge, outs, logs, tried)


def _empty_parts(merge: Merge) -> None:
    for empty in ([1], [0], [1, 3]):
        g = torch.Generator().manual_seed(40)
        outs, logs = torch.randn(4, 8, generator=g), torch.randn(4, generator=g)
        logs[empty] = -math.inf
        tried = f"4 parts, log_sum {_short(logs)}; `out` of the empty ones is "
        zeros, poison = outs.clone(), outs.clone()
        zeros[empty], poison[empty] = 0.0, math.nan
        expected = correct(zeros, logs)
        got = _call(merge, zeros, logs, tried + "0")
        if not _right(got, expected):
            raise SAYS.no("empty-part-counts", tried + "0", _pair(got), _pair(expected))
        got = _call(merge, poison, logs, tried + "NaN")
        if not bool(torch.isfinite(got[0]).all()):
            raise SAYS.no("empty-part-is-read", tried + "NaN", _pair(got), _pair(expected))
        _compare(merge, poison, logs, tried + "NaN")


def _nothing_at_all(merge: Merge) -> None:
    for parts in (1, 3):
        outs, logs = torch.full((parts, 4), math.nan), torch.full((parts,), -math.inf)
        tried = f"{parts} parts, all of them empty" if parts > 1 else "a single part, and it is empty"
        got, expected = _call(merge, outs, logs, tried), correct(outs, logs)
        if not _right(got, expected):
            nan = any(bool(x.isnan().any()) for x in got)
            why = "-infinity less -infinity is NaN, and so is 0 divided by 0. " if nan else ""
            raise SAYS.no("all-empty", tried, _pair(got), _pair(expected), why=why)


def _merged_again(merge: Merge) -> None:
    g = torch.Generator().manual_seed(50)
    outs, logs = torch.randn(6, 8, generator=g), 2 * torch.randn(6, generator=g)
    tried = "6 parts: the first two merged, the other four merged, and the two results merged"
    halves = [_call(merge, outs[:2], logs[:2], tried), _call(merge, outs[2:], logs[2:], tried)]
    got = _call(
        merge, torch.stack([h[0] for h in halves]).float(), torch.stack([h[1] for h in halves]).float(), tried
    )
    expected = correct(outs, logs)
    if not _right(got, expected):
        raise SAYS.no("wrong-result", tried, _pair(got), _pair(expected))


def _short(x: Tensor) -> str:
    more = ", ..." if len(x) > 4 else ""
    return "[" + ", ".join(f"{float(a):.4g}" for a in x[:4]) + more + "]"


def _pair(pair: tuple[Tensor, Tensor]) -> str:
    return f"out {_short(pair[0])}, log_sum {float(pair[1]):.4f}"


def _show(got: Any) -> str:
    return f"{type(got).__name__} of shape {tuple(got.shape)}" if isinstance(got, Tensor) else repr(got)[:200]


EXERCISES = [
    Exercise("p5e2_merge_splits", ("merge",), grade_merge),
]
