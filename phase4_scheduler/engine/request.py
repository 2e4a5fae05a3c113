"""A request and its life: WAITING -> RUNNING -> FINISHED, with a detour over PREEMPTED when memory runs short."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from enum import Enum
from numbers import Integral, Real

from phase1_tokens_embeddings.tokens.tokenizer import BPETokenizer
from phase2_attention_kvcache.model.config import ModelConfig
from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase3_paged_attention.paging.block_table import BlockTable


class RequestStatus(Enum):
    WAITING = "waiting"  # nothing computed yet, or everything to be computed anew
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
        params: when to stop (and, for the sampler, how to choose).
        arrival_time: seconds, or any growing number; breaks ties.
        priority: smaller is more urgent; counts under the policy "priority".
        eos_token_ids: tokens that end a text, unless `params.ignore_eos`.
        reuse_prefix: whether cached blocks may stand in for its first tokens. (Log probabilities of the
            prompt need every token computed.)
    """

    __slots__ = (
        "arrival_time", "block_table", "finish_reason", "max_tokens", "min_tokens", "num_cached_tokens",
        "num_computed_tokens", "num_preemptions", "num_prompt_tokens", "num_seats", "output_token_ids", "params",
        "priority", "prompt_token_ids", "request_id", "reuse_prefix", "status", "stop_reason", "stop_token_ids",
        "token_ids",
    )  # fmt: skip

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        arrival_time: float = 0.0,
        priority: int = 0,
        eos_token_ids: Collection[int] = (),
        reuse_prefix: bool = True,
    ) -> None:
        if not prompt_token_ids:
            raise ValueError("the prompt is empty: give at least one token (such as <|endoftext|>)")
        self.request_id = request_id
        self.prompt_token_ids = list(prompt_token_ids)
        self.num_prompt_tokens = len(self.prompt_token_ids)
        self.params = params
        self.arrival_time = arrival_time
        self.priority = priority
        self.reuse_prefix = reuse_prefix
        self.max_tokens = params.max_tokens
        self.min_tokens = params.min_tokens
        self.stop_token_ids = frozenset(params.stop_token_ids) | (
            frozenset() if params.ignore_eos else frozenset(eos_token_ids)
        )

        self.status = RequestStatus.WAITING
        self.token_ids = list(self.prompt_token_ids)  # prompt and answer
        self.output_token_ids: list[int] = []
        self.num_computed_tokens = 0
        self.block_table = BlockTable()
        self.num_seats = params.n  # answers still to be split off count until they are requests themselves
        self.finish_reason: str | None = None  # "stop", "length", "abort" or "error"
        self.stop_reason: int | str | None = None  # the stop token or stop string, where one ended it
        self.num_cached_tokens = 0  # tokens that a prefix hit saved when it was first admitted
        self.num_preemptions = 0

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

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id!r}, {self.status.value}, "
            f"{self.num_computed_tokens}/{len(self.token_ids)} computed)"
        )


def make_request(
    request_id: str,
    prompt: str | Sequence[int],
    params: SamplingParams | None,
    priority: int,
    arrival_time: float,
    config: ModelConfig,
    tokenizer: BPETokenizer | None,
) -> Request:
    """A request as a user gives it, checked before anything is started.

    Raises:
        ValueError: the prompt is empty, or this model cannot serve it or its parameters.
    """
    params = SamplingParams() if params is None else params
    if not isinstance(params, SamplingParams):
        raise ValueError(f"params are {params!r}: give SamplingParams(...)")
    if not isinstance(request_id, str):
        raise ValueError(f"request id {request_id!r} is no text: give a string")
    if not isinstance(priority, Integral):
        raise ValueError(f"priority is {priority!r}: it must be a whole number, the smallest goes first")
    if not (isinstance(arrival_time, Real) and math.isfinite(arrival_time)):
        raise ValueError(f"arrival_time is {arrival_time!r}: it must be a number of seconds, or None")
    token_ids = _token_ids(prompt, tokenizer)
    vocab = config.vocab_size
    if wrong := [i for i in token_ids if not 0 <= i < vocab]:
        raise ValueError(f"token id {wrong[0]!r} is out of range: this model takes 0 to {vocab - 1}")
    params.check_vocabulary(vocab)
    if params.stop and tokenizer is None:
        raise ValueError("stop strings need text, and this engine has no tokenizer: use stop_token_ids")
    return Request(
        request_id,
        token_ids,
        params,
        arrival_time=arrival_time,
        priority=priority,
        eos_token_ids=config.eos_token_ids,
        reuse_prefix=params.prompt_logprobs is None,
    )


def _token_ids(prompt: str | Sequence[int], tokenizer: BPETokenizer | None) -> list[int]:
    if isinstance(prompt, str):
        if tokenizer is None:
            raise ValueError("this engine has no tokenizer: give the prompt as token ids")
        return tokenizer.encode(prompt)
    if not isinstance(prompt, Iterable) or isinstance(prompt, bytes):
        raise ValueError(f"the prompt is {prompt!r}: give a text or a list of token ids")
    token_ids = list(prompt)
    if wrong := [i for i in token_ids if not isinstance(i, Integral) or isinstance(i, bool)]:
        raise ValueError(f"the prompt holds {wrong[0]!r}: token ids are whole numbers")
    return [int(i) for i in token_ids]
