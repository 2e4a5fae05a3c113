"""Attention over blocks, implemented twice: in loops like a kernel, and with torch's operations.

Source: Kwon et al. (2023), section 4.1.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def paged_attention_loops(
    q: Sequence[Sequence[float]],
    k_cache: Sequence,
    v_cache: Sequence,
    block_table: Sequence[int],
    context_len: int,
    scale: float | None = None,
) -> list[list[float]]:
    """Attention of one token over a request's blocks, in plain loops.

    Args:
        q: [num_heads][head_dim], the token's queries.
        k_cache, v_cache: [num_blocks][block_size][num_kv_heads][head_dim] as nested lists.
        block_table: physical block of each logical block.
        context_len: tokens to which the query attends, itself included.
        scale: 1 / sqrt(head_dim) if not given.

    Returns:
        [num_heads][head_dim].
    """
    num_heads, head_dim = len(q), len(q[0])
    block_size, num_kv_heads = len(k_cache[0]), len(k_cache[0][0])
    scale = 1 / math.sqrt(head_dim) if scale is None else scale
    out = []
    for head in range(num_heads):
        kv_head = head // (num_heads // num_kv_heads)  # several query heads may share a KV head
        largest, total, acc = -math.inf, 0.0, [0.0] * head_dim
        for logical in range(-(-context_len // block_size)):
            physical = block_table[logical]  # the one line that makes it paged
            tokens_here = min(block_size, context_len - logical * block_size)
            for offset in range(tokens_here):
                key, value = k_cache[physical][offset][kv_head], v_cache[physical][offset][kv_head]
                score = scale * sum(q[head][i] * key[i] for i in range(head_dim))
                if score > largest:  # the sums so far are relative to a smaller maximum
                    shrink = math.exp(largest - score)
                    total *= shrink
                    acc = [shrink * a for a in acc]
                    largest = score
                weight = math.exp(score - largest)
                total += weight
                acc = [a + weight * x for a, x in zip(acc, value, strict=True)]
        out.append([a / total for a in acc])
    return out


def paged_attention_vectorised(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    scale: float | None = None,
) -> Tensor:
    """The same for all tokens of a step: any mixture of long prompts, chunks and single tokens.

    Args:
        q: [N, num_heads, head_dim], the new tokens of all requests, one request after the other.
        k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim].
        block_tables: [B, most blocks] integers; entries after a request's blocks are ignored.
        query_lens: new tokens of each request; they add up to N.
        context_lens: tokens of each request, the new ones included: its query i attends to the
            first context_len - query_len + i + 1.
        scale: 1 / sqrt(head_dim) if not given.

    Returns:
        [N, num_heads, head_dim].
    """
    num_heads, head_dim = q.shape[1:]
    block_size, num_kv_heads = k_cache.shape[1:3]
    scale = 1 / math.sqrt(head_dim) if scale is None else scale
    out, start = torch.empty_like(q), 0
    for table, query_len, context_len in zip(block_tables, query_lens, context_lens, strict=True):
        blocks = table[: -(-context_len // block_size)].long()
        # The gather, a copy: [context_len, num_kv_heads, head_dim].
        keys = k_cache[blocks].flatten(0, 1)[:context_len]
        values = v_cache[blocks].flatten(0, 1)[:context_len]
        keys = keys.repeat_interleave(num_heads // num_kv_heads, dim=1)
        values = values.repeat_interleave(num_heads // num_kv_heads, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q[start : start + query_len], keys) * scale
        future = torch.ones(query_len, context_len, dtype=torch.bool, device=q.device)
        future = future.triu(diagonal=context_len - query_len + 1)
        weights = scores.masked_fill(future, -math.inf).softmax(-1)
        out[start : start + query_len] = torch.einsum("hqk,khd->qhd", weights, values)
        start += query_len
    return out
