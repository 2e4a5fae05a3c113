"""Graders of the primer, the causal mask, one head, grouped queries and rotary positions."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from exercises.judging.comparing import same, show
from exercises.judging.judge import Exercise, When

# ---------------------------------------------------------------------- 2.0 scores by a product, probabilities by softmax

PROBABILITIES, SCORES = "torch.softmax(hidden @ table.T, dim=-1)", "hidden @ table.T"
TENSORS = Exercise(
    "p2e0_tensors",
    next_probabilities={
        "tensor-no-softmax": {PROBABILITIES: SCORES},
        "tensor-softmax-over-tokens": {"dim=-1": "dim=0"},
        "tensor-softmax-over-all": {PROBABILITIES: f"torch.exp({SCORES}) / torch.exp({SCORES}).sum()"},
        "tensor-turned": (
            {PROBABILITIES: "torch.softmax(table @ hidden.T, dim=0)"},
            {PROBABILITIES: "torch.softmax(table @ hidden.T, dim=1)"},
        ),
        "tensor-not-transposed": {"table.T": "table"},
        "tensor-only-the-last": ({"hidden @": "hidden[-1:] @"}, {"hidden @": "hidden[-1] @"}),
        "tensor-shares-of-scores": {PROBABILITIES: f"(scores := {SCORES}) / scores.sum(1, keepdim=True)"},
        "tensor-likeliest": {PROBABILITIES: f"{PROBABILITIES}.argmax(dim=1)"},
        "tensor-scaled": {SCORES: f"{SCORES} / table.shape[1] ** 0.5"},
        "tensor-logarithms": {"torch.softmax": "torch.log_softmax"},
        "tensor-overflows": (
            {PROBABILITIES: f"(powers := torch.exp({SCORES})) / powers.sum(dim=-1, keepdim=True)"},
            {PROBABILITIES: f"(e := torch.exp((s := {SCORES}) - s.max())) / e.sum(1, keepdim=True)"},
            When(lambda got, want, *_: got.shape == want.shape and not got.isfinite().all()),
        ),
    },
)


@TENSORS.grader
def grade_tensors(next_probabilities: Callable) -> None:
    random = torch.Generator().manual_seed(1)
    table = torch.tensor([[0.0, 5.0], [math.log(2), 0.0], [math.log(5), 7.0]])
    cases = [(torch.tensor([[1.0, 0.0]]), table)]
    for n, d, words in ((3, 4, 6), (1, 8, 16), (4, 4, 4), (5, 3, 2)):
        cases.append((torch.randn(n, d, generator=random), torch.randn(words, d, generator=random)))
    large = torch.tensor([[300.0, -300], [-300, 300]]), torch.tensor([[3.0, 1], [3, 1.001], [-3, 2]])
    TENSORS.judge("next_probabilities", next_probabilities, [*cases, large], tolerance=2e-4)


# ---------------------------------------------------------------------- 2.1 the causal mask

SEEN = "torch.arange(num_keys)[None, :] <= positions[:, None]"
MASK = Exercise(
    "p2e1_causal_mask",
    may_see={
        "mask-blind-to-itself": {"<=": "<"},
        "mask-sees-the-next": {"positions[:, None]": "positions[:, None] + 1"},
        "mask-top-left": {"(num_keys - num_queries, num_keys)": "(num_queries)"},
        # True where attention is forbidden, as in torch.nn.MultiheadAttention.
        "mask-upside-down": {"<=": ">"},
        "mask-looks-ahead": {"<=": ">="},
        "mask-turned": {"[None, :] <= positions[:, None]": "[:, None] <= positions[None, :]"},
        "mask-forgets-old-keys": {SEEN: "torch.ones(num_queries, num_queries, dtype=torch.bool).tril()"},
        "mask-hides-old-keys": {SEEN: f"({SEEN}) & (torch.arange(num_keys) >= num_keys - num_queries)"},
        "mask-of-all-tokens": {SEEN: "torch.ones(num_keys, num_keys).tril().bool()"},
        "mask-sees-all": {SEEN: "torch.full((num_queries, num_keys), True)"},
        "mask-hides-too-much": When(lambda got, want, n, m: not (got & ~want).any()),
        "mask-shows-too-much": When(lambda got, want, n, m: not (want & ~got).any()),
    },
)


@MASK.grader
def grade_mask(may_see: Callable) -> None:
    def of_bool(mask: object) -> object:
        if isinstance(mask, Tensor) and mask.dtype != torch.bool:
            raise MASK.says().no("mask-not-bool", "may_see", mask, "a tensor of torch.bool")
        return mask

    sizes = [(3, 3), (2, 5), (1, 1), (1, 5), (4, 4), (3, 7), (8, 8), (5, 6), (16, 40)]
    MASK.judge("may_see", may_see, sizes, clean=of_bool)


def causal(n: int, m: int) -> Tensor:
    """[n, m] of bool: query i stands at position m - n + i."""
    return torch.ones(n, m, dtype=torch.bool).tril(m - n)


# ---------------------------------------------------------------------- 2.2 one head

SCALE, MASKED = " / q.shape[-1] ** 0.5", 'scores.masked_fill(~mask, float("-inf"))'
SOFTMAX = f"torch.softmax({MASKED}, dim=-1)"


def _of_too_low_a_number(got: Tensor, want: Tensor, q: Tensor, *_: Tensor) -> bool:
    """Where all scores are very low, a mask's number is not low enough."""
    return bool(q.abs().max() > 100) and bool(got.isfinite().all())


