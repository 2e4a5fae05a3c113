"""Answers to p2e3_grouped: right ones, and mistakes by the diagnosis they must get."""

import torch
import torch.nn.functional as F

from tests.exercises.changed import changed


def one_head(q, k, v):
    n, m = len(q), len(k)
    future = torch.ones(n, m, dtype=torch.bool).triu(diagonal=m - n + 1)
    scores = (q @ k.T / q.shape[-1] ** 0.5).masked_fill(future, float("-inf"))
    return torch.softmax(scores, dim=-1) @ v


def by_heads(q, k, v, kv_head, attend=one_head):
    out = torch.zeros_like(q)
    for h in range(q.shape[1]):
        g = kv_head(h, q.shape[1], k.shape[1])
        out[:, h] = attend(q[:, h], k[:, g], v[:, g])
    return out


def shared(h, heads, kv_heads):
    return h * kv_heads // heads


def group_by_group(q, k, v):
    """For each KV head its query heads, in turn."""
    out, group = [], q.shape[1] // k.shape[1]
    for g in range(k.shape[1]):
        for h in range(g * group, (g + 1) * group):
            out.append(one_head(q[:, h], k[:, g], v[:, g]))
    return torch.stack(out, dim=1)


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


def by_repeating(q, k, v):
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    return torch.stack([one_head(*x) for x in zip(q.unbind(1), k.unbind(1), v.unbind(1))], dim=1)


def repeat(q, k, v):
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat(1, group, 1), v.repeat(1, group, 1)
    return by_heads(q, k, v, lambda h, heads, kv_heads: h)


def stacked_first(q, k, v):
    return torch.stack([one_head(q[:, h], k[:, g], v[:, g]) for h, g in _pairs(q, k)])


def _pairs(q, k):
    return [(h, shared(h, q.shape[1], k.shape[1])) for h in range(q.shape[1])]


def averaged(q, k, v):
    group = q.shape[1] // k.shape[1]
    heads = [one_head(q[:, g * group : (g + 1) * group].mean(1), k[:, g], v[:, g]) for g in range(k.shape[1])]
    return torch.stack(heads, dim=1)


def is_causal(q, k, v):
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)


def scales_the_cache(q, k, v):
    k *= q.shape[-1] ** -0.5
    return by_heads(q * q.shape[-1] ** 0.5, k, v, shared)


RIGHT = [group_by_group, by_library, by_einsum, by_repeating]
WRONG = {
    "group-repeat-not-interleave": [
        lambda q, k, v: by_heads(q, k, v, lambda h, heads, kv_heads: h % kv_heads),
        repeat,
    ],
    "group-only-the-first": lambda q, k, v: by_heads(q, k, v, lambda h, heads, kv_heads: 0),
    "group-divided-by-kv-heads": lambda q, k, v: by_heads(q, k, v, lambda h, heads, kv_heads: h // kv_heads),
    "group-always-two": lambda q, k, v: by_heads(q, k, v, lambda h, heads, kv_heads: h // 2),
    "group-backwards": lambda q, k, v: by_heads(
        q, k, v, lambda h, heads, kv_heads: -1 - h // (heads // kv_heads)
    ),
    "group-no-sharing": lambda q, k, v: by_heads(q, k, v, lambda h, heads, kv_heads: min(h, kv_heads - 1)),
    "group-heads-stacked-first": stacked_first,
    "group-heads-mixed-up": lambda q, k, v: stacked_first(q, k, v).view(q.shape),
    "group-queries-averaged": averaged,
    "group-mask-top-left": is_causal,
    "group-no-mask": changed(is_causal, {"is_causal=True, ": ""}),
    "group-changes-its-input": scales_the_cache,
}
