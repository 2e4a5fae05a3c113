"""Temperature, min-p, top-k and top-p: from logits to the probabilities from which a token is drawn.

Source: vllm/v1/sample/ops/topk_topp_sampler.py; top-p: Holtzman et al. (2020), section 3.1.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch

from phase2_attention_kvcache.model.sampling_params import SamplingParams

LOWEST_TEMPERATURE = 0.01  # a smaller one is raised to this, as in vLLM: dividing by less overflows
HIGHEST_TEMPERATURE = 1e30  # a larger one is as flat, and float32 might not hold it
SURE_HEAD = 256  # top_p examines this many of the most probable tokens before it sorts a whole vocabulary; for so many numpy sorts


def to_probs(logits: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """Temperature, min_p, top_k, top_p: logits [B, vocab] -> probabilities [B, vocab], in float32 or more.

    Tokens exactly as likely as the last one kept are kept as well, in top_k (as in vLLM) and in top_p: so the
    result never depends on the order of equal logits, which are frequent in 16 bits.
    """

    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, device=logits.device)[:, None]

    temperatures = [min(max(p.temperature, LOWEST_TEMPERATURE), HIGHEST_TEMPERATURE) for p in params]
    logits = logits / column([1.0 if p.greedy else t for p, t in zip(params, temperatures, strict=True)])
    if any(p.min_p > 0 for p in params):
        # p_token < min_p x p_best is the same as logit < best logit + log(min_p).
        below = column([math.log(p.min_p) if p.min_p > 0 else -math.inf for p in params])
        logits = logits.masked_fill(logits < logits.amax(-1, keepdim=True) + below, -math.inf)
    vocab = logits.shape[1]
    ks = [p.top_k if 0 < p.top_k < vocab else vocab for p in params]
    if largest := max((k for k in ks if k < vocab), default=0):
        kth = most_probable(logits, largest).gather(1, column(ks).clamp(max=largest) - 1)
        kth = kth.masked_fill(column(ks) == vocab, -math.inf)
        logits = logits.masked_fill(logits < kth, -math.inf)
    probs = logits.softmax(-1)
    if rows := [i for i, p in enumerate(params) if p.top_p < 1]:
        kept = apply_top_p(probs[rows], column([p.top_p for p in params])[rows])
        probs[rows] = kept / kept.sum(-1, keepdim=True)
    return probs


def apply_top_p(probs: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Set all but the most probable tokens that reach `top_p` [B, 1] to 0. The rest is not made to add up to 1."""
    # Sorting a whole vocabulary is the slowest part of a sampler, and few tokens are mostly enough. So look
    # at a few hundred of the most probable, and sort everything only for the rows where these do not reach top_p.
    # On a CPU all are sorted anyway.
    head = most_probable(probs, probs.shape[1] if probs.is_cpu else SURE_HEAD)
    lowest = _lowest_kept(head, top_p)
    if not probs.is_cpu and (flat := (head.sum(-1) < top_p[:, 0]).nonzero().flatten().tolist()):
        lowest[flat] = _lowest_kept(most_probable(probs[flat], probs.shape[1]), top_p[flat])
    return probs.masked_fill(probs < lowest, 0.0)


def most_probable(values: torch.Tensor, count: int) -> torch.Tensor:
    """The largest values [B, count] of each row of `values` [B, vocab] in descending order, or all if there are fewer."""
    if values.is_cpu and count >= SURE_HEAD:  # it sorts 8,192 sooner than torch finds the 256 largest
        return -torch.from_numpy(np.sort(-values.detach().numpy())[:, :count])
    return values.topk(min(count, values.shape[1]), dim=-1).values


def _lowest_kept(descending: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The probability [B, 1] of the token with which sorted probabilities [B, n] reach `top_p` [B, 1]."""
    before = descending.cumsum(-1) - descending  # what the likelier ones hold together
    last = (before < top_p).sum(-1, keepdim=True) - 1
    last = last.clamp(min=0)  # a top_p that is 0 in float32 keeps the most probable one as well
    return descending.gather(1, last)
