CHUNK = "block[name].chunk(ranks,"
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
    {  # the groups in another order, and every n-th inner number
        f"{CHUNK} dim=0)[rank]": f'{CHUNK} dim=0)[~rank] if name in "qkv" else block[name][rank::ranks]',
        f"{CHUNK} dim=1)[rank]": f'{CHUNK} dim=1)[~rank] if name == "out" else block[name][:, rank::ranks]',
    },
]
WRONG = {
    "wrong-shape": {f'return x + {MLP} + mine["down_bias"]': f'return (x + {MLP} + mine["down_bias"])[-1]'},
    "wrong-result": {MLP: 'all_reduce(F.silu(inner @ mine["down"].T))'},
}
