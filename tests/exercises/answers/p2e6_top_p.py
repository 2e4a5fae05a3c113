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


def by_least_kept(probs, p):
    """No scatter: the probability of the last one kept says who stays."""
    ordered = probs.sort(descending=True).values
    count = int((ordered.cumsum(0) < p).sum()) + 1
    least = ordered[min(count, len(ordered)) - 1]
    kept = torch.where(probs >= least, probs, 0.0)
    return kept / kept.sum()


def from_the_tail(probs, p):
    """As vLLM does it: ascending, and cut what holds no more than 1 - p together."""
    ordered, places = probs.double().sort(stable=True)
    ordered[ordered.cumsum(0) <= 1 - p + 1e-9] = 0
    out = torch.zeros_like(ordered)
    out.scatter_(0, places, ordered)
    return out / out.sum()


KEPT = "before < p"
PUT_BACK = "kept[places] = ordered.where(before < p, 0.0)"
SHARES = "return kept / kept.sum()"
RIGHT = [
    in_loops,
    by_least_kept,
    from_the_tail,
    {"kept = torch.zeros_like(probs)\n    kept[places] = ": "kept = probs\n    kept[places] = "},  # in place
]
WRONG = {
    "top-p-cuts-the-crossing-token": [
        {KEPT: "before + ordered <= p"},
        {KEPT: "(before + ordered <= p).index_fill(0, torch.tensor(0), True)"},
    ],
    "top-p-keeps-one-too-many": [
        {KEPT: "torch.arange(len(ordered)) < (ordered.cumsum(0) < p).sum() + 2"},
        {KEPT: "before <= p"},
    ],
    "top-p-empty": {KEPT: "~torch.cat(((above := ordered.cumsum(0) > p)[:1], above[:-1]))"},
    "top-p-not-divided": {SHARES: "return kept"},
    "top-p-divided-by-p": {SHARES: "return kept / p"},
    "top-p-softmax-again": [
        {SHARES: "return torch.softmax(kept, dim=0)"},
        {SHARES: "return torch.softmax(kept.masked_fill(kept == 0, -torch.inf), dim=0)"},
    ],
    "top-p-order-lost": {"kept[places] =": "kept[:] ="},
    "top-p-put-back-wrongly": {PUT_BACK: "kept = ordered.where(before < p, 0.0)[places]"},
    "top-p-single-probability": [
        {KEPT: "ordered >= p"},
        {KEPT: "ordered >= 1 - p"},
        {KEPT: "ordered >= p * ordered[0]"},
    ],
    "top-p-least-likely-first": {"descending=True": "descending=False"},
    "top-p-not-sorted": {"probs.sort(descending=True)": "probs, torch.arange(len(probs))"},
    "top-p-nothing-cut": {KEPT: "before < 2"},
}
