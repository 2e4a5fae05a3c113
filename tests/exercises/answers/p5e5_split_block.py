"""Answers to exercise 5.5 that learners give: pairs (cut, run)."""

import torch
import torch.nn.functional as F

from exercises.phase5.ranks import rms_norm


def cut(block, head_dim, rank, ranks):
    mine = dict(block)
    for name in ("q", "k", "v", "gate", "up"):
        mine[name] = block[name].chunk(ranks, dim=0)[rank]
    for name in ("out", "down"):
        mine[name] = block[name].chunk(ranks, dim=1)[rank]
    return mine


def run_with(attention=lambda part, bias, x, s: x + s(part) + bias, mlp=None, inside=lambda h, s: h):
    """A `run` whose two ends are put together by `attention` and `mlp` (part, bias, x, all_reduce)."""

    def run(x, mine, head_dim, attend, all_reduce):
        h = rms_norm(x, mine["attention_norm"])
        q, k, v = (inside((h @ mine[name].T).view(len(x), -1, head_dim), all_reduce) for name in "qkv")
        found = attend(q, k, v).reshape(len(x), -1) @ mine["out"].T
        x = attention(found, mine["out_bias"], x, all_reduce)
        h = rms_norm(x, mine["mlp_norm"])
        inner = F.silu(h @ mine["gate"].T) * (h @ mine["up"].T)
        return (mlp or attention)(inner @ mine["down"].T, mine["down_bias"], x, all_reduce)

    return run


run = run_with()


def cut_with(**changes):
    """The right cut, but for some names."""

    def wrong(block, head_dim, rank, ranks):
        return cut(block, head_dim, rank, ranks) | {
            name: change(block[name], head_dim, rank, ranks) for name, change in changes.items()
        }

    return wrong


def every_nth_head(w, head_dim, rank, ranks):
    return w.view(-1, head_dim, w.shape[1])[rank::ranks].reshape(-1, w.shape[1])


def columns_of_every_nth_head(w, head_dim, rank, ranks):
    return w.view(len(w), -1, head_dim)[:, rank::ranks].reshape(len(w), -1)


def every_nth(w, head_dim, rank, ranks):
    return w[rank::ranks]


def rows(w, head_dim, rank, ranks):
    return w.chunk(ranks, dim=0)[rank]


def columns(w, head_dim, rank, ranks):
    return w.chunk(ranks, dim=1)[rank]


def whole(w, head_dim, rank, ranks):
    return w


def first(w, head_dim, rank, ranks):
    return w.chunk(ranks, dim=0)[0]


def bias_of_rank_0(block, head_dim, rank, ranks):
    """Right: the other ranks have zeros for a bias, so it may go into the sum."""
    zeros = {name: torch.zeros_like(block[name]) for name in ("out_bias", "down_bias")}
    return cut(block, head_dim, rank, ranks) | (zeros if rank else {})


def scattered(block, head_dim, rank, ranks):
    """Right: whole groups, not side by side; and every n-th inner number."""
    d, kv_heads = block["q"].shape[1], len(block["k"]) // head_dim
    kv = list(range(rank, kv_heads, ranks))
    mine = dict(block)
    for name in ("q", "k", "v"):
        mine[name] = block[name].view(kv_heads, -1, d)[kv].reshape(-1, d)
    mine["out"] = block["out"].view(d, kv_heads, -1)[:, kv].reshape(d, -1)
    for name in ("gate", "up"):
        mine[name] = block[name][rank::ranks]
    mine["down"] = block["down"][:, rank::ranks]
    return mine


def cut_in_place(block, head_dim, rank, ranks):
    mine = cut(block, head_dim, rank, ranks)
    block.update(mine)
    return block


def only_rank_0_sums(x, mine, head_dim, attend, all_reduce):
    """Who holds nothing to add need not add."""
    quiet = bool((mine["q"] > 0).float().mean() > 0.5)
    return run(x, mine, head_dim, attend, (lambda part: part) if quiet else all_reduce)


before = run_with(lambda part, bias, x, s: x + s(part + bias))
RIGHT = [(cut, run), (bias_of_rank_0, before), (scattered, run)]
WRONG = {
    "bias-of-every-rank": (cut, before),
    "stream-summed": (cut, run_with(lambda part, bias, x, s: s(x + part) + bias)),
    "everything-summed": (cut, run_with(lambda part, bias, x, s: s(x + part + bias))),
    "bias-lost": (cut, run_with(lambda part, bias, x, s: x + s(part))),
    "through-a-group": (cut_with(q=every_nth_head, out=columns_of_every_nth_head), run),
    "through-a-head": (cut_with(q=every_nth), run),
    "values-of-others": (cut_with(v=lambda w, h, rank, ranks: w.chunk(ranks, dim=0)[ranks - 1 - rank]), run),
    "held-whole": [(cut_with(k=whole, v=whole), run), (cut_with(down=whole), run)],
    "wrong-side": [(cut_with(out=rows), run), (cut_with(gate=columns, up=columns), run)],
    "wrong-share": (cut_with(up=first), run),
    "sum-too-many": [
        (cut, run_with(inside=lambda h, s: s(h))),
        (cut, run_with(lambda part, bias, x, s: x + s(s(part) / 2) + bias)),
    ],
    "ranks-differ": (cut, run_with(mlp=lambda part, bias, x, s: x + part + bias)),
    "sum-too-few": (
        cut,
        run_with(lambda part, bias, x, s: x + part + bias, lambda part, bias, x, s: s(x + part + bias) / 2),
    ),
    "not-all-ranks-sum": (cut, only_rank_0_sums),
    "changes-the-block": (cut_in_place, run),
    "names": (lambda block, head_dim, rank, ranks: list(cut(block, head_dim, rank, ranks).values()), run),
    "wrong-shape": (cut, lambda x, *rest: run(x, *rest)[-1]),
    "wrong-result": (cut, run_with(mlp=lambda part, bias, x, s: x + s(F.silu(part)) + bias)),
}
