"""Attention of a step's prompts: neighbours of equal lengths attend in one call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from phase2_attention_kvcache.model.caches import AttentionRule, causal_attention
from phase3_paged_attention.paging.kv_storage import KVStorage

TOKENS_AT_ONCE = 1152  # in a group: more keys and values would not stay in a processor's caches


@dataclass
class Prompts:
    """Neighbouring prompts with equally many tokens.

    Attributes:
        first, end: the rows of the group in the step.
        query_len, context_len: new tokens and all tokens of each prompt.
        block_tables: the blocks of each prompt.
        block_ids: the same on the device, [prompts, blocks], if keys and values are read from the cache.
    """

    first: int
    end: int
    query_len: int
    context_len: int
    block_tables: list[list[int]]
    block_ids: Tensor | None = None

    def add_if_alike(self, other: Prompts) -> bool:
        """Add the prompt of the next rows, if it is as long as these and there is room for it."""
        fits = (len(self.block_tables) + 1) * self.context_len <= TOKENS_AT_ONCE
        lens = (self.end, self.query_len, self.context_len)
        if fits and lens == (other.first, other.query_len, other.context_len):
            self.end = other.end
            self.block_tables += other.block_tables
            return True
        return False


class PromptAttention:
    """Computes the attention of a step's prompts.

    Args:
        storage: the keys and values of earlier steps.
        rules: scale, window and soft cap of each layer's attention.
    """

    def __init__(self, storage: KVStorage, rules: Sequence[AttentionRule]) -> None:
        self.storage, self.rules = storage, rules
        self.groups: list[Prompts] = []

    def begin_step(self, prompts: Iterable[tuple[int, int, int, list[int]]]) -> None:
        """Group the prompts of a step, once for all layers.

        Args:
            prompts: of each prompt the first row in the step, the new tokens, all tokens, and the blocks.
        """
        self.groups = []
        for first, query_len, context_len, table in prompts:
            blocks = table[: -(-context_len // self.storage.block_size)]
            prompt = Prompts(first, first + query_len, query_len, context_len, [blocks])
            if not (self.groups and self.groups[-1].add_if_alike(prompt)):
                self.groups.append(prompt)
        for group in self.groups:
            # Where storing rounds, all prompts read what was stored: the answer must not depend on where a prompt was
            # cut, or what of it the prefix cache knew.
            if group.context_len > group.query_len or self.storage.rounds:
                group.block_ids = torch.tensor(group.block_tables, device=self.storage.device)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        """Write the prompts' rows of `out`. Arguments as for `PagedCache.attend`; the new keys and values are stored."""
        rule, block_size = self.rules[layer], self.storage.block_size
        for group in self.groups:
            rows, prompts = slice(group.first, group.end), (-1, group.query_len)
            queries, keys, values = (x[rows].unflatten(0, prompts) for x in (q, k, v))
            if group.block_ids is not None:  # (for a prompt the copy is small beside the work)
                first = rule.first_seen(group.context_len - group.query_len) // block_size
                num_tokens = group.context_len - first * block_size
                keys, values = self.storage.gather(layer, group.block_ids[:, first:], num_tokens)
            out[rows] = causal_attention(queries, keys, values, rule).flatten(0, 1)
