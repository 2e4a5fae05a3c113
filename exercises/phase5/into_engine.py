"""The way into the engine for phase 5: attention of single new tokens by the learner's kernel, merge or walk."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from exercises.judging.side_by_side import passed
from exercises.phase3.into_engine import PROMPTS, compare, side_by_side
from exercises.phase5.launching import DEVICE, decode_with
from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase3_paged_attention.paging import BlockManager, PagedKVCache

SHORT = SamplingParams(temperature=0.7, seed=11, max_tokens=6, ignore_eos=True)
PART = 8  # tokens


def _beside_the_course(
    kind: type[PagedKVCache], part: Any, params: SamplingParams, prompts: tuple[str, ...], note: str = ""
) -> None:
    course, _, mine, _ = side_by_side(
        lambda: BlockManager(60),
        lambda: BlockManager(60),
        kind,
        part,
        waves=(prompts,),
        params=params,
        rounds=2,
    )
    compare(mine, course, note=note)


# ---------------------------------------------------------------------- 5.1


class KernelCache(PagedKVCache):
    """Single new tokens attend with the learner's kernel: one launch a layer."""

    part: Any

    def decode(self, layer: int, q: Tensor) -> Tensor:
        tables, lens = torch.from_numpy(self.block_tables), torch.from_numpy(self.context_lens)
        return decode_with(
            self.part, q, self.storage.k_cache[layer], self.storage.v_cache[layer], tables, lens
        )


def kernel_in_the_engine(kernel: Any) -> None:
    """Exercise 5.1."""
    passed("p5e1_paged_decode", kernel)
    note = "" if DEVICE == "cuda" else " (Yours is interpreted here, line by line.)"
    _beside_the_course(KernelCache, kernel, SHORT, PROMPTS[:2], note)


# ---------------------------------------------------------------------- 5.2


class MergingCache(PagedKVCache):
    """Contexts are cut into parts of 8 tokens; the learner's function puts together what the parts found."""

    part: Callable

    def decode(self, layer: int, q: Tensor) -> Tensor:
        out, layout = torch.empty_like(q), self.layout
        group = q.shape[1] // self.storage.num_kv_heads
        most = max(layout.context_lens[i] for i in layout.decodes)
        for row, i in enumerate(layout.decodes):
            n = layout.context_lens[i]
            blocks = torch.tensor(layout.block_tables[i][: -(-n // self.block_size)])
            keys, values = (x.repeat_interleave(group, dim=1) for x in self.storage.gather(layer, blocks, n))
            scores = torch.einsum("hd,thd->ht", q[row], keys) / math.sqrt(q.shape[-1])
            for head in range(q.shape[1]):
                outs, log_sums = [], []
                for first in range(0, most, PART):  # who is shorter than the longest has empty parts
                    s, v = scores[head, first : first + PART], values[first : first + PART, head]
                    outs.append(s.softmax(0) @ v if len(s) else torch.full_like(q[row, head], math.nan))
                    log_sums.append(s.logsumexp(0) if len(s) else torch.tensor(-math.inf))
                out[row, head] = self.part(torch.stack(outs), torch.stack(log_sums))[0]
        return out


def merge_in_the_engine(merge: Callable) -> None:
    """Exercise 5.2."""
    passed("p5e2_merge_splits", merge)
    params = SamplingParams(temperature=0.7, seed=11, max_tokens=12, ignore_eos=True)
    _beside_the_course(MergingCache, merge, params, PROMPTS)


# ---------------------------------------------------------------------- 5.3


class WalkingCache(PagedKVCache):
    """The learner's walk says which slots to fetch; a tile is 12 tokens, a block 16."""

    part: Callable
    tile = 12

    def decode(self, layer: int, q: Tensor) -> Tensor:
        out, layout = torch.empty_like(q), self.layout
        group = q.shape[1] // self.storage.num_kv_heads
        k_slots, v_slots = (c[layer].flatten(0, 1) for c in (self.storage.k_cache, self.storage.v_cache))
        for row, i in enumerate(layout.decodes):
            table, slots = np.asarray(layout.block_tables[i]), []

            def load(logical, valid, table=table):
                return np.where(valid, table[np.where(valid, logical, 0)], 0)

            def fetch(pages, offsets, valid, slots=slots):
                slots.append((np.asarray(pages) * self.block_size + np.asarray(offsets))[np.asarray(valid)])

            self.part(load, fetch, layout.context_lens[i], self.block_size, self.tile)
            mine = torch.from_numpy(np.concatenate(slots))
            keys, values = (c[mine].repeat_interleave(group, dim=1) for c in (k_slots, v_slots))
            weights = (torch.einsum("hd,thd->ht", q[row], keys) / math.sqrt(q.shape[-1])).softmax(-1)
            out[row] = torch.einsum("ht,thd->hd", weights, values)
        return out


def walk_in_the_engine(tile_places: Callable, walk: Callable) -> None:
    """Exercise 5.3."""
    passed("p5e3_page_ids", tile_places, walk)
    params = SamplingParams(temperature=0.7, seed=11, max_tokens=24, ignore_eos=True)
    _beside_the_course(WalkingCache, walk, params, PROMPTS)
