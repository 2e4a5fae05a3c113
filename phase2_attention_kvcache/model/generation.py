"""Writing text one token at a time: the naive way, and with a KV cache.

Both ask the model the same question at each step: "given all of this, what comes next?" The naive way
reads everything again for every new token. With a cache only the new token is computed, because keys and
values of older tokens never change: a token sees only what is before it.
"""

import statistics
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from labkit.machine import synchronize
from phase2_attention_kvcache.model.caches import ContiguousKVCache, NoCache
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
    """A choice by a request's sampling parameters, which remembers what it chose."""
    sampler, generator, output_ids = Sampler(eos_token_id), params.make_generator(), []

    def choose(logits: Tensor) -> int:
        picked = sampler.sample(logits[None], [params], [list(prompt_ids)], [output_ids], [generator])
        output_ids.extend(picked.token_ids)
        return output_ids[-1]

    return choose


@dataclass
class Generation:
    """What came out, what it cost.

    Attributes:
        token_ids: the new tokens, without the prompt.
        computed_tokens: how many token positions went through the model, counted as they went.
        step_seconds: time of each step; the first holds the prompt.
    """

    token_ids: list[int] = field(default_factory=list)
    computed_tokens: int = 0
    step_seconds: list[float] = field(default_factory=list)

    @property
    def ttft(self) -> float:
        """Time to first token, seconds: how long the user looks at an empty screen."""
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
    if wrong := [i for i in prompt_ids if not 0 <= i < model.config.vocab_size]:
        raise ValueError(
            f"token id {wrong[0]} is out of range: this model takes 0 to {model.config.vocab_size - 1}"
        )


@torch.inference_mode()
def generate_naive(
    model: Transformer,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    choose: Choose = greedy,
    stop_ids: Collection[int] = (),
) -> Generation:
    """Compute the whole sequence anew for each token. Work: n(n+1)/2 instead of n."""
    check_prompt(model, prompt_ids, max_new_tokens)
    device = model.device
    ids = list(prompt_ids)
    result = Generation()
    for _ in range(max_new_tokens):
        began = time.perf_counter()
        positions = torch.arange(len(ids), device=device)
        hidden = model(torch.tensor(ids, device=device), positions, NoCache(model.config))
        token = choose(model.logits(hidden[-1:])[0])  # only the last token's answer is new
        synchronize(device.type)
        result.step_seconds.append(time.perf_counter() - began)
        result.computed_tokens += len(ids)
        result.token_ids.append(token)
        ids.append(token)
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
    """Compute each token once: the prompt in the first step (prefill), then one token a step (decode).

    `on_token(id)` is called as each token arrives. The last token is never computed: what
    would follow it is not asked for.
    """
    check_prompt(model, prompt_ids, max_new_tokens)
    device = model.device
    cache = ContiguousKVCache(model.config)
    result = Generation()
    new = list(prompt_ids)  # the tokens that the cache has not seen yet
    for _ in range(max_new_tokens):
        began = time.perf_counter()
        first = cache.num_tokens
        positions = torch.arange(first, first + len(new), device=device)
        hidden = model(torch.tensor(new, device=device), positions, cache)
        token = choose(model.logits(hidden[-1:])[0])
        synchronize(device.type)
        result.step_seconds.append(time.perf_counter() - began)
        result.computed_tokens += len(new)
        result.token_ids.append(token)
        if on_token:
            on_token(token)
        if token in stop_ids:
            break
        new = [token]
    return result
