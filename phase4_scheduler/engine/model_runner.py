"""The model runner: builds the tensors of a step, runs the model and samples tokens. Only here do requests become tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from phase2_attention_kvcache.model.sampling import SampledTokens, Sampler
from phase2_attention_kvcache.model.transformer import Transformer
from phase3_paged_attention.paging import KVStorage, PagedCache, PagedKVCache, StepLayout
from phase4_scheduler.engine.config import EngineConfig
from phase4_scheduler.engine.request import Request
from phase4_scheduler.engine.scheduler import Scheduled, SchedulerOutput


class Sampled(NamedTuple):
    """The result of a step for one request: its new tokens and, if requested, the log probabilities of each."""

    token_ids: Sequence[int] = ()
    logprobs: Sequence[dict[int, float] | None] = ()


def on_device(values: Sequence[int], device: torch.device) -> Tensor:
    """Whole numbers as a tensor on the device. The host does not wait for what the device is doing."""
    return torch.tensor(values, pin_memory=device.type == "cuda").to(device, non_blocking=True)


@dataclass
class StepBatch:
    """A step as flat rows. The tokens of all requests go through the model side by side:

        request       alice (a prompt)   bob      carol
        token_ids     12 7 430 9         88       5
        positions     0  1 2   3         41       17
        slots         16 17 18 19        105      65        block_id * block_size + offset, block_size 16

    Attributes:
        first_rows: the first row of each request. Others: see `StepLayout`.
    """

    query_lens: list[int]
    context_lens: list[int]
    block_tables: list[list[int]]
    token_ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    first_rows: list[int] = field(default_factory=list)

    @classmethod
    def build(cls, scheduled: Sequence[Scheduled], block_size: int) -> StepBatch:
        lens, tables = [s.num_tokens for s in scheduled], [s.block_ids for s in scheduled]
        batch = cls(lens, [s.num_computed + s.num_tokens for s in scheduled], tables)
        for s, blocks in zip(scheduled, tables, strict=True):
            first, n = s.num_computed, s.num_tokens
            batch.first_rows.append(len(batch.token_ids))
            batch.token_ids += s.token_ids
            if n == 1:
                batch.positions.append(first)
                batch.slots.append(blocks[first // block_size] * block_size + first % block_size)
            else:
                place = np.arange(first, first + n)
                slots = np.array(blocks)[place // block_size] * block_size + place % block_size
                batch.positions += place.tolist()
                batch.slots += slots.tolist()
        return batch

    def layout(self, device: torch.device) -> StepLayout:
        """The slots and block tables of the step's tokens, for a paged cache."""
        slots = on_device(self.slots, device)
        return StepLayout(self.query_lens, self.context_lens, self.block_tables, slots)


class ModelRunner:
    """Runs steps of a model over a paged cache.

    Args:
        seed: of the random numbers for requests without a seed of their own.

    Source: vllm/v1/worker/gpu/model_runner.py (Model Runner V2) and gpu_model_runner.py (V1).
    """

    def __init__(self, model: Transformer, kv_cache: PagedCache, seed: int = 0) -> None:
        self.model, self.kv_cache = model, kv_cache
        self.generator = torch.Generator().manual_seed(seed % 2**64)
        self.sampler = Sampler(model.config.eos_token_ids, self.generator)

    @classmethod
    def create(
        cls, model: Transformer, config: EngineConfig, num_blocks: int, storage: KVStorage | None = None
    ) -> Self:
        """Create a runner with its own cache, in `storage` if given. A backend overrides this."""
        sizes = (num_blocks, config.block_size, model.dtype)
        cache = PagedKVCache(model.config, *sizes, model.device, storage=storage)
        return cls(model, cache, config.seed)

    def run(self, output: SchedulerOutput) -> list[Sampled]:
        """Compute the tokens of a step, and sample the next token of each request whose tokens are all computed."""
        if not output.scheduled:
            return []
        batch = StepBatch.build(output.scheduled, self.kv_cache.block_size)
        return self.sample(output.scheduled, batch, self.execute(batch))

    @torch.inference_mode()
    def execute(self, batch: StepBatch) -> Tensor:
        """Run the tokens through the model. Returns hidden states [N, d_model], which the next step may overwrite."""
        device = self.model.device
        self.kv_cache.begin_step(batch.layout(device))
        token_ids, positions = (on_device(x, device) for x in (batch.token_ids, batch.positions))
        self.complete(token_ids)
        return self.model(token_ids, positions, self.kv_cache)

    def complete(self, token_ids: Tensor) -> None:
        """Fill in tokens of a step, [N] on the device, that the host does not know yet. Extensions use this."""

    def sample(self, scheduled: Sequence[Scheduled], batch: StepBatch, hidden: Tensor) -> list[Sampled]:
        """One entry for each of `scheduled`, empty in the middle of a prompt."""
        ready = [i for i, s in enumerate(scheduled) if s.samples]
        results = [Sampled()] * len(scheduled)
        if ready:
            logits = self.logits(hidden, [batch.first_rows[i] + batch.query_lens[i] - 1 for i in ready])
            tokens = self.next_tokens(logits, [scheduled[i].request for i in ready])
            for i, token, logprobs in zip(ready, tokens.token_ids, tokens.logprobs, strict=True):
                results[i] = Sampled([token], [logprobs])
        return results

    @torch.inference_mode()
    def logits(self, hidden: Tensor, rows: Sequence[int]) -> Tensor:
        """Scores for the next token after each of these rows: [len(rows), vocab_size]."""
        if len(rows) < len(hidden) or list(rows) != list(range(len(hidden))):
            hidden = hidden[on_device(rows, hidden.device)]
        return self.model.logits(hidden)

    def next_tokens(self, logits: Tensor, requests: Sequence[Request]) -> SampledTokens:
        """A token for each row of logits."""
        rows = ((r.params, r.prompt_token_ids, r.output_token_ids, r.generator) for r in requests)
        return self.sampler.sample(logits, *zip(*rows))

    def prepare(self) -> Iterator[str]:
        """Do slow preparations before the first step, and print a line for each. A backend overrides this."""
        return iter(())

    def shutdown(self) -> None:
        """Release the resources that the runner holds outside this object."""
