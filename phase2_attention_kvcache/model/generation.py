"""Generating text one token at a time: naively, and with a KV cache.

The naive loop computes the whole sequence again for every new token. With a cache only the new token is computed, because keys and
values of older tokens never change: a token attends only to earlier ones.
"""

import statistics
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from labkit.machine import synchronize
from phase2_attention_kvcache.model.caches import ContiguousKVCache, NoCache
from phase2_attention_kvcache.model.layers import KVCache
from phase2_attention_kvcache.model.sampling import Sampler
from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase2_attention_kvcache.model.transformer import Transformer

Choose = Callable[[Tensor], int]  # logits [vocab_size] -> token id


def greedy(logits: Tensor) -> int:
    """The most likely token."""
    return int(logits.argmax())


def sampled(
    params: SamplingParams, prompt_ids: Sequence[int] = (), eos_token_id: int | Collection[int] | None = None
) -> Choose:
    """A function that samples by a request's parameters and keeps the tokens it chose."""
    sampler, generator, output_ids = Sampler(eos_token_id), params.make_generator(), []

    def choose(logits: Tensor) -> int:
        picked = sampler.sample(logits[None], [params], [list(prompt_ids)], [output_ids], [generator])
        output_ids.extend(picked.token_ids)
        return output_ids[-1]

    return choose


@dataclass
class Generation:
    """The new tokens, and their cost."""

    token_ids: list[int] = field(default_factory=list)  # without the prompt
    computed_tokens: int = 0  # token positions that went through the model
    step_seconds: list[float] = field(default_factory=list)  # the first step holds the prompt

    @property
    def ttft(self) -> float:
        """Time to first token, in seconds."""
        return self.step_seconds[0]

    @property
    def itl(self) -> float:
        """Inter-token latency, seconds: median time between two tokens after the first."""
        return statistics.median(self.step_seconds[1:])

    @property
    def seconds(self) -> float:
        return sum(self.step_seconds)


def check_prompt(model: Transformer, prompt_ids: Sequence[int], max_new_tokens: int) -> None:
    """Raise a ValueError if the prompt is empty, holds an unknown id, or does not fit the context."""
    context = model.config.max_context
    if not prompt_ids:
        raise ValueError("the prompt is empty: give at least one token (such as <|endoftext|>)")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {max_new_tokens}: ask for at least 1")
    if len(prompt_ids) + max_new_tokens > context:
        raise ValueError(
            f"{len(prompt_ids)} prompt tokens and {max_new_tokens} new ones do not fit the model's context "
            f"of {context}: shorten the prompt or ask for at most {max(0, context - len(prompt_ids))} tokens"
        )
    model.check_tokens(torch.tensor(prompt_ids), torch.arange(len(prompt_ids)))


@torch.inference_mode()
def generate_naive(
    model: Transformer,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    choose: Choose = greedy,
    stop_ids: Collection[int] = (),
) -> Generation:
    """Compute the whole sequence again for each token: p + (p+1) + ... + (p+n-1) tokens for n new ones after a prompt of p."""
    check_prompt(model, prompt_ids, max_new_tokens)
    result = Generation()
    for _ in range(max_new_tokens):
        token = step(model, [*prompt_ids, *result.token_ids], 0, NoCache(model.config), choose, result)
        if token in stop_ids:
            break
    return result


@torch.inference_mode()
def generate_cached(
    model: Transformer,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    choose: Choose = greedy,
    stop_ids: Collection[int] = (),
    on_token: Callable[[int], None] | None = None,
) -> Generation:
    """Compute each token once, p + n - 1 in all: the prompt in the first step (prefill), then one token per step (decode).

    `on_token(id)` is called as each token arrives. The last token is never computed: the token after it is not needed.
    """
    check_prompt(model, prompt_ids, max_new_tokens)
    cache, result = ContiguousKVCache(model.config), Generation()
    new = list(prompt_ids)  # the tokens that the cache has not seen yet
    for _ in range(max_new_tokens):
        token = step(model, new, cache.num_tokens, cache, choose, result)
        if on_token:
            on_token(token)
        if token in stop_ids:
            break
        new = [token]
    return result


def step(
    model: Transformer, token_ids: list[int], first: int, kv: KVCache, choose: Choose, result: Generation
) -> int:
    """Compute the tokens at the positions from `first` on, choose the next token, and record it in `result`."""
    began = time.perf_counter()
    positions = torch.arange(first, first + len(token_ids), device=model.device)
    hidden = model(torch.tensor(token_ids, device=model.device), positions, kv)
    token = choose(model.logits(hidden[-1:])[0])  # only the answer after the last token is new
    synchronize(model.device.type)
    result.step_seconds.append(time.perf_counter() - began)
    result.computed_tokens += len(token_ids)
    result.token_ids.append(token)
    return token
