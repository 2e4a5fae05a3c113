"""Times of naive and cached generation, step by step."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from labkit.machine import time_calls
from phase2_attention_kvcache.model import ContiguousKVCache, Transformer

DECODES = 6  # steps


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one step with `tokens` tokens of text.

    Attributes:
        tokens: length of the text.
        prefill: all of them are computed. The TTFT of such a prompt, and a naive step at this length.
        decode: one token is computed, the others are in the cache. The ITL at this length.
    """

    tokens: int
    prefill: float
    decode: float


def measure_steps(model: Transformer, lengths: Sequence[int], rounds: Iterable[Any]) -> list[StepTimes]:
    """Time prefill and decode with so many tokens of text: of each the fastest.

    The fastest, because all else that happens on a machine can only make a step slower. And all lengths in each
    round, because what else happens may last for seconds.
    """
    measured = [[_measure_once(model, n) for n in lengths] for _ in rounds]
    return [
        StepTimes(same[0].tokens, min(t.prefill for t in same), min(t.decode for t in same))
        for same in zip(*measured)
    ]


@torch.inference_mode()
def _measure_once(model: Transformer, n: int) -> StepTimes:
    """Prefill once, and the fastest of some decode steps."""
    positions = torch.arange(n, device=model.device)
    ids = positions % model.config.vocab_size

    def prefill(n=n) -> ContiguousKVCache:
        cache = ContiguousKVCache(model.config)
        model.logits(model(ids[:n], positions[:n], cache)[-1:])
        return cache

    def decode() -> None:
        at = torch.tensor([cache.num_tokens], device=model.device)
        model.logits(model(ids[:1], at, cache))

    cache = prefill(max(1, n - DECODES))  # each decode step adds a token: so they end where we want to be
    (slow,) = time_calls(prefill, model.device.type, repeats=1, warmup=0)
    fast = time_calls(decode, model.device.type, repeats=DECODES)
    return StepTimes(n, slow, min(fast))


def total_times(times: Sequence[StepTimes], prompt: int, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Seconds to write `new` tokens after a prompt, naive and cached, from times of single steps.

    Between the measured lengths a step's time is taken from the straight line.
    """
    lengths = np.arange(prompt, prompt + int(new.max()))
    known = [t.tokens for t in times]
    naive = np.interp(lengths, known, [t.prefill for t in times]).cumsum()
    decode = np.interp(lengths, known, [t.decode for t in times])
    decode[0] = naive[0]  # the first token costs the prompt, either way
    return naive[new - 1], decode.cumsum()[new - 1]
