"""Graders of exercises 5.5 and 5.6: a block of Llama on two ranks; blocks read from a side that may die, under a lease."""

import random
from collections.abc import Callable
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from exercises.judging.judge import Exercise, Raised, When
from exercises.phase5.other_side import OtherSide
from exercises.phase5.ranks import HEAD_DIM, Block, make_block, run_ranks

# ---------------------------------------------------------------------- 5.5 a block on ranks

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


SPLIT = Exercise(
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


def shares(cut: Callable[..., Block], x: Tensor, block: Block, ranks: int) -> dict[str, Any]:
    """The shape of each rank's parts, and whether the block is as it was."""
    kept = {name: tensor.clone() for name, tensor in block.items()}
    parts = [cut(block, HEAD_DIM, rank, ranks) for rank in range(ranks)]
    named = [part if isinstance(part, dict) else {type(part).__name__: part} for part in parts]
    same = all(torch.equal(block[name], kept[name]) for name in kept)
    return {
        "shapes": [{name: tuple(getattr(t, "shape", ())) for name, t in part.items()} for part in named],
        "block": "as it was" if same else "changed",
    }


def on_ranks(
    cut: Callable[..., Block], run: Callable[..., Tensor], x: Tensor, block: Block, ranks: int
) -> dict[str, Any]:
    """How often each rank sums, and what each comes to."""
    parts = [cut(dict(block), HEAD_DIM, rank, ranks) for rank in range(ranks)]
    return run_ranks(run, x, parts)


@SPLIT.grader
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

    SPLIT.judge("cut", cut, cases, play=shares, show=show, keeps_input=False)
    SPLIT.judge(("cut", "run"), (cut, run), cases, play=on_ranks, show=show)


# ---------------------------------------------------------------------- 5.6 block transfer

FOREVER = 1000.0
Pairs = list[tuple[int, int]]
THREE, FOUR = [(7, 1), (8, 2), (3, 4)], [(7, 1), (8, 2), (3, 4), (9, 6)]
BY_HAND = [  # pairs, how many are cached, when the lease ends, after how many reads the other side dies
    (THREE, 0, FOREVER, None),
    (THREE, 1, FOREVER, None),
    (FOUR, 0, FOREVER, 2),
    (THREE, 0, 2.0, None),
    (THREE, 1, 2.0, None),
    (THREE, 0, FOREVER, 3),  # everything was read, and `done` finds it dead
    (THREE, 3, FOREVER, None),
]

READ = "            cache[own] = other.read(theirs)\n"
LATE = "            if other.clock() >= other.lease_until:\n                return good\n"
BEHIND, LEFT = "        other.done()\n", "min(num_good * block_size, num_tokens - 1)"
TRANSFER = Exercise(
    "p5e6_block_transfer",
    load_blocks={
        "crash-not-caught": (
            {"except ConnectionError": "except KeyError"},
            When(lambda got, *_: isinstance(got, Raised) and got.kind is ConnectionError),
        ),
        "reads-cached-again": {"pairs[num_cached:]": "pairs", "good = num_cached": "good = 0"},
        "wrong-place": {"cache[own]": "cache[theirs]"},
        "cached-not-counted": {"good = num_cached": "good = 0"},
        "crash-loses-all": {
            f"{16 * ' '}return good": f"{16 * ' '}return num_cached",
            "pass  #": "return num_cached  #",
        },
        "lease-loses-all": {
            LATE: "",
            BEHIND: f"""        if other.clock() >= other.lease_until and good > num_cached:
            return num_cached
{BEHIND}""",
        },
        "no-clock": {LATE: ""},
        "clock-before-reading": {READ + LATE: LATE + READ},
        "never-done": {BEHIND: ""},
        "done-too-early": {BEHIND: "", "    try:\n": f"    try:\n{BEHIND}"},
    },
    num_computed={
        "nothing-left-to-compute": {"num_tokens - 1": "num_tokens"},
        "blocks-not-tokens": {"num_good * block_size": "num_good"},
        "more-than-there-are": {LEFT: "num_good * block_size"},
        "a-whole-block-again": {
            LEFT: "num_good * block_size if num_good * block_size < num_tokens else (num_good - 1) * block_size"
        },
        "one-less-always": {LEFT: "max(0, min(num_good * block_size, num_tokens) - 1)"},
    },
)


def transferred(
    load_blocks: Callable[..., int], pairs: Pairs, num_cached: int, lease_until: float, dies_after: int | None
) -> dict[str, Any]:
    """How many blocks are good, what is in them, and what was asked of the other side."""
    other = OtherSide({theirs: f"content {theirs}" for theirs, _ in pairs}, lease_until, dies_after)
    cache = {own: f"content {theirs}" for theirs, own in pairs[:num_cached]}
    good = load_blocks(other, pairs, num_cached, cache)
    known = int(good) if isinstance(good, Real) and 0 <= good <= len(pairs) else 0
    cached = [theirs for theirs, _ in pairs[:num_cached] if ("read", theirs) in other.log]
    undisturbed = lease_until == FOREVER and dies_after is None
    return {
        "good": good,
        "cached blocks read again": cached,
        "contents": [cache.get(own, "nothing") for _, own in pairs[:known]],
        "said done": not undisturbed or (other.log.count(("done",)) > 0 and other.log[-1] == ("done",)),
    }


@TRANSFER.grader
def grade_transfer(load_blocks: Callable[..., int], num_computed: Callable[..., int]) -> None:
    rng, cases = random.Random(3), list(BY_HAND)
    for _ in range(60):
        n = rng.randint(1, 8)
        pairs = list(zip(rng.sample(range(1, 40), n), rng.sample(range(1, 40), n), strict=True))
        num_cached = rng.choice([0, 0, rng.randint(0, n)])
        lease = rng.choice([FOREVER, rng.randint(1, 8) + rng.choice([0.0, 0.5])])
        cases.append((pairs, num_cached, lease, rng.choice([None, None, rng.randint(0, n - num_cached)])))
    TRANSFER.judge("load_blocks", load_blocks, cases, play=transferred)
    sizes = [(2, 4, 11), (0, 4, 11), (3, 4, 12), (3, 4, 11), (1, 16, 16), (1, 16, 3), (5, 8, 200), (1, 1, 1)]
    TRANSFER.judge("num_computed", num_computed, sizes)