HEAD = Exercise(
    "p2e2_one_head",
    one_head={
        "head-not-scaled": {SCALE: ""},
        "head-divided-by-d": {SCALE: " / q.shape[-1]"},
        "head-scaled-by-tokens": ({SCALE: " / len(k) ** 0.5"}, {SCALE: " / len(q) ** 0.5"}),
        "head-multiplied": {SCALE: " * q.shape[-1] ** 0.5"},
        "head-softmax-over-queries": {"dim=-1": "dim=0"},
        "head-masked-after-softmax": {MASKED: "scores", "weights @ v": "weights.masked_fill(~mask, 0) @ v"},
        "head-masked-with-zero": {'float("-inf")': "0.0"},
        "head-no-mask": {MASKED: "scores"},
        "head-mask-inverted": {"~mask": "mask"},
        "head-own-mask": (  # the second as PyTorch's attention does it with is_causal=True
            {"~mask": "torch.ones_like(mask).triu(len(k) - len(q) + 1)"},
            {"~mask": "torch.ones_like(mask).triu(1)"},
        ),
        "head-no-softmax": {SOFTMAX: "scores.masked_fill(~mask, 0)"},
        "head-masked-not-low-enough": (
            {'float("-inf")': "-1e4"},
            {'float("-inf")': "-100.0"},
            When(_of_too_low_a_number),
        ),
        "head-row-all-masked": When(lambda got, want, q, *_: bool(got.isnan().any()) and q.abs().max() < 50),
        "head-overflows": When(lambda got, want, *_: not got.isfinite().all()),
    },
)


@HEAD.grader
def grade_head(one_head: Callable) -> None:
    random = torch.Generator().manual_seed(1)
    by_hand = [[1.0], [1.0]], [[0.0], [math.log(3)]], [[10.0], [20.0]]
    cases = [(*map(torch.tensor, by_hand), causal(2, 2))]
    for n, m, d in ((3, 3, 4), (2, 5, 8), (1, 6, 16), (5, 5, 2), (4, 9, 64)):
        cases.append((*(torch.randn(rows, d, generator=random) for rows in (n, m, m)), causal(n, m)))
    cases.append((*cases[1][:3], torch.eye(3, dtype=torch.bool)))
    # Scores of 7,200 in one row and of -28,800 in another: e to such powers is infinite, or 0.
    q = torch.tensor([[60.0] * 4, [-240.0] * 4])
    k = torch.tensor([[60.0] * 4, [59.0] * 4, [61.0] * 4])
    v = torch.tensor([[1.0, 2, 3, 4], [5.0, 6, 7, 8], [9.0, 10, 11, 12]])
    large = q, k, v, torch.tensor([[True, False, False], [True, True, False]])
    HEAD.judge("one_head", one_head, cases)
    HEAD.judge("one_head", one_head, [large], only=("head-masked-not-low-enough", "head-overflows"))


# ---------------------------------------------------------------------- 2.3 grouped queries

SHARED, STACKED = "h // group", "torch.stack(outputs, dim=1)"
EACH_HEAD = "q[:, h], k[:, h // group], v[:, h // group]) for h in range(num_heads)"
GROUPS = Exercise(
    "p2e3_grouped",
    grouped_attention={
        "group-repeat-not-interleave": {SHARED: "h % num_kv_heads"},
        "group-mask-top-left": {"diagonal=m - n + 1": "diagonal=1"},
        "group-no-mask": {'.masked_fill(future, float("-inf"))': ""},
        "group-always-two": {SHARED: "h // 2"},
        "group-only-the-first": {SHARED: "0"},
        "group-divided-by-kv-heads": {SHARED: "h // num_kv_heads"},
        "group-backwards": {SHARED: "-1 - h // group"},
        "group-no-sharing": {SHARED: "min(h, num_kv_heads - 1)"},
        "group-heads-stacked-first": {STACKED: "torch.stack(outputs)"},
        "group-heads-mixed-up": {STACKED: "torch.stack(outputs).view(q.shape)"},
        "group-queries-averaged": {
            EACH_HEAD: "q[:, g * group : (g + 1) * group].mean(1), k[:, g], v[:, g]) for g in range(num_kv_heads)"
        },
    },
)


