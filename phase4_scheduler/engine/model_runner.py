"""From the scheduler's decision to tokens: the one place where requests become tensors."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from phase2_attention_kvcache.model.sampling import SampledTokens, Sampler
from phase2_attention_kvcache.model.transformer import Transformer
from phase3_paged_attention.paging import PagedCache, StepLayout
from phase4_scheduler.engine.executor import ExecutorError
from phase4_scheduler.engine.fault_isolation import (
    Fault,
    Sampled,
    execute_one_by_one,
    reason,
    sample_one_by_one,
)
from phase4_scheduler.engine.prompt_logprobs import note_prompt_logprobs
from phase4_scheduler.engine.rejection_sampler import RejectionSampler, Verified
from phase4_scheduler.engine.request import Request
from phase4_scheduler.engine.scheduler_output import PADDING, Scheduled, SchedulerOutput


@dataclass
class ModelRunnerOutput:
    """What a step computed and sampled, and what went wrong in it.

    Attributes:
        hidden: [N, d_model], one row for each token.
        first_row: by request id, where its rows begin. A request whose tokens could not be computed, or that has to
            restart, has none.
        sampled: by request id, the next token of the requests whose tokens are all computed (where drafts were
            verified, those that stand before it), and log probabilities if they were asked for.
        faults: requests that cannot go on, and why.
        to_restart: requests that have to compute all their tokens again, since others left blocks unfilled.
    """

    hidden: Tensor
    first_row: dict[str, int]
    sampled: dict[str, Sampled] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    to_restart: list[Request] = field(default_factory=list)


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

    def execute_step(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Move blocks as the scheduler says, and compute the step's tokens."""
        if output.copies:
            self.kv_cache.apply_copies(output.copies)
        if not output.scheduled:
            return ModelRunnerOutput(torch.empty(0), {})
        try:
            hidden = self.execute(output.scheduled)
        except ExecutorError:  # nobody is left to compute anything alone
            raise
        except Exception as error:
            hidden = None
            warnings.warn(
                f"a step of {len(output.scheduled)} requests failed ({reason(error)}); each is computed alone",
                stacklevel=3,
            )
        if hidden is None:  # out here, where the error no longer holds on to the memory of the failed step
            computed = execute_one_by_one(self.execute, output.scheduled, self.kv_cache.block_size)
            hidden, first_row, faults, to_restart = computed
            return ModelRunnerOutput(hidden, first_row, faults=faults, to_restart=to_restart)
        first_row, row = {}, 0
        for s in output.scheduled:
            first_row[s.request.request_id] = row
            row += s.num_tokens
        return ModelRunnerOutput(hidden, first_row)

    def sample_step(
        self, scheduled: Sequence[Scheduled], result: ModelRunnerOutput, sampler: Sampler
    ) -> None:
        """Sample the next token of each request whose tokens are all computed, and verify its drafts."""
        ready: list[Request] = []
        rows: list[int] = []  # of the last token of each, drafts apart
        drafts: list[list[int]] = []
        for s in scheduled:
            first = result.first_row.get(s.request.request_id)
            if first is None:
                continue  # it failed, or has to restart
            if s.request.prompt_logprobs is not None:
                result.faults += note_prompt_logprobs(self.logits, result.hidden, first, s)
            if s.samples:
                ready.append(s.request)
                rows.append(first + s.num_tokens - len(s.drafts) - 1)
                drafts.append([token for token in s.drafts if token != PADDING])
        if not ready:
            return

        def sample(logits: Tensor, requests: Sequence[Request]) -> SampledTokens:
            return sampler.sample(
                logits,
                [request.params for request in requests],
                [request.prompt_token_ids for request in requests],
                [request.output_token_ids for request in requests],
                [request.generator for request in requests],
            )

        logits, names = None, [request.request_id for request in ready]
        try:
            if any(drafts):
                found = self._sample_with_drafts(result.hidden, rows, ready, drafts, sampler)
                result.sampled = dict(zip(names, found, strict=True))
                return
            logits = self.logits(result.hidden, rows)
            tokens = sample(logits, ready)
        except ExecutorError:
            raise
        except Exception:  # whatever it is, and whoever is to blame

            def logits_of(i: int) -> Tensor:
                return self.logits(result.hidden, [rows[i]]) if logits is None else logits[i : i + 1]

            result.sampled, faults = sample_one_by_one(logits_of, sample, ready)
            result.faults += faults
            return
        result.sampled = {
            name: ([token], [logprobs])
            for name, token, logprobs in zip(names, tokens.token_ids, tokens.logprobs, strict=True)
        }

    def _sample_with_drafts(
        self,
        hidden: Tensor,
        rows: Sequence[int],
        requests: Sequence[Request],
        drafts: Sequence[list[int]],
        sampler: Sampler,
    ) -> list[Sampled]:
        """Row `rows[i]` and those of the drafts behind it, for each request."""
        step = [
            Verified(
                request,
                own,
                request.draft_probs[: len(own)] if own and request.draft_probs is not None else None,
            )
            for request, own in zip(requests, drafts, strict=True)
        ]
        all_rows = [first + j for first, v in zip(rows, step, strict=True) for j in range(v.num_rows)]
        return RejectionSampler(sampler).sample(self.logits(hidden, all_rows), step)

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
                token_ids += [max(draft, 0) for draft in s.drafts]  # padding needs some token, too
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
