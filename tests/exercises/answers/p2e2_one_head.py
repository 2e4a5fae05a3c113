import torch.nn.functional as F

from exercises.phase2.grade_attention import MASKED, SCALE, SOFTMAX

RIGHT = [
    lambda q, k, v, mask: F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask[None])[0]
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
