"""A server of one request at a time that keeps the blocks of earlier prompts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from labkit.machine import synchronize
from phase2_attention_kvcache.model.generation import check_prompt
from phase2_attention_kvcache.model.transformer import Transformer
from phase3_paged_attention.paging import PagedKVCache, StepLayout
from phase3_paged_attention.paging.block_manager import BlockManager
from phase3_paged_attention.paging.block_table import BlockTable


@dataclass(frozen=True)
class Served:
    """An answer, and what it took.

    Attributes:
        ttft: seconds from the call to the first token.
        hit_tokens: tokens of the prompt whose keys and values were in the cache.
        computed_tokens: tokens that went through the model, counted as they went.
    """

    token_ids: list[int]
    ttft: float
    hit_tokens: int
    computed_tokens: int


class PrefixServer:
    """The smallest server that uses all of this phase: one request at a time, greedy.

    Each part has one job. The `BlockManager` knows which blocks are whose and never sees a key. The
    `BlockTable` is one request's list of blocks. The `PagedKVCache` holds keys and values and knows nothing
    of requests. Phase 4 has the same loop for many requests at once.

    Args:
        num_blocks: blocks of the cache, the null block included.
    """

    def __init__(
        self,
        model: Transformer,
        num_blocks: int,
        block_size: int = 16,
        enable_prefix_caching: bool = True,
    ) -> None:
        self.model = model
        self.manager = BlockManager(num_blocks, block_size, enable_prefix_caching)
        self.kv_cache = PagedKVCache(model.config, num_blocks, block_size, model.dtype, model.device)

    @torch.inference_mode()
    def serve(self, prompt_ids: Sequence[int], max_new_tokens: int = 1) -> Served:
        """Answer a prompt with up to `max_new_tokens` tokens, always the most likely one.

        Raises:
            ValueError: a prompt that is empty, holds an unknown id, or does not fit the context or the cache.
        """
        check_prompt(self.model, prompt_ids, max_new_tokens)
        manager, size = self.manager, self.manager.block_size
        longest = len(prompt_ids) + max_new_tokens - 1  # the last token is never computed
        if manager.blocks_for(longest) > manager.num_blocks - 1:
            raise ValueError(
                f"{longest} tokens need {manager.blocks_for(longest)} blocks, the cache has "
                f"{manager.num_blocks - 1}: shorten the prompt, or give it more blocks"
            )
        began = time.perf_counter()
        token_ids, table = list(prompt_ids), BlockTable()
        # 1. What is there already? Those blocks go into the table as they are.
        prefix = manager.match_prefix(table, token_ids)
        done = hits = len(prefix) * size
        computed, ttft = 0, 0.0
        try:
            while True:
                # 2. Room for the tokens that this step computes. (It fits: nobody else is here.)
                manager.allocate(table, token_ids, len(token_ids), prefix)
                prefix = ()
                # 3. Compute them: the rest of the prompt at first, then one token a step.
                logits = self._step(token_ids, done, table)
                computed += len(token_ids) - done
                done = len(token_ids)
                # 4. The next token.
                token_ids.append(int(logits.argmax()))
                if len(token_ids) == len(prompt_ids) + 1:
                    synchronize(self.model.device.type)
                    ttft = time.perf_counter() - began
                if len(token_ids) == len(prompt_ids) + max_new_tokens:
                    break
        except BaseException:
            # The blocks have names already, and may not hold what the names say.
            manager.uncache(table)
            raise
        finally:
            # 5. Give the blocks back. Their content stays until somebody needs the room.
            manager.free(table)
        return Served(token_ids[len(prompt_ids) :], ttft, hits, computed)

    def _step(self, token_ids: Sequence[int], done: int, table: BlockTable) -> torch.Tensor:
        """Compute the tokens from `done` on. Returns the logits after the last one, [vocab_size]."""
        device, size = self.model.device, self.manager.block_size
        places = range(done, len(token_ids))
        slots = [table.block_ids[t // size] * size + t % size for t in places]
        self.kv_cache.begin_step(
            StepLayout(
                query_lens=[len(places)],
                context_lens=[len(token_ids)],
                block_tables=[table.block_ids],
                slot_mapping=torch.tensor(slots, device=device),
            )
        )
        hidden = self.model(
            torch.tensor(token_ids[done:], device=device), torch.tensor(places, device=device), self.kv_cache
        )
        return self.model.logits(hidden[-1:])[0]


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two texts share at their beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
