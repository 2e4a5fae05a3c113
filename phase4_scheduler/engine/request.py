"""A request and its states: WAITING -> RUNNING -> FINISHED, by way of PREEMPTED if blocks run out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase3_paged_attention.paging.block_table import BlockTable


class RequestStatus(Enum):
    WAITING = "waiting"  # nothing computed yet
    RUNNING = "running"  # holds blocks, takes part in steps
    PREEMPTED = "preempted"  # gave up its blocks, keeps its tokens, waits to be admitted again
    FINISHED = "finished"  # finish_reason says why


class Request:
    """A sequence of tokens that grows.

    There is no prefill state and no decode state. A request has `num_tokens` tokens, of which the model has processed
    `num_computed_tokens`; the scheduler reduces the difference, the backlog. It is the whole prompt for a new request, and
    one token for a request in the middle of its answer.

    Args:
        request_id: any string, unique among unfinished requests.
        prompt_token_ids: at least one token.
        params: how to sample tokens, and when to stop.
        arrival_time: seconds, or any growing number; breaks ties.
        priority: smaller is more urgent; counts under the policy "priority".
        eos_token_ids: tokens that end a text, unless `params.ignore_eos`.

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
    ) -> None:
        if not prompt_token_ids:
            raise ValueError("the prompt is empty: give at least one token (such as <|endoftext|>)")
        self.request_id = request_id
        self.prompt_token_ids = list(prompt_token_ids)
        self.num_prompt_tokens = len(self.prompt_token_ids)
        self.params = params
        self.arrival_time = arrival_time
        self.priority = priority
        self.max_tokens = params.max_tokens
        self.min_tokens = params.min_tokens
        self.eos_token_ids = frozenset(() if params.ignore_eos else eos_token_ids)
        self.stop_token_ids = self.eos_token_ids.union(params.stop_token_ids)
        self.generator = params.make_generator()  # its own random numbers, if it has a seed

        self.status = RequestStatus.WAITING
        self.token_ids = list(self.prompt_token_ids)  # prompt and answer
        self.output_token_ids: list[int] = []
        self.num_computed_tokens = 0
        self.block_table = BlockTable.salted(params.cache_salt)
        self.finish_reason: str | None = None  # "stop", "length", "abort" or "error"
        self.stop_reason: int | None = None  # the stop token, where one of `params` ended it
        self.queued_time: float | None = None  # when the core queued it up, by the core's clock
        self.first_scheduled_time: float | None = None
        self.num_cached_tokens = 0  # tokens that a prefix hit saved when it was first admitted
        self.num_preemptions = 0
        self.extras: dict[str, Any] = {}  # by name: what extensions are told about it, and keep for it
        self.skip_reading_prefix_cache = False  # every token is to be computed, cached or not

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def finished(self) -> bool:
        return self.status is RequestStatus.FINISHED

    def answer_id(self, index: int) -> str:
        return self.request_id if self.params.n == 1 else f"{index}_{self.request_id}"

    def for_answer(self, index: int) -> Request:
        """Answer `index` to a request with n > 1, as a request of its own."""
        name, params = self.answer_id(index), self.params.for_answer(index)
        times = (self.arrival_time, self.priority)
        return Request(name, self.prompt_token_ids, params, *times, self.eos_token_ids)

    def append(self, token_id: int) -> None:
        """Add a token of the answer."""
        self.token_ids.append(token_id)
        self.output_token_ids.append(token_id)

    def __repr__(self) -> str:
        progress = f"{self.num_computed_tokens}/{len(self.token_ids)} computed"
        return f"Request({self.request_id!r}, {self.status.value}, {progress})"


@dataclass(frozen=True)
class RequestLimits:
    """How long a request may be.

    Attributes:
        max_model_len: prompt and answer together.
        cache_tokens: tokens that the cache holds for one request; None: as many as it has.
        step_tokens: tokens of a step, if a prompt may not be cut; None: it may.
    """

    max_model_len: int
    cache_tokens: int | None = None
    step_tokens: int | None = None

    def check(self, num_prompt_tokens: int, max_tokens: int | None) -> None:
        """Raise ValueError for a request that could never be served. The message names the limit."""
        prompt, most = num_prompt_tokens, self.max_model_len
        if prompt >= most:
            said = f"the prompt has {prompt:,} tokens, the context holds {most:,}"
            raise ValueError(f"{said} with at least one of an answer: shorten the prompt")
        longest = most if max_tokens is None else min(most, prompt + max_tokens)
        # Nothing follows the last token, so its key and value are never computed.
        if self.cache_tokens is not None and longest - 1 > self.cache_tokens:
            raise ValueError(
                f"{prompt:,} prompt tokens and an answer of {longest - prompt:,} do not fit the {self.cache_tokens:,} tokens "
                "that the KV cache has for a request: shorten the prompt, lower max_tokens, or raise num_blocks"
            )
        if self.step_tokens is not None and longest - 1 > self.step_tokens:
            over = f"{longest:,} tokens are over the budget of {self.step_tokens:,} a step"
            raise ValueError(f"{over}: allow chunked_prefill, or raise max_num_batched_tokens")
