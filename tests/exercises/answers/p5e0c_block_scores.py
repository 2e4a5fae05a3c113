SUM = "tl.sum(tile * tl.load(q + dims)[None, :], axis=1)"
RIGHT = {"other=0.0": "other=1.0", SUM: "tl.sum(tl.load(q + dims)[:, None] * tl.trans(tile), axis=0)"}
