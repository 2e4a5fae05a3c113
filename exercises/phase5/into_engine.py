"""The way into the engine for phase 5: in decode the learner's kernel, merge or walk attends in the small engine."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
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
    """Exercise 5.2: contexts are cut into parts of 8 tokens, the last one empty; the learner's function puts together what they found."""

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


def walk_in_the_engine(tile_places: Callable, walk: Callable) -> None:
    """Exercise 5.3: the learner's walk says which slots to fetch; a tile is 12 tokens, a block 16."""

    def attend_token(cache: Any, layer: int, q: Tensor, table: list[int], length: int) -> Tensor:
        pages, slots = np.asarray(table), []

        def load(logical, valid):
            return np.where(valid, pages[np.where(valid, logical, 0)], 0)

        def fetch(pages, offsets, valid):
            slots.append((np.asarray(pages) * cache.block_size + np.asarray(offsets))[np.asarray(valid)])

        walk(load, fetch, length, cache.block_size, 12)
        mine = torch.from_numpy(np.concatenate(slots))
        keys, values = cache.keys[layer][mine], cache.values[layer][mine]
        weights = (torch.einsum("hd,thd->ht", q, keys) / math.sqrt(q.shape[-1])).softmax(-1)
        return torch.einsum("ht,thd->hd", weights, values)

    parts = {"PagedCache": cache_with(attend_token)}
    in_your_engine("p5e3_page_ids", tile_places, walk, parts=parts)
