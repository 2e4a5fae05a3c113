"""Answers to p2e2_one_head: right ones, and mistakes by the diagnosis they must get."""

import math

import torch
import torch.nn.functional as F


def in_loops(q, k, v, mask):
    rows = []
    for i in range(len(q)):
        scores = []
        for j in range(len(k)):
            score = float(torch.dot(q[i], k[j])) / math.sqrt(len(q[i]))
            scores.append(score if mask[i, j] else float("-inf"))
        largest = max(scores)
        weights = [math.exp(s - largest) for s in scores]
        row = torch.zeros(v.shape[1])
        for weight, value in zip(weights, v):
            row += weight / sum(weights) * value
        rows.append(row)
    return torch.stack(rows)


def scaled_first(q, k, v, mask):
    """1/sqrt(d) on the queries; an additive mask; softmax by hand, in double."""
    scores = torch.einsum("nd,md->nm", (q / math.sqrt(q.size(1))).double(), k.double())
    scores = scores + torch.zeros_like(scores).masked_fill(mask.logical_not(), -torch.inf)
    e = torch.exp(scores - scores.amax(1, keepdim=True))
    return (e / e.sum(1, keepdim=True)) @ v.double()


def very_low_number(q, k, v, mask):
    scores = (q @ k.transpose(0, 1)) / q.shape[1] ** 0.5
    scores[~mask] = torch.finfo(scores.dtype).min
    return scores.softmax(dim=1) @ v


SCALE = " / q.shape[-1] ** 0.5"
MASKED = 'scores.masked_fill(~mask, float("-inf"))'
SOFTMAX = f"torch.softmax({MASKED}, dim=-1)"
RIGHT = [
    in_loops,
    lambda q, k, v, mask: F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask[None])[0],
    scaled_first,
    very_low_number,
]
WRONG = {
    "head-not-scaled": {SCALE: ""},
    "head-divided-by-d": {SCALE: " / q.shape[-1]"},
    "head-scaled-by-tokens": [{SCALE: " / len(k) ** 0.5"}, {SCALE: " / len(q) ** 0.5"}],
    "head-multiplied": {SCALE: " * q.shape[-1] ** 0.5"},
    "head-softmax-over-queries": {"dim=-1": "dim=0"},
    "head-masked-after-softmax": {MASKED: "scores", "weights @ v": "weights.masked_fill(~mask, 0) @ v"},
    "head-masked-with-zero": {'float("-inf")': "0.0"},
    "head-no-mask": {MASKED: "scores"},
    "head-mask-inverted": {"~mask": "mask"},
    "head-own-mask": [
        {"~mask": "torch.ones_like(mask).triu(len(k) - len(q) + 1)"},
        {"~mask": "torch.ones_like(mask).triu(1)"},
    ],
    "head-no-softmax": {SOFTMAX: "scores.masked_fill(~mask, 0)"},
    "head-overflows": [
        {SOFTMAX: "(e := torch.exp(scores) * mask) / e.sum(-1, keepdim=True)"},
        {SOFTMAX: f"(e := torch.exp({MASKED} - {MASKED}.max())) / e.sum(-1, keepdim=True)"},
        # The softmax of all, shared out again among the visible: equal, as long as nothing is too small.
        {SOFTMAX: "(w := torch.softmax(scores, dim=-1) * mask) / w.sum(dim=-1, keepdim=True)"},
    ],
    "head-masked-not-low-enough": [{'float("-inf")': "-1e4"}, {'float("-inf")': "-100.0"}],
    "head-changes-its-input": [
        {f"k.T{SCALE}": "k.div_(q.shape[-1] ** 0.5).T"},
        {"~mask": "mask.logical_not_()"},
    ],
}
