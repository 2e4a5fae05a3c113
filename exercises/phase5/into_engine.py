"""The way into the engine for phase 5: in decode the learner's kernel or merge attends in the small engine."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from exercises.capstone.your_engine import cache_with, in_your_engine
from exercises.judging.engine_runs import PROMPTS
from exercises.phase5.launching import decode_with


def kernel_in_the_engine(kernel: Any) -> None:
    """Exercise 5.1: one launch for each request and layer."""

    def attend_token(cache: Any, layer: int, q: Tensor, table: list[int], length: int) -> Tensor:
        tables, lens = (torch.tensor(x, dtype=torch.int32) for x in ([table], [length]))
        return decode_with(kernel, q[None], *cache.blocks(layer), tables, lens)[0]

    parts = {"PagedCache": cache_with(attend_token)}
    in_your_engine("p5e1_paged_decode", kernel, parts=parts, waves=(PROMPTS[:2],), tokens=6)


def merge_in_the_engine(merge: Callable) -> None:
    """Exercise 5.2: contexts are divided into splits of 8 tokens, the last one empty; the learner's function merges their results."""

    def attend_token(cache: Any, layer: int, q: Tensor, table: list[int], length: int) -> Tensor:
        keys, values = cache.of_request(layer, table, length)
        scores, out = torch.einsum("hd,thd->ht", q, keys) / math.sqrt(q.shape[-1]), []
        for head in range(len(q)):
            outs, log_sums = [], []
            for first in range(0, length + 8, 8):
                s, v = scores[head, first : first + 8], values[first : first + 8, head]
                outs.append(s.softmax(0) @ v if len(s) else torch.full_like(q[head], math.nan))
                log_sums.append(s.logsumexp(0) if len(s) else torch.tensor(-math.inf))
            out.append(merge(torch.stack(outs), torch.stack(log_sums))[0])
        return torch.stack(out)

    in_your_engine("p5e2_merge_splits", merge, parts={"PagedCache": cache_with(attend_token)})
