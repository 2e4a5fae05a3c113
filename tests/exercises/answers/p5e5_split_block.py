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


MLP = 'all_reduce(inner @ mine["down"].T)'
RIGHT = [
    # The other ranks have zeros for a bias, so it may go into the sum.
    {
        "    return mine": """    if rank:
        mine |= {name: 0 * block[name] for name in ("out_bias", "down_bias")}
    return mine""",
        'all_reduce(found @ mine["out"].T) + mine["out_bias"]': 'all_reduce(found @ mine["out"].T + mine["out_bias"])',
        f'{MLP} + mine["down_bias"]': 'all_reduce(inner @ mine["down"].T + mine["down_bias"])',
    },
    {"cut": scattered},
]
WRONG = {
    "wrong-shape": {f'return x + {MLP} + mine["down_bias"]': f'return (x + {MLP} + mine["down_bias"])[-1]'},
    "wrong-result": {MLP: 'all_reduce(F.silu(inner @ mine["down"].T))'},
}
