import torch
import torch.nn.functional as F


def by_library(q, k, v):
    n, m = len(q), len(k)
    mask = torch.ones(n, m, dtype=torch.bool).tril(m - n)
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)[0].transpose(0, 1)


RIGHT = [by_library]
WRONG = {"changes-its-input": {"    group = ": "    q, k = q * 2, k.div_(2)\n    group = "}}
