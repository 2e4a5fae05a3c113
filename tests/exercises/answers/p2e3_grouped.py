"""Answers to p2e3_grouped: right ones, and mistakes by the diagnosis they must get."""

import torch
import torch.nn.functional as F

from tests.exercises.changed import changed


def by_library(q, k, v):
    n, m = len(q), len(k)
    mask = torch.ones(n, m, dtype=torch.bool).tril(m - n)
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)[0].transpose(0, 1)


def by_einsum(q, k, v):
    """The query heads in a dimension of their own: nothing is copied."""
    n, heads, d = q.shape
    m, kv_heads = k.shape[:2]
    grouped = q.reshape(n, kv_heads, heads // kv_heads, d)
    scores = torch.einsum("ngrd,mgd->grnm", grouped, k) * d**-0.5
    scores = scores + torch.full((n, m), -torch.inf).triu(m - n + 1)
    return torch.einsum("grnm,mgd->ngrd", scores.softmax(-1), v).reshape(n, heads, d)


def is_causal(q, k, v):
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)


SHARED = "h // group"
STACKED = "torch.stack(outputs, dim=1)"
EACH_HEAD = "q[:, h], k[:, h // group], v[:, h // group]) for h in range(num_heads)"
RIGHT = [by_library, by_einsum]
WRONG = {
    "group-repeat-not-interleave": [
        {SHARED: "h % num_kv_heads"},
        {
            EACH_HEAD: "q[:, h], k.repeat(1, group, 1)[:, h], v.repeat(1, group, 1)[:, h]) for h in range(num_heads)"
        },
    ],
    "group-only-the-first": {SHARED: "0"},
    "group-divided-by-kv-heads": {SHARED: "h // num_kv_heads"},
    "group-always-two": {SHARED: "h // 2"},
    "group-backwards": {SHARED: "-1 - h // group"},
    "group-no-sharing": {SHARED: "min(h, num_kv_heads - 1)"},
    "group-heads-stacked-first": {STACKED: "torch.stack(outputs)"},
    "group-heads-mixed-up": {STACKED: "torch.stack(outputs).view(q.shape)"},
    "group-queries-averaged": {
        EACH_HEAD: "q[:, g * group : (g + 1) * group].mean(1), k[:, g], v[:, g]) for g in range(num_kv_heads)"
    },
    "group-mask-top-left": is_causal,
    "group-no-mask": changed(is_causal, {"is_causal=True, ": ""}),
    "group-changes-its-input": {"    group = ": "    q, k = q * 2, k.div_(2)\n    group = "},
}
