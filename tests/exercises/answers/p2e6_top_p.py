import torch


def from_the_tail(probs, p):
    """As vLLM does it: ascending, and cut what holds no more than 1 - p together."""
    ordered, places = probs.double().sort(stable=True)
    ordered[ordered.cumsum(0) <= 1 - p + 1e-9] = 0
    out = torch.zeros_like(ordered)
    out.scatter_(0, places, ordered)
    return out / out.sum()


RIGHT = [
    from_the_tail,
    {"kept = torch.zeros_like(probs)\n    kept[places] = ": "kept = probs\n    kept[places] = "},  # in place
]
