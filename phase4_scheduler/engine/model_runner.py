"""From the scheduler's decision to tokens: the one place where requests become tensors."""

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from phase2_attention_kvcache.model.sampling import BadLogitsError, Sampler
from phase2_attention_kvcache.model.transformer import Transformer
from phase3_paged_attention.paging import PagedCache, StepLayout
from phase4_scheduler.engine import fault_isolation
from phase4_scheduler.engine.output_processor import RequestState, StepResult
from phase4_scheduler.engine.prompt_logprobs import note_prompt_logprobs
from phase4_scheduler.engine.scheduler import Scheduled, SchedulerOutput


class ModelRunner:
    """Runs steps of a model over a paged cache.

    All tokens of a step go through the model as one flat row, whatever request they belong to:

        request       alice (a prompt)   bob      carol
        token_ids     12 7 430 9         88       5
        positions     0  1 2   3         41       17
        slot          16 17 18 19        105      65        where each token's key and value are stored (block_size 16)

    Source: vllm/v1/worker/gpu_model_runner.py.
    """

    def __init__(self, model: Transformer, kv_cache: PagedCache) -> None:
        self.model = model
        self.kv_cache = kv_cache

    # ------------------------------------------------------------------ a step of the engine

    def execute_step(self, output: SchedulerOutput) -> StepResult:
        """Move blocks as the scheduler says, and compute the step's tokens."""
        if output.copies:
            self.kv_cache.apply_copies(output.copies)
        if not output.scheduled:
            return StepResult(output, torch.empty(0), {})
        try:
            hidden = self.execute(output.scheduled)
        except Exception as error:
            hidden = None
            warnings.warn(
                f"a step of {len(output.scheduled)} requests failed ({type(error).__name__}: {error}); "
                "each is computed alone",
                stacklevel=3,
            )
        if hidden is None:  # out here, where the error no longer holds on to the memory of the failed step
            return fault_isolation.execute_one_by_one(self.execute, output, self.kv_cache.block_size)
        first_row, row = {}, 0
        for s in output.scheduled:
            first_row[s.request.request_id] = row
            row += s.num_tokens
        return StepResult(output, hidden, first_row)

    def sample_step(self, step: StepResult, sampler: Sampler, states: dict[str, RequestState]) -> None:
        """Sample the next token of each request whose tokens are all computed."""
        ready: list[RequestState] = []
        rows: list[int] = []
        for s in step.output.scheduled:
            first = step.first_row.get(s.request.request_id)
            if first is None:
                continue  # it failed, or has to restart
            state = states[s.request.request_id]
            if state.parent.prompt_logprobs is not None:
                note_prompt_logprobs(self.logits, step, s, state)
            if s.samples:
                ready.append(state)
                rows.append(first + s.num_tokens - 1)
        try:
            logits = self.logits(step.hidden, rows) if ready else None
        except Exception:
            logits = None
        if ready and logits is None:
            logits, ready = fault_isolation.logits_one_by_one(self.logits, step, rows, ready)
        while ready:
            try:
                sampled = sampler.sample(
                    logits,
                    [state.parent.params for state in ready],
                    [state.request.prompt_token_ids for state in ready],
                    [state.request.output_token_ids for state in ready],
                    [state.generator for state in ready],
                )
            except BadLogitsError as error:  # no generator has moved yet: sample again without these rows
                logits, ready = fault_isolation.drop_rows(step, logits, ready, error)
                continue
            names = [state.request.request_id for state in ready]
            step.token_ids = dict(zip(names, sampled.token_ids, strict=True))
            step.logprobs = dict(zip(names, sampled.logprobs, strict=True))
            return

    # ------------------------------------------------------------------ tensors

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
