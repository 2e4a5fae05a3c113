"""From the scheduler's decision to logits: the one place where requests become tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from phase2_attention_kvcache.model.transformer import Transformer
from phase3_paged_attention.paging import PagedCache, StepLayout
from phase4_scheduler.engine.scheduler import Scheduled


class ModelRunner:
    """Runs steps of a model over a paged cache.

    All tokens of a step go through the model as one flat row, whoever they belong to:

        request       alice (a prompt)   bob      carol
        token_ids     12 7 430 9         88       5
        positions     0  1 2   3         41       17
        slot          16 17 18 19        105      67        where each token's key and value are stored
    """

    def __init__(self, model: Transformer, kv_cache: PagedCache) -> None:
        self.model = model
        self.kv_cache = kv_cache

    @torch.inference_mode()
    def execute(self, scheduled: Sequence[Scheduled]) -> Tensor:
        """Compute the tokens of a step.

        Returns:
            hidden [N, d_model], one row for each token, in the order of `scheduled`.
        """
        size, device = self.kv_cache.block_size, self.model.device
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        for s in scheduled:
            blocks, first, n = s.request.block_table.block_ids, s.num_computed, s.num_tokens
            if n == 1:
                token_ids.append(s.request.token_ids[first])
                positions.append(first)
                slots.append(blocks[first // size] * size + first % size)
            else:
                place = np.arange(first, first + n)
                token_ids += s.request.token_ids[first : first + n]
                positions += place.tolist()
                slots += (np.array(blocks)[place // size] * size + place % size).tolist()
        self.kv_cache.begin_step(
            StepLayout(
                query_lens=[s.num_tokens for s in scheduled],
                context_lens=[s.num_computed + s.num_tokens for s in scheduled],
                block_tables=[s.request.block_table.block_ids for s in scheduled],
                slot_mapping=torch.tensor(slots, device=device),
            )
        )
        return self.model(
            torch.tensor(token_ids, device=device), torch.tensor(positions, device=device), self.kv_cache
        )

    @torch.inference_mode()
    def logits(self, hidden: Tensor, rows: Sequence[int]) -> Tensor:
        """Scores for the next token after each of these rows: [len(rows), vocab_size]."""
        if len(rows) < len(hidden) or list(rows) != list(range(len(hidden))):
            hidden = hidden[torch.tensor(rows, device=hidden.device)]
        return self.model.logits(hidden)
