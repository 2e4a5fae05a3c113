"""Answers to p2e6_top_p: right ones, and mistakes by the diagnosis they must get."""

import torch


def in_loops(probs, p):
    order = sorted(range(len(probs)), key=lambda token: -float(probs[token]))
    kept, total = [], 0.0
    for token in order:
        kept.append(token)
        total += float(probs[token])
        if total >= p:
            break
    out = torch.zeros(len(probs))
    for token in kept:
        out[token] = float(probs[token]) / total
    return out


def from_the_tail(probs, p):
    """As vLLM does it: ascending, and cut what holds no more than 1 - p together."""
    ordered, places = probs.double().sort(stable=True)
    ordered[ordered.cumsum(0) <= 1 - p + 1e-9] = 0
    out = torch.zeros_like(ordered)
    out.scatter_(0, places, ordered)
    return out / out.sum()


RIGHT = [
    in_loops,
    from_the_tail,
    {"kept = torch.zeros_like(probs)\n    kept[places] = ": "kept = probs\n    kept[places] = "},  # in place
]
