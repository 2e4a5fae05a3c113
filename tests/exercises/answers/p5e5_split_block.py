"""Answers to exercise 5.5 that learners give: pairs (cut, run)."""


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
RIGHT = [
    # The other ranks have zeros for a bias, so it may go into the sum.
    {
        CUT: """    if rank:
        mine |= {name: 0 * block[name] for name in ("out_bias", "down_bias")}
    return mine""",
        **BIAS_INSIDE,
    },
    {"cut": scattered},
]
WRONG = {
    "bias-of-every-rank": BIAS_INSIDE,
    "stream-summed": {"x + all_reduce(": "all_reduce(x + "},
    "everything-summed": {**BIAS_INSIDE, "x + all_reduce(": "all_reduce(x + "},
    "bias-lost": {ATTENTION_AND_BIAS: ATTENTION, MLP_AND_BIAS: MLP},
    "through-a-group": {CUT: EVERY_NTH_HEAD},
    "through-a-head": {CUT: f'    mine["q"] = block["q"][rank::ranks]\n{CUT}'},
    "values-of-others": {CUT: f'    mine["v"] = block["v"].chunk(ranks, dim=0)[ranks - 1 - rank]\n{CUT}'},
    "held-whole": [{'"q", "k", "v",': '"q",'}, {'"out", "down"': '"out",'}],
    "wrong-side": [
        {CUT: f'    mine["out"] = block["out"].chunk(ranks, dim=0)[rank]\n{CUT}'},
        {'"v", "gate", "up"': '"v"', '"out", "down"': '"gate", "up", "out", "down"'},
    ],
    "wrong-share": {CUT: f'    mine["up"] = block["up"].chunk(ranks, dim=0)[0]\n{CUT}'},
    "sum-too-many": [
        {HEADS: f"all_reduce({HEADS})"},
        {ATTENTION: f"all_reduce({ATTENTION} / 2)", MLP: f"all_reduce({MLP} / 2)"},
    ],
    "ranks-differ": {MLP: 'inner @ mine["down"].T'},
    "sum-too-few": {
        ATTENTION: 'found @ mine["out"].T',
        f"x + {MLP_AND_BIAS}": 'all_reduce(x + inner @ mine["down"].T + mine["down_bias"]) / 2',
    },
    # A rank that holds nothing to add need not add.
    "not-all-ranks-sum": {
        '    h = rms_norm(x, mine["attention_norm"])': """    if (mine["q"] > 0).float().mean() > 0.5:
        all_reduce = lambda part: part
    h = rms_norm(x, mine["attention_norm"])"""
    },
    "changes-the-block": {"mine = dict(block)": "mine = block"},
    "names": {CUT: "    return list(mine.values())"},
    "wrong-shape": {f"return x + {MLP_AND_BIAS}": f"return (x + {MLP_AND_BIAS})[-1]"},
    "wrong-result": {MLP: 'all_reduce(F.silu(inner @ mine["down"].T))'},
}
