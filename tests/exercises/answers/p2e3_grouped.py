import torch
import torch.nn.functional as F


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


RIGHT = [by_library, by_einsum]
WRONG = {"changes-its-input": {"    group = ": "    q, k = q * 2, k.div_(2)\n    group = "}}
