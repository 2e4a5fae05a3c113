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


def in_place(probs, p):
    order = torch.argsort(probs, descending=True)
    before = torch.cumsum(probs[order], 0).roll(1)
    before[0] = 0
    probs[order[before >= p]] = 0
    probs /= probs.sum()
    return probs


def _keep(probs, p, keep, divide=True):
    ordered, places = torch.sort(probs, descending=True)
    ordered = ordered * keep(ordered, ordered.cumsum(0))
    out = torch.zeros_like(probs)
    out[places] = ordered
    return out / out.sum() if divide else out


def crossing_cut_but_one(probs, p):
    def keep(ordered, cumsum):
        keep = cumsum <= p
        keep[0] = True
        return keep

    return _keep(probs, p, keep)


def one_too_many(probs, p):
    def keep(ordered, cumsum):
        count = int((cumsum < p).sum()) + 2
        return torch.arange(len(ordered)) < count

    return _keep(probs, p, keep)


def empty(probs, p):
    def keep(ordered, cumsum):
        remove = cumsum > p
        remove[1:] = remove[:-1].clone()
        return ~remove

    return _keep(probs, p, keep)


def not_divided(probs, p):
    return _keep(probs, p, lambda o, c: c - o < p, divide=False)


def softmax_of_kept(probs, p):
    kept = not_divided(probs, p)
    return torch.softmax(torch.where(kept > 0, kept, -torch.inf), dim=0)


def stays_sorted(probs, p):
    ordered = probs.sort(descending=True).values
    kept = ordered * (ordered.cumsum(0) - ordered < p)
    return kept / kept.sum()


def put_back_wrongly(probs, p):
    ordered, places = probs.sort(descending=True)
    kept = ordered * (ordered.cumsum(0) - ordered < p)
    return kept[places] / kept.sum()


def single(probs, p):
    kept = torch.where(probs >= p, probs, 0)
    return kept / kept.sum()


def ascending(probs, p):
    ordered, places = probs.sort()
    out = torch.zeros_like(probs)
    out[places] = ordered * (ordered.cumsum(0) - ordered < p)
    return out / out.sum()


def by_id(probs, p):
    kept = probs * (probs.cumsum(0) - probs < p)
    return kept / kept.sum()


RIGHT = [in_loops, by_least_kept, from_the_tail, in_place]
WRONG = {
    "top-p-cuts-the-crossing-token": [
        lambda probs, p: _keep(probs, p, lambda o, c: c <= p),
        crossing_cut_but_one,
    ],
    "top-p-keeps-one-too-many": [one_too_many, lambda probs, p: _keep(probs, p, lambda o, c: c - o <= p)],
    "top-p-empty": empty,
    "top-p-not-divided": not_divided,
    "top-p-divided-by-p": lambda probs, p: not_divided(probs, p) / p,
    "top-p-softmax-again": [lambda probs, p: torch.softmax(not_divided(probs, p), dim=0), softmax_of_kept],
    "top-p-order-lost": stays_sorted,
    "top-p-put-back-wrongly": put_back_wrongly,
    "top-p-single-probability": single,
    "top-p-least-likely-first": ascending,
    "top-p-not-sorted": by_id,
    "top-p-nothing-cut": lambda probs, p: probs / probs.sum(),
}
