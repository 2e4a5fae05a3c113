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


def share_out_again(q, k, v, mask):
    """The softmax of all, the masked ones to 0, and divided by the rest's sum: equal, as long as nothing is too small."""
    weights = torch.softmax(q @ k.T / q.shape[-1] ** 0.5, dim=-1) * mask
    return weights / weights.sum(dim=-1, keepdim=True) @ v


def _head(q, k, v, mask, scale=None, dim=-1, fill=float("-inf")):
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = (q @ k.T * scale).masked_fill(~mask, fill)
    return torch.softmax(scores, dim=dim) @ v


def mask_after(q, k, v, mask):
    weights = torch.softmax(q @ k.T / math.sqrt(q.shape[-1]), dim=-1)
    return weights.masked_fill(~mask, 0) @ v


def overflows(q, k, v, mask):
    e = torch.exp(q @ k.T / math.sqrt(q.shape[-1])) * mask
    return e / e.sum(-1, keepdim=True) @ v


def largest_of_all(q, k, v, mask):
    scores = (q @ k.T / math.sqrt(q.shape[-1])).masked_fill(~mask, float("-inf"))
    e = torch.exp(scores - scores.max())
    return e / e.sum(-1, keepdim=True) @ v


def scales_keys_in_place(q, k, v, mask):
    k /= math.sqrt(q.shape[-1])
    return _head(q, k, v, mask, scale=1)


RIGHT = [
    in_loops,
    lambda q, k, v, mask: F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask[None])[0],
    scaled_first,
    very_low_number,
]
WRONG = {
    "head-not-scaled": lambda q, k, v, mask: _head(q, k, v, mask, scale=1),
    "head-divided-by-d": lambda q, k, v, mask: _head(q, k, v, mask, scale=1 / q.shape[-1]),
    "head-scaled-by-tokens": [
        lambda q, k, v, mask: _head(q, k, v, mask, scale=len(k) ** -0.5),
        lambda q, k, v, mask: _head(q, k, v, mask, scale=q.shape[0] ** -0.5),
    ],
    "head-multiplied": lambda q, k, v, mask: _head(q, k, v, mask, scale=math.sqrt(q.shape[-1])),
    "head-softmax-over-queries": lambda q, k, v, mask: _head(q, k, v, mask, dim=0),
    "head-masked-after-softmax": mask_after,
    "head-masked-with-zero": lambda q, k, v, mask: _head(q, k, v, mask, fill=0.0),
    "head-no-mask": lambda q, k, v, mask: torch.softmax(q @ k.T / math.sqrt(q.shape[-1]), dim=-1) @ v,
    "head-mask-inverted": lambda q, k, v, mask: _head(q, k, v, ~mask),
    "head-own-mask": [
        lambda q, k, v, mask: _head(q, k, v, torch.ones_like(mask).tril(len(k) - len(q))),
        lambda q, k, v, mask: F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0],
    ],
    "head-no-softmax": lambda q, k, v, mask: (q @ k.T / math.sqrt(q.shape[-1])).masked_fill(~mask, 0) @ v,
    "head-overflows": [overflows, largest_of_all, share_out_again],
    "head-masked-not-low-enough": [
        lambda q, k, v, mask: _head(q, k, v, mask, fill=-1e4),
        lambda q, k, v, mask: _head(q, k, v, mask, fill=-100.0),
    ],
    "head-changes-its-input": [
        scales_keys_in_place,
        lambda q, k, v, mask: (
            torch.softmax((q @ k.T / math.sqrt(q.shape[-1])).masked_fill(mask.logical_not_(), -math.inf), -1)
            @ v
        ),
    ],
}
