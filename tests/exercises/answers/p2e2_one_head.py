import math

import torch
import torch.nn.functional as F


def scaled_first(q, k, v, mask):
    """1/sqrt(d) on the queries; an additive mask; softmax by hand, in double."""
    scores = torch.einsum("nd,md->nm", (q / math.sqrt(q.size(1))).double(), k.double())
    scores = scores + torch.zeros_like(scores).masked_fill(mask.logical_not(), -torch.inf)
    e = torch.exp(scores - scores.amax(1, keepdim=True))
    return (e / e.sum(1, keepdim=True)) @ v.double()


SCALE = " / q.shape[-1] ** 0.5"
MASKED = 'scores.masked_fill(~mask, float("-inf"))'
SOFTMAX = f"torch.softmax({MASKED}, dim=-1)"
RIGHT = [
    lambda q, k, v, mask: F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask[None])[0],
    scaled_first,
]
WRONG = {
    "head-row-all-masked": {"~mask": "mask", SCALE: " / len(q) ** 0.5"},
    "head-overflows": [
        {SOFTMAX: "(e := torch.exp(scores) * mask) / e.sum(-1, keepdim=True)"},
        {SOFTMAX: f"(e := torch.exp({MASKED} - {MASKED}.max())) / e.sum(-1, keepdim=True)"},
        # The softmax of all, shared out again among the visible: equal, as long as nothing is too small.
        {SOFTMAX: "(w := torch.softmax(scores, dim=-1) * mask) / w.sum(dim=-1, keepdim=True)"},
    ],
    "changes-its-input": [
        {"k.T / q.shape[-1] ** 0.5": "k.div_(q.shape[-1] ** 0.5).T"},
        {"~mask": "mask.logical_not_()"},
    ],
}
