"""Graders of one head and of grouped queries. The references count in float64, in plain loops."""

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor

from exercises.grading import Diagnoses, Exercise, expect_equal, guard, same, show
from exercises.judging.judge import judge
from exercises.judging.slips import slips
from exercises.phase2.grade_mask import right_mask

# ---------------------------------------------------------------------- 2.2 one head


def right_head(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """In plain loops and float64."""
    queries, keys, values = q.double().tolist(), k.double().tolist(), v.double().tolist()
    out = []
    for query, sees in zip(queries, mask.tolist()):
        scores = [
            sum(a * b for a, b in zip(query, key)) / math.sqrt(len(query)) if yes else -math.inf
            for key, yes in zip(keys, sees)
        ]
        weights = [math.exp(score - max(scores)) for score in scores]
        out.append([sum(w * x for w, x in zip(weights, column)) / sum(weights) for column in zip(*values)])
    return torch.tensor(out, dtype=torch.float64).to(q.dtype)


def head_in_tensors(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """The same in tensors, as learners write it: the mistakes are slips in this one."""
    scores = (q.double() @ k.double().T) * q.shape[-1] ** -0.5
    weights = scores.masked_fill(~mask, -math.inf).softmax(-1)
    return (weights @ v.double()).to(q.dtype)


SCALE, MASKED = " * q.shape[-1] ** -0.5", ".masked_fill(~mask, -math.inf)"
HEADS = {
    "head-not-scaled": {SCALE: ""},
    "head-divided-by-d": {SCALE: " / q.shape[-1]"},
    "head-scaled-by-tokens": ({SCALE: " * len(k) ** -0.5"}, {SCALE: " * len(q) ** -0.5"}),
    "head-multiplied": {SCALE: " * q.shape[-1] ** 0.5"},
    "head-softmax-over-queries": {"softmax(-1)": "softmax(0)"},
    "head-masked-after-softmax": {MASKED: "", "(weights @": "(weights * mask @"},
    "head-masked-with-zero": {"-math.inf": "0.0"},
    "head-no-mask": {MASKED: ""},
    "head-mask-inverted": {"~mask": "mask"},
    # Of the learner's own; the second as PyTorch's attention does it with is_causal=True.
    "head-own-mask": ({"~mask": "~right_mask(len(q), len(k))"}, {"~mask": "~torch.ones_like(mask).tril()"}),
    "head-no-softmax": {MASKED: ".masked_fill(~mask, 0.0)", ".softmax(-1)": ""},
}
HEADS_SAYS = Diagnoses.of("p2e2_one_head")


def grade_head(one_head: Callable) -> None:
    random = torch.Generator().manual_seed(1)
    ln3 = math.log(3)
    cases = [
        (
            torch.tensor([[1.0], [1.0]]),
            torch.tensor([[0.0], [ln3]]),
            torch.tensor([[10.0], [20.0]]),
            torch.tensor([[True, False], [True, True]]),
        )
    ]
    for n, m, d in ((3, 3, 4), (2, 5, 8), (1, 6, 16), (5, 5, 2), (4, 9, 64)):
        q, k, v = (torch.randn(rows, d, generator=random) for rows in (n, m, m))
        cases.append((q, k, v, right_mask(n, m)))
    cases.append((cases[1][0], cases[1][1], cases[1][2], torch.eye(3, dtype=torch.bool)))
    show = lambda q, k, v, mask: (  # noqa: E731
        f"one_head with q {list(q.shape)}, k and v {list(k.shape)}"
        if q.numel() > 4
        else f"one_head(q {q.tolist()}, k {k.tolist()}, v {v.tolist()}, mask {mask.tolist()})"
    )
    judge(
        one_head, cases, right_head, slips(head_in_tensors, HEADS), HEADS_SAYS, show=show, keeps_input=False
    )

    _grade_large_scores(one_head)
    q, k, v, mask = cases[2]
    changed = HEADS_SAYS, "head-changes-its-input"
    expect_untouched(one_head, *changed, (q, k, v, mask), {"keys": 1, "values": 2, "mask": 3})


def _grade_large_scores(one_head: Callable) -> None:
    """Scores of 7,200 in one row and of -28,800 in another: e to such powers is infinite, or 0."""
    q = torch.tensor([[60.0] * 4, [-240.0] * 4])
    k = torch.tensor([[60.0] * 4, [59.0] * 4, [61.0] * 4])
    v = torch.tensor([[1.0, 2, 3, 4], [5.0, 6, 7, 8], [9.0, 10, 11, 12]])
    mask = torch.tensor([[True, False, False], [True, True, False]])
    want, tried = right_head(q, k, v, mask), "one_head with scores of 7,200 and of -28,800"
    got = guard(one_head, q.clone(), k.clone(), v.clone(), mask.clone(), tried=tried)
    if same(got, want, 1e-4):
        return
    if not torch.isfinite(got).all():
        raise HEADS_SAYS.no("head-overflows", tried, got, want)
    if same(got[0], want[0], 1e-4):
        raise HEADS_SAYS.no("head-masked-not-low-enough", tried, got, want)
    expect_equal(got, want, tried, tolerance=1e-4)


def expect_untouched(
    answer: Callable, says: Diagnoses, diagnosis: str, args: tuple, watched: dict[str, int]
) -> None:
    """Raise NotYet if the answer changes an argument that others still need. `watched`: what it is -> which argument."""
    given = copy.deepcopy(args)
    guard(answer, *given, tried="a call, then a look at what was given")
    for name, place in watched.items():
        if not torch.equal(given[place], args[place]):
            tried = f"a call, then a look at the {name}"
            raise says.no(diagnosis, tried, given[place], args[place], name=name)


# ---------------------------------------------------------------------- 2.3 grouped queries


def grouped_by(
    kv_head: Callable[[int, int, int], int], sees: Callable[[int, int], Tensor] = right_mask
) -> Callable:
    """Attention of all heads where query head h uses KV head `kv_head(h, heads, kv_heads)`."""

    def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads, kv_heads = q.shape[1], k.shape[1]
        mask = sees(len(q), len(k))
        of_heads = []
        for h in range(heads):
            g = kv_head(h, heads, kv_heads)
            of_heads.append(right_head(q[:, h], k[:, g], v[:, g], mask))
        return torch.stack(of_heads, dim=1)

    return grouped


def _neighbours_share(h: int, heads: int, kv_heads: int) -> int:
    return h // (heads // kv_heads)


right_grouped = grouped_by(_neighbours_share)


def _averaged(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    kv_heads = k.shape[1]
    grouped = q.view(len(q), kv_heads, -1, q.shape[-1]).mean(2)
    return right_grouped(grouped, k, v)


GROUPS = {
    "group-repeat-not-interleave": grouped_by(lambda h, heads, kv_heads: h % kv_heads),
    "group-mask-top-left": grouped_by(
        _neighbours_share, lambda n, m: torch.ones(n, m, dtype=torch.bool).tril()
    ),
    "group-no-mask": grouped_by(_neighbours_share, lambda n, m: torch.ones(n, m, dtype=torch.bool)),
    "group-always-two": grouped_by(lambda h, heads, kv_heads: h // 2),
    "group-only-the-first": grouped_by(lambda h, heads, kv_heads: 0),
    "group-divided-by-kv-heads": grouped_by(lambda h, heads, kv_heads: h // kv_heads),
    "group-backwards": grouped_by(lambda h, heads, kv_heads: kv_heads - 1 - h // (heads // kv_heads)),
    "group-no-sharing": grouped_by(lambda h, heads, kv_heads: min(h, kv_heads - 1)),
    "group-heads-stacked-first": lambda q, k, v: right_grouped(q, k, v).transpose(0, 1).contiguous(),
    "group-heads-mixed-up": lambda q, k, v: right_grouped(q, k, v).transpose(0, 1).reshape(q.shape),
    "group-queries-averaged": _averaged,
}
GROUPS_SAYS = Diagnoses.of("p2e3_grouped")


def _first_token(got: Tensor, want: Tensor) -> tuple[str, str]:
    """The heads of the first token that differs: all tokens would fill the screen."""
    token = next(n for n in range(len(want)) if not same(got[n], want[n], 1e-4))
    of = f"token {token} of {len(want)}, the first that differs, a row for each head:\n"
    return of + show(got[token]), of + show(want[token])


def grade_grouped(grouped_attention: Callable) -> None:
    random = torch.Generator().manual_seed(2)
    cases = []
    shapes = ((3, 3, 4, 2, 4), (2, 5, 8, 2, 4), (1, 4, 6, 3, 8), (4, 4, 3, 3, 2), (3, 6, 4, 1, 4))
    for n, m, heads, kv_heads, d in shapes:
        q = torch.randn(n, heads, d, generator=random)
        k, v = (torch.randn(m, kv_heads, d, generator=random) for _ in range(2))
        cases.append((q, k, v))
    judge(
        grouped_attention,
        cases,
        right_grouped,
        GROUPS,
        GROUPS_SAYS,
        show=lambda q, k, v: f"grouped_attention with q {list(q.shape)}, k and v {list(k.shape)}",
        present=_first_token,
        keeps_input=False,
    )
    changed = GROUPS_SAYS, "group-changes-its-input"
    expect_untouched(grouped_attention, *changed, cases[1], {"keys": 1, "values": 2})


EXERCISES = [
    Exercise("p2e2_one_head", ("one_head",), grade_head),
    Exercise("p2e3_grouped", ("grouped_attention",), grade_grouped),
]
