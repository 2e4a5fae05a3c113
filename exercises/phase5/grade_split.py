"""Grader of exercise 5.5: a block of Llama on two ranks."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from exercises.grading import Diagnoses, Exercise, NotYet, call, guard, same
from exercises.phase5.ranks import HEAD_DIM, Block, LeftAlone, Ranks, make_block, rms_norm, run_ranks
from phase2_attention_kvcache.model.attention import attention

SAYS = Diagnoses.of("p5e5_split_block")
MATRICES = {"q": 0, "k": 0, "v": 0, "out": 1, "gate": 0, "up": 0, "down": 1}  # and along which side it is cut


def correct(x: Tensor, block: Block, biases: int = 1, streams: int = 1) -> Tensor:
    """The block on one device. biases, streams: how often biases and x are counted in a sum."""
    n = len(x)
    h = rms_norm(x, block["attention_norm"])
    q, k, v = ((h @ block[name].T).view(n, -1, HEAD_DIM) for name in "qkv")
    x = streams * x + attention(q, k, v).reshape(n, -1) @ block["out"].T + biases * block["out_bias"]
    h = rms_norm(x, block["mlp_norm"])
    inner = F.silu(h @ block["gate"].T) * (h @ block["up"].T)
    return streams * x + inner @ block["down"].T + biases * block["down_bias"]


def grade_split(cut: Callable[..., Block], run: Callable[..., Tensor]) -> str:
    # heads, KV heads, inner numbers, ranks
    for seed, (heads, kv_heads, d_ff, ranks) in enumerate(
        [(4, 2, 12, 2), (4, 4, 8, 2), (8, 4, 16, 4), (6, 2, 8, 2)]
    ):
        block = make_block(8, heads, kv_heads, d_ff, seed)
        x = torch.randn(3, 8, generator=torch.Generator().manual_seed(50 + seed))
        tried = f"{ranks} ranks; {heads} query heads, {kv_heads} KV heads of {HEAD_DIM} numbers, {d_ff} inner numbers"
        _one_case(cut, run, x, block, ranks, tried)
    return "2 and 4 ranks, groups of 1, 2 and 3 heads: the same on every rank as on one device, a share of each matrix, two sums."


def _one_case(cut: Callable, run: Callable, x: Tensor, block: Block, ranks: int, tried: str) -> None:
    kept = {name: tensor.clone() for name, tensor in block.items()}
    parts = [
        guard(cut, block, HEAD_DIM, rank, ranks, tried=f"cut for rank {rank} of {tried}")
        for rank in range(ranks)
    ]
    if any(not same(block[name], kept[name]) for name in kept):
        raise SAYS.no("changes-the-block", tried)
    _check_parts(parts, block, tried)
    guarded = lambda *args: guard(run, *args, tried=tried)  # noqa: E731
    done = Ranks(*call(run_ranks, guarded, x, parts, [attention] * ranks, HEAD_DIM))
    sums = [len(shapes) for shapes in done.sums]
    left_alone = any(
        isinstance(error, LeftAlone) or isinstance(getattr(error, "__context__", None), LeftAlone)
        for error in done.errors
    )
    if left_alone and len(set(sums)) > 1:
        raise SAYS.no("not-all-ranks-sum", tried, f"calls of all_reduce, by rank: {sums}", "2 on each rank")
    for error in done.errors:
        if error is not None:
            raise error
    _check_results(done, x, block, tried)


def _check_parts(parts: list[Any], block: Block, tried: str) -> None:
    ranks = len(parts)
    for rank, part in enumerate(parts):
        if part is None:
            raise NotYet("returns-nothing", "`cut` returned None. Is a `return` missing?", tried)
        if not isinstance(part, dict) or set(part) != set(block):
            raise SAYS.no("names", tried, sorted(part) if isinstance(part, dict) else part, sorted(block))
        for name, side in MATRICES.items():
            shape, whole = tuple(part[name].shape), tuple(block[name].shape)
            wanted = tuple(size // ranks if i == side else size for i, size in enumerate(whole))
            where = f"{name} of rank {rank} in {tried}"
            if shape == whole:
                raise SAYS.no("held-whole", where, shape, wanted)
            if shape != wanted:
                turned = tuple(size // ranks if i != side else size for i, size in enumerate(whole))
                raise SAYS.no("wrong-side" if shape == turned else "wrong-share", where, shape, wanted)
    for name, side in MATRICES.items():  # every number of the matrix is somebody's
        rows = torch.cat([part[name] for part in parts], dim=side)
        if not same(rows.flatten().sort().values, block[name].flatten().sort().values):
            raise SAYS.no("wrong-share", f"{name} of all ranks, {tried}")
    for part in parts:
        _check_group(part, block, tried)


def _check_group(part: Block, block: Block, tried: str) -> None:
    """The KV heads that a rank has must be those of its query heads."""
    group = len(block["q"]) // len(block["k"])
    heads, kv_heads = (_heads_of(part[name], block[name]) for name in ("q", "k"))
    if heads is None or kv_heads is None:
        raise SAYS.no("through-a-head", tried)
    each = len(heads) // len(kv_heads)
    if [head // group for head in heads] != [kv for kv in kv_heads for _ in range(each)]:
        raise SAYS.no(
            "through-a-group",
            tried,
            f"a rank with query heads {heads} and KV heads {kv_heads}",
            f"groups of {group}, whole",
        )
    if not same(
        part["v"], torch.cat([block["v"].view(-1, HEAD_DIM, block["v"].shape[1])[kv] for kv in kv_heads])
    ):
        raise SAYS.no("values-of-others", tried)


def _heads_of(rows: Tensor, whole: Tensor) -> list[int] | None:
    """Which heads of a matrix these rows are; None if they are not whole heads."""
    heads = whole.view(-1, HEAD_DIM, whole.shape[1])
    found = []
    for mine in rows.view(-1, HEAD_DIM, whole.shape[1]):
        fitting = [i for i, head in enumerate(heads) if same(mine, head)]
        if not fitting:
            return None
        found.append(fitting[0])
    return found


def _check_results(done: Ranks, x: Tensor, block: Block, tried: str) -> None:
    results, shapes = done.results, done.sums[0]
    ranks, sums, expected = len(results), len(shapes), correct(x, block)
    if any(result is None for result in results):
        raise NotYet("returns-nothing", "`run` returned None. Is a `return` missing?", tried)
    for result in results:
        if not isinstance(result, Tensor) or result.shape != expected.shape:
            raise SAYS.no("wrong-shape", tried, tuple(getattr(result, "shape", ())), tuple(expected.shape))
    right = all(same(result, expected, 1e-4) for result in results)
    calls = f"{sums} calls of all_reduce on each rank"
    if right and sums == 2:
        return
    first, shown, wanted = results[0], results[0][0], expected[0]
    if not right:
        if not all(same(result, first, 1e-4) for result in results):
            raise SAYS.no("ranks-differ", tried, calls, "2, and the same result on each rank")
        if same(first, correct(x, block, biases=ranks), 1e-4):
            raise SAYS.no("bias-of-every-rank", tried, shown, wanted)
        if same(first, correct(x, block, streams=ranks), 1e-4):
            raise SAYS.no("stream-summed", tried, shown, wanted)
        if same(first, correct(x, block, biases=ranks, streams=ranks), 1e-4):
            raise SAYS.no("everything-summed", tried, shown, wanted)
        if same(first, correct(x, block, biases=0), 1e-4):
            raise SAYS.no("bias-lost", tried, shown, wanted)
    if sums > 2:
        raise SAYS.no("sum-too-many", tried, f"{calls}, of shapes {shapes}", "2 calls")
    if sums < 2:
        raise SAYS.no("sum-too-few", tried, calls, "2 calls")
    raise SAYS.no("wrong-result", tried, shown, wanted)


EXERCISES = [
    Exercise("p5e5_split_block", ("cut", "run"), grade_split),
]
