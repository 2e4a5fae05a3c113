"""The way into the engine for phase 5: attention of single new tokens by the learner's kernel, merge or walk."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from exercises.judging.engine_runs import PROMPTS, TokenByToken, compare, run
from exercises.judging.side_by_side import passed
from exercises.phase5.launching import decode_with
from phase2_attention_kvcache.model import SamplingParams
from phase3_paged_attention.paging import PagedKVCache


def _beside_the_course(
    kind: type[PagedKVCache], part: Any, max_tokens: int, prompts: tuple[str, ...] = PROMPTS
) -> None:
    params = SamplingParams(temperature=0.7, seed=11, max_tokens=max_tokens, ignore_eos=True)
    compare(run((prompts,), params, kind=kind, part=part), run((prompts,), params))


class KernelCache(PagedKVCache):
    """Single new tokens attend with the learner's kernel: one launch a layer."""

    part: Any

    def decode(self, layer: int, q: Tensor) -> Tensor:
        tables, lens = torch.from_numpy(self.block_tables), torch.from_numpy(self.context_lens)
        k_cache, v_cache = self.storage.k_cache[layer], self.storage.v_cache[layer]
        return decode_with(self.part, q, k_cache, v_cache, tables, lens)


def kernel_in_the_engine(kernel: Any) -> None:
    """Exercise 5.1."""
    passed("p5e1_paged_decode", kernel)
    _beside_the_course(KernelCache, kernel, 6, PROMPTS[:2])


class MergingCache(TokenByToken):
    """Contexts are cut into parts of 8 tokens; the learner's function puts together what the parts found."""

    def attend_token(self, layer: int, q: Tensor, table: list[int], length: int) -> Tensor:
        group, out = q.shape[0] // self.storage.num_kv_heads, []
        longest = int(max(self.context_lens))  # a shorter request has empty parts at its end
        keys, values = (x.repeat_interleave(group, dim=1) for x in self.keys_and_values(layer, table, length))
        scores = torch.einsum("hd,thd->ht", q, keys) / math.sqrt(q.shape[-1])
        for head in range(q.shape[0]):
            outs, log_sums = [], []
            for first in range(0, longest, 8):
                s, v = scores[head, first : first + 8], values[first : first + 8, head]
                outs.append(s.softmax(0) @ v if len(s) else torch.full_like(q[head], math.nan))
                log_sums.append(s.logsumexp(0) if len(s) else torch.tensor(-math.inf))
            out.append(self.part(torch.stack(outs), torch.stack(log_sums))[0])
        return torch.stack(out)


def merge_in_the_engine(merge: Callable) -> None:
    """Exercise 5.2."""
    passed("p5e2_merge_splits", merge)
    _beside_the_course(MergingCache, merge, 12)


class WalkingCache(TokenByToken):
    """The learner's walk says which slots to fetch; a tile is 12 tokens, a block 16."""

    def attend_token(self, layer: int, q: Tensor, table: list[int], length: int) -> Tensor:
        pages, slots = np.asarray(table), []

        def load(logical, valid):
            return np.where(valid, pages[np.where(valid, logical, 0)], 0)

        def fetch(pages, offsets, valid):
            slots.append(
                (np.asarray(pages) * self.storage.block_size + np.asarray(offsets))[np.asarray(valid)]
            )

        self.part(load, fetch, length, self.storage.block_size, 12)
        mine, group = torch.from_numpy(np.concatenate(slots)), q.shape[0] // self.storage.num_kv_heads
        caches = (cache[layer].flatten(0, 1)[mine] for cache in (self.storage.k_cache, self.storage.v_cache))
        keys, values = (x.repeat_interleave(group, dim=1) for x in caches)
        weights = (torch.einsum("hd,thd->ht", q, keys) / math.sqrt(q.shape[-1])).softmax(-1)
        return torch.einsum("ht,thd->hd", weights, values)


def walk_in_the_engine(tile_places: Callable, walk: Callable) -> None:
    """Exercise 5.3."""
    passed("p5e3_page_ids", tile_places, walk)
    _beside_the_course(WalkingCache, walk, 24)
