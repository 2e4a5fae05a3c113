"""Grader of exercise 5.5: a block of Llama on two ranks."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from exercises.judging.judge import When
from exercises.judging.solutions import Solution
from exercises.phase5.ranks import HEAD_DIM, Block, LeftAlone, Ranks, make_block, run_ranks

CUT = "    return mine"
ATTENTION, MLP = 'all_reduce(found @ mine["out"].T)', 'all_reduce(inner @ mine["down"].T)'
ATTENTION_AND_BIAS, MLP_AND_BIAS = f'{ATTENTION} + mine["out_bias"]', f'{MLP} + mine["down_bias"]'
BIAS_INSIDE = {
    ATTENTION_AND_BIAS: 'all_reduce(found @ mine["out"].T + mine["out_bias"])',
    MLP_AND_BIAS: 'all_reduce(inner @ mine["down"].T + mine["down_bias"])',
}
HEADS = "(h @ mine[name].T).view(len(x), -1, head_dim)"
# Every n-th head, in place of whole groups of query heads that share a KV head.
EVERY_NTH_HEAD = """
    mine["q"] = block["q"].view(-1, head_dim, block["q"].shape[1])[rank::ranks].flatten(0, 1)
    mine["out"] = block["out"].unflatten(1, (-1, head_dim))[:, rank::ranks].flatten(1)
    return mine"""


def _shapes(of: Callable[[int, int], bool]) -> When:
    """Some part has a side for which `of(this side, the right one)`."""

    def seen(got: dict, want: dict, *_: Any) -> bool:
        both = [(a[name], b[name]) for a, b in zip(got["shapes"], want["shapes"]) for name in b]
        return any(of(x, y) for a, b in both for x, y in zip(a, b))

    return When(seen)


EXERCISE = Solution(
    "p5e5_split_block",
    cut={
        "held-whole": ({'"q", "k", "v",': '"q",'}, {'"out", "down"': '"out",'}),
        "wrong-side": (
            {CUT: f'    mine["out"] = block["out"].chunk(ranks, dim=0)[rank]\n{CUT}'},
            {'"v", "gate", "up"': '"v"', '"out", "down"': '"gate", "up", "out", "down"'},
            _shapes(lambda side, right: side < right),
        ),
        "wrong-share": {CUT: f'    mine["up"] = block["up"].chunk(ranks, dim=0)[0]\n{CUT}'},
        "through-a-group": {CUT: EVERY_NTH_HEAD},
        "through-a-head": {CUT: f'    mine["q"] = block["q"][rank::ranks]\n{CUT}'},
        "values-of-others": {CUT: f'    mine["v"] = block["v"].chunk(ranks, dim=0)[ranks - 1 - rank]\n{CUT}'},
        "changes-the-block": {"mine = dict(block)": "mine = block"},
        "names": (
            {CUT: "    return list(mine.values())"},
            When(lambda got, want, *_: got["shapes"][0].keys() != want["shapes"][0].keys()),
        ),
    },
    run={
        "bias-of-every-rank": BIAS_INSIDE,
        "stream-summed": {"x + all_reduce(": "all_reduce(x + "},
        "everything-summed": {**BIAS_INSIDE, "x + all_reduce(": "all_reduce(x + "},
        "bias-lost": {ATTENTION_AND_BIAS: ATTENTION, MLP_AND_BIAS: MLP},
        "sum-too-many": (
            {HEADS: f"all_reduce({HEADS})"},
            {ATTENTION: f"all_reduce({ATTENTION} / 2)", MLP: f"all_reduce({MLP} / 2)"},
            When(lambda got, *_: min(got["sums"]) > 2),
        ),
        "ranks-differ": {MLP: 'inner @ mine["down"].T'},
        "sum-too-few": (
            {
                ATTENTION: 'found @ mine["out"].T',
                f"x + {MLP_AND_BIAS}": 'all_reduce(x + inner @ mine["down"].T + mine["down_bias"]) / 2',
            },
            When(lambda got, *_: max(got["sums"]) < 2),
        ),
        "not-all-ranks-sum": (
            {  # a rank that holds nothing to add need not add
                '    h = rms_norm(x, mine["attention_norm"])': """    if (mine["q"] > 0).float().mean() > 0.5:
        all_reduce = lambda part: part
    h = rms_norm(x, mine["attention_norm"])"""
            },
            When(lambda got, *_: len(set(got["sums"])) > 1),
        ),
    },
)


def shares(cut: Callable[..., Block]) -> Callable[..., dict[str, Any]]:
    """The shape of each rank's parts, and whether the block is as it was."""

    def play(x: Tensor, block: Block, ranks: int) -> dict[str, Any]:
        kept = {name: tensor.clone() for name, tensor in block.items()}
        parts = [cut(block, HEAD_DIM, rank, ranks) for rank in range(ranks)]
        named = [part if isinstance(part, dict) else {type(part).__name__: part} for part in parts]
        same = all(torch.equal(block[name], kept[name]) for name in kept)
        return {
            "shapes": [{name: tuple(getattr(t, "shape", ())) for name, t in part.items()} for part in named],
            "block": "as it was" if same else "changed",
        }

    return play


def on_ranks(cut: Callable[..., Block], run: Callable[..., Tensor]) -> Callable[..., dict[str, Any]]:
    """How often each rank sums, and what each comes to."""

    def play(x: Tensor, block: Block, ranks: int) -> dict[str, Any]:
        parts = [cut(dict(block), HEAD_DIM, rank, ranks) for rank in range(ranks)]
        done = Ranks(*run_ranks(run, x, parts))
        for error in done.errors:
            if error is not None and not isinstance(error, LeftAlone):
                raise error
        return {"sums": [len(shapes) for shapes in done.sums], "results": done.results}

    return play


@EXERCISE.grader
def grade_split(cut: Callable[..., Block], run: Callable[..., Tensor]) -> None:
    cases = []
    # heads, KV heads, inner numbers, ranks
    for seed, (heads, kv_heads, d_ff, ranks) in enumerate(
        [(4, 2, 12, 2), (4, 4, 8, 2), (8, 4, 16, 4), (6, 2, 8, 2)]
    ):
        x = torch.randn(3, 8, generator=torch.Generator().manual_seed(50 + seed))
        cases.append((x, make_block(8, heads, kv_heads, d_ff, seed), ranks))

    def show(x: Tensor, block: Block, ranks: int) -> str:
        return f"{ranks} ranks, and a block of { ({name: list(part.shape) for name, part in block.items()}) }"

    EXERCISE.judge("cut", cut, cases, play=shares, show=show, keeps_input=False)
    EXERCISE.judge(("cut", "run"), (cut, run), cases, play=on_ranks, show=show)
