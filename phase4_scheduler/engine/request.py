"""A request and its life: WAITING -> RUNNING -> FINISHED, with a detour over PREEMPTED when memory runs short."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum
from typing import Any

import torch

from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase3_paged_attention.paging.block_table import BlockTable


class RequestStatus(Enum):
    WAITING = "waiting"  # nothing computed yet, or everything to be computed anew
    WAITING_FOR_REMOTE_KVS = "waiting for remote KVs"  # its blocks are being filled from another engine
    RUNNING = "running"  # holds blocks, takes part in steps
    PREEMPTED = "preempted"  # had to make room; waits like the others, but at the head
    FINISHED = "finished"  # finish_reason says why


class Request:
    """One sequence of tokens that wants to grow.

    There is no prefill state and no decode state. A request has `num_tokens` tokens, of which
    `num_computed_tokens` went through the model, and the scheduler lets it catch up. A prompt that just
    arrived lags by hundreds, a request in the middle of its answer by one.

    Args:
        request_id: any string, unique among the living.
        prompt_token_ids: at least one token.
        params: how to choose tokens, and when to stop.
        arrival_time: seconds, or any growing number; breaks ties.
        priority: smaller is more urgent; counts under the policy "priority".
        eos_token_ids: tokens that end a text, unless `params.ignore_eos`.
        index: which of the n sequences that answer its prompt it is. The others come with `sibling`.

    Source: vllm/v1/request.py.
    """

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        arrival_time: float = 0.0,
        priority: int = 0,
        eos_token_ids: Collection[int] = (),
        index: int = 0,
    ) -> None:
        if not prompt_token_ids:
            raise ValueError("the prompt is empty: give at least one token (such as <|endoftext|>)")
        self.request_id = self.parent_id = request_id
        self.prompt_token_ids = list(prompt_token_ids)
        self.num_prompt_tokens = len(self.prompt_token_ids)
        self.params = params
        self.arrival_time = arrival_time
        self.priority = priority
        self.index = index
        self.max_tokens = params.max_tokens
        self.min_tokens = params.min_tokens
        self.stop_token_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            self.stop_token_ids |= frozenset(eos_token_ids)

        self.status = RequestStatus.WAITING
        self.token_ids = list(self.prompt_token_ids)  # prompt and answer
        self.output_token_ids: list[int] = []
        self.spec_token_ids: list[int] = []  # drafts of the tokens that follow, for the next step to verify
        self.kv_transfer_params: dict[str, Any] | None = None  # to its KV connector; at its end, from it
        self.draft_probs: torch.Tensor | None = (
            None  # [drafts, vocab], what they were drawn from, if they were
        )
        self.num_computed_tokens = 0
        self.is_prefill_chunk = False  # the last step computed a part of its tokens only
        self.block_table = BlockTable()
        self.num_seqs = params.n  # sequences that it stands for, until they fork off behind its prompt
        self.finish_reason: str | None = None  # "stop", "length", "abort" or "error"
        self.stop_reason: int | None = None  # the stop token, where one of `params` ended it
        self.queued_time: float | None = None  # when the core queued it up, by the core's clock
        self.first_scheduled_time: float | None = None
        self.num_cached_tokens = 0  # tokens that a prefix hit saved when it was first admitted
        self.num_preemptions = 0
        self.generator = params.make_generator(index)  # its own source of chance, if it has a seed
        self.prompt_logprobs: list[dict[int, float] | None] | None = None  # filled in as they are computed
        if params.prompt_logprobs is not None and index == 0:
            self.prompt_logprobs = [None] * self.num_prompt_tokens

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def finished(self) -> bool:
        return self.status is RequestStatus.FINISHED

    def append(self, token_id: int) -> None:
        """Add a token of the answer."""
        self.token_ids.append(token_id)
        self.output_token_ids.append(token_id)

    def sibling(self, request_id: str, index: int) -> Request:
        """Sequence `index` of the n that answer the same prompt."""
        prompt, stops = self.prompt_token_ids, self.stop_token_ids
        other = Request(request_id, prompt, self.params, self.arrival_time, self.priority, stops, index)
        other.parent_id, other.stop_token_ids = self.parent_id, stops
        other.queued_time, other.first_scheduled_time = self.queued_time, self.first_scheduled_time
        return other

    def rewind_generator(self) -> None:
        """Put the generator where it stood after the tokens it has: each has taken one random number."""
        self.generator = self.params.make_generator(self.index)
        if self.generator is not None:
            torch.rand(len(self.output_token_ids), dtype=torch.float64, generator=self.generator)

    def __repr__(self) -> str:
        progress = f"{self.num_computed_tokens}/{len(self.token_ids)} computed"
        return f"Request({self.request_id!r}, {self.status.value}, {progress})"
