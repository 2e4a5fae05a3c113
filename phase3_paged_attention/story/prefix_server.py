"""A server of one request at a time that keeps the blocks of earlier prompts."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from labkit.machine import synchronize
from phase2_attention_kvcache.model import Generation, Transformer
from phase2_attention_kvcache.model.generation import check_prompt, greedy
from phase3_paged_attention.paging import BlockTable, PagedKVCache, StepLayout
from phase3_paged_attention.sharing import RecordingBlockManager


@dataclass
class Served(Generation):
    """An answer, what it took, and how many tokens of the prompt were in the cache."""

    hit_tokens: int = 0


class PrefixServer:
    """The smallest server that uses all of this phase: one request at a time, greedy.

    Phase 4 has the same loop for many requests at once.
    """

    def __init__(
        self, model: Transformer, num_blocks: int, block_size: int = 16, enable_prefix_caching: bool = True
    ) -> None:
        self.model = model
        self.manager = RecordingBlockManager(num_blocks, block_size, enable_prefix_caching)
        self.kv_cache = PagedKVCache(model.config, num_blocks, block_size, model.dtype, model.device)

    @torch.inference_mode()
    def serve(self, prompt_ids: Sequence[int], max_new_tokens: int = 1) -> Served:
        """Answer a prompt with `max_new_tokens` tokens, always the most likely one.

        Raises:
            ValueError: a prompt that is empty, holds an unknown id, or does not fit the context or the cache.
        """
        check_prompt(self.model, prompt_ids, max_new_tokens)
        manager, device = self.manager, self.model.device
        # 1. Cached blocks go into the table as they are.
        token_ids, table = list(prompt_ids), BlockTable()
        prefix = manager.match_prefix(table, token_ids)
        done = len(prefix) * manager.block_size
        served = Served(hit_tokens=done)
        for _ in range(max_new_tokens):
            began = time.perf_counter()
            # 2. Room for the tokens that this step computes. (There is no other request.)
            if not manager.allocate(table, token_ids, len(token_ids), prefix):
                raise ValueError("the prompt needs more blocks than the cache has")
            # 3. Compute them: the rest of the prompt at first, then one token per step.
            positions = torch.arange(done, len(token_ids))
            blocks = torch.tensor(table.block_ids)[positions // manager.block_size]
            slots = blocks * manager.block_size + positions % manager.block_size
            step = StepLayout([len(positions)], [len(token_ids)], [table.block_ids], slots.to(device))
            self.kv_cache.begin_step(step)
            new = torch.tensor(token_ids[done:], device=device)
            hidden = self.model(new, positions.to(device), self.kv_cache)
            # 4. The next token.
            prefix, done = (), len(token_ids)
            token_ids.append(greedy(self.model.logits(hidden[-1:])[0]))
            synchronize(device.type)
            served.step_seconds.append(time.perf_counter() - began)
            served.computed_tokens += len(positions)
        # 5. Give the blocks back. Their content stays until the room is needed.
        manager.free(table)
        served.token_ids = token_ids[len(prompt_ids) :]
        return served


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two texts share at their beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