def _first_token(got: Tensor, want: Tensor) -> tuple[str, str]:
    """The heads of the first token that differs: all tokens would fill the screen."""
    token = next(n for n in range(len(want)) if not same(got[n], want[n], 1e-4))
    of = f"token {token} of {len(want)}, the first that differs, a row for each head:\n"
    return of + show(got[token]), of + show(want[token])


@GROUPS.grader
def grade_grouped(grouped_attention: Callable) -> None:
    random = torch.Generator().manual_seed(2)
    cases = []
    shapes = ((3, 3, 4, 2, 4), (2, 5, 8, 2, 4), (1, 4, 6, 3, 8), (4, 4, 3, 3, 2), (3, 6, 4, 1, 4))
    for n, m, heads, kv_heads, d in shapes:
        q = torch.randn(n, heads, d, generator=random)
        cases.append((q, *(torch.randn(m, kv_heads, d, generator=random) for _ in range(2))))
    GROUPS.judge("grouped_attention", grouped_attention, cases, present=_first_token)


# ---------------------------------------------------------------------- 2.4 rotary positions

PLACES, TURNED = "positions.float()", "a * cos - b * sin, b * cos + a * sin"
SPEEDS = "theta ** (-torch.arange(half, dtype=torch.float32) / half)"
RESULT = f"torch.cat(({TURNED}), dim=-1).to(x.dtype)"
ROTARY = Exercise(
    "p2e4_rotary",
    rotate={
        "rotary-positions-start-anew": {PLACES: "torch.arange(len(x)).float()"},
        "rotary-one-position-for-all": {PLACES: "(positions[0] + torch.arange(len(x))).float()"},
        "rotary-counts-from-one": {PLACES: "(positions + 1).float()"},
        "rotary-pairs-of-neighbours": {
            "x[..., :half].float(), x[..., half:].float()": "x[..., ::2].float(), x[..., 1::2].float()",
            RESULT: f"torch.stack(({TURNED}), dim=-1).flatten(-2).to(x.dtype)",
        },
        "rotary-turns-backwards": {TURNED: "a * cos + b * sin, b * cos - a * sin"},
        "rotary-is-no-rotation": {TURNED: "a * cos - b * sin, a * cos + b * sin"},
        "rotary-no-minus": {TURNED: "a * cos + b * sin, b * cos + a * sin"},
        "rotary-first-half-overwritten": {TURNED: "(a := a * cos - b * sin), b * cos + a * sin"},
        "rotary-speed-without-two": {"/ half)": "/ x.shape[-1])"},
        "rotary-too-slow": {"-torch.arange": "-2 * torch.arange"},
        "rotary-one-speed": {SPEEDS: "torch.ones(half)"},
        "rotary-grows": {"-torch.arange": "torch.arange"},
        "rotary-speed-from-one": {"arange(half,": "arange(1, half + 1,"},
        "rotary-sine-for-cosine": {TURNED: "a * sin - b * cos, b * sin + a * cos"},
        "rotary-unchanged": {RESULT: "x"},
        "rotary-degrees": {PLACES: "torch.deg2rad(positions.float())"},
        "rotary-theta-ignored": {"= theta **": "= 10_000.0 **"},
        "rotary-format-changed": ({".to(x.dtype)": ""}, When(lambda got, want, *_: got[0] != want[0])),
        "rotary-angles-rounded": When(lambda got, want, x, *_: x.dtype == torch.bfloat16),
    },
)


@ROTARY.grader
def grade_rotary(rotate: Callable) -> None:
    random = torch.Generator().manual_seed(3)
    cases = [
        (torch.tensor([[[1.0, 0.0]]]), torch.tensor([1])),
        (torch.tensor([[[1.0, 1.0, 0, 0]]]), torch.tensor([2])),
    ]
    rows = ((2, 8, [0, 1, 2]), (2, 8, [3, 4, 5]), (1, 16, [41]), (3, 4, [7, 0, 30, 12]), (2, 64, [900, 901]))
    for heads, d, positions in rows:
        cases.append((torch.randn(len(positions), heads, d, generator=random), torch.tensor(positions)))
    cases += [(*cases[2], 500_000.0), (*cases[5], 100.0)]
    ROTARY.judge("rotate", rotate, cases, tolerance=2e-4)
    half = torch.randn(2, 2, 8, generator=random.manual_seed(4)).bfloat16(), torch.tensor([1001, 1002])

    def format_first(out: Tensor) -> list:
        return [str(out.dtype), out.float()] if isinstance(out, Tensor) else out

    ROTARY.judge("rotate", rotate, [half], clean=format_first, tolerance=0.03)
