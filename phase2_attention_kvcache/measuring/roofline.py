"""The roofline: which of two ceilings, memory or arithmetic, limits a step of the model.

Source: Williams, Waterman and Patterson, "Roofline" (2009).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from labkit.machine import time_calls
from phase2_attention_kvcache.model.caches import ContiguousKVCache
from phase2_attention_kvcache.model.checkpoint import parse_dtype
from phase2_attention_kvcache.model.config import ModelConfig
from phase2_attention_kvcache.model.transformer import Transformer


@dataclass(frozen=True)
class Ceilings:
    """Top speeds of a machine, measured.

    Attributes:
        bandwidth: bytes per second that can be read from main memory.
        rate: floating-point operations per second in a large matrix multiplication (an addition and a
            multiplication count as two).
    """

    bandwidth: float
    rate: float

    @property
    def ridge(self) -> float:
        """FLOP per byte at which both limits meet. Left of it memory decides, right of it arithmetic."""
        return self.rate / self.bandwidth

    def seconds(self, work: Work) -> float:
        """The shortest time that a piece of work can take."""
        return max(work.operations / self.rate, work.bytes / self.bandwidth)


class Work(NamedTuple):
    """The work of a step: FLOP, and bytes read from or written to memory (`written`: the latter alone)."""

    operations: float
    bytes: float
    written: float = 0.0

    @property
    def intensity(self) -> float:
        return self.operations / self.bytes


class Step(NamedTuple):
    """A step of `tokens` tokens: its work, the shortest possible time, and the measured time, in seconds."""

    tokens: int
    work: Work
    floor: float
    seconds: float


def limit_of(small: Step, large: Step, ceilings: Ceilings, overhead: float) -> tuple[str, str]:
    """Tell from measured times the limit of a step, "memory", "arithmetic" or "overhead", and the reason.

    If more tokens cost time in proportion, arithmetic is the limit. If they come nearly free, it is what
    both steps have in common: fetching the weights, or starting many operations. How long the starting
    takes is measured on a model so small that reading its weights takes no time (`overhead`, seconds).
    """
    times = large.seconds / small.seconds
    grows = math.log(times) / math.log(large.tokens / small.tokens)
    why = f"{large.tokens / small.tokens:.0f} times the tokens took {times:.1f} times as long. "
    if grows > 0.5:
        rate = large.work.operations / large.seconds / ceilings.rate
        return "arithmetic", why + f"The step reached {rate:.0%} of the arithmetic."
    speed = small.work.bytes / small.seconds
    why += f"Of its {1e3 * small.seconds:.1f} ms, {1e3 * overhead:.1f} are overhead (the same steps on a model 64 wide). "
    why += (
        f"It read the weights at {speed / 1e9:.0f} GB/s, {speed / ceilings.bandwidth:.0%} of the bandwidth."
    )
    return ("memory" if overhead < small.seconds / 2 else "overhead"), why


def hollow(config: ModelConfig) -> ModelConfig:
    """As many layers as the model, on next to no data."""
    return dataclasses.replace(
        config, vocab_size=1024, d_model=64, d_ff=64, head_dim=16, max_context=64, rope_scaling=None
    )


@torch.inference_mode()
def measure_ceilings(device: str, dtype: str | torch.dtype, quick: bool = False) -> Ceilings:
    """Read a tensor far larger than any cache, and multiply two large matrices. The best of several."""
    dtype = parse_dtype(dtype)
    repeats = 8 if quick else 20
    megabytes, side = (256, 2048) if device == "cpu" else (1024, 8192)
    if device == "cpu" and dtype == torch.float16:
        side = 512  # many CPUs compute in float16 only by way of float32, a hundred times slower
    # A sum reads every byte and writes almost nothing.
    numbers = torch.ones(megabytes * 2**20 // 4, dtype=torch.float32, device=device)
    read = min(time_calls(numbers.sum, device, repeats))
    bandwidth = numbers.nbytes / read
    del numbers
    # Random numbers: zeros would cost a GPU less power and let it run faster than it really can.
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    multiply = min(time_calls(lambda: a @ b, device, repeats))
    return Ceilings(bandwidth, 2 * side**3 / multiply)


def work_of_step(config: ModelConfig, new_tokens: int, context: int, bytes_per_number: int) -> Work:
    """The work of one step: `new_tokens` tokens of one sequence are computed on top of `context` older ones.

    Each weight is used for one multiplication and one addition a token. Attention adds four operations
    for each pair of (query, key) numbers: two for the score, two for the weighted sum. Bytes: all weights
    once, the old keys and values read, the new ones written. The vectors between the layers are small
    and stay in the processor's caches; they are left out.
    """
    return work_of_batch(config, [(context, new_tokens)], bytes_per_number)


def work_of_batch(
    config: ModelConfig,
    parts: Sequence[tuple[int, int]],
    bytes_per_number: int,
    weight_bytes: int | None = None,
    kv_bytes: int | None = None,
) -> Work:
    """The work of one step for several sequences, which share one reading of the weights.

    Args:
        parts: (tokens computed before, tokens computed now) of each sequence.
        weight_bytes: of all matrices (`matrix_bytes`), kv_bytes: of a token's keys and values in all layers
            (`kv_bytes_of_token`), where they are not stored in numbers of `bytes_per_number`.
    """
    c = config
    new_tokens = sum(now for _, now in parts)
    context = sum(before for before, _ in parts)
    per_layer = c.d_model * c.head_dim * (2 * c.num_heads + 2 * c.num_kv_heads)
    mlp = c.d_model * c.d_ff * (3 if c.choices.gated else 2)
    # A mixture: every token meets a few of the experts, all tokens together (many, here) meet all.
    active = c.num_layers * (per_layer + mlp * max(1, c.experts_per_token))
    blocks, head = c.num_layers * (per_layer + mlp * max(1, c.num_experts)), c.d_model * c.vocab_size
    # A token sees itself and all before it.
    pairs = sum(now * (2 * before + now + 1) // 2 for before, now in parts)
    attention = 4 * c.num_layers * c.num_heads * c.head_dim * pairs
    operations = 2 * new_tokens * active + 2 * len(parts) * head + attention  # scores: for each last token
    weights = (blocks + head) * bytes_per_number if weight_bytes is None else weight_bytes
    kv = 2 * c.num_layers * c.num_kv_heads * c.head_dim * bytes_per_number if kv_bytes is None else kv_bytes
    read = weights + kv * context
    return Work(operations, read + kv * new_tokens, kv * new_tokens)


def matrix_bytes(model: Transformer) -> int:
    """Bytes of the matrices that every step multiplies with, as they are in memory. Tables are only looked up."""
    modules = list(model.modules())
    plain = sum(m.weight.nbytes for m in modules if isinstance(m, nn.Linear))
    others = sum(getattr(m, "matrix_bytes", 0) for m in modules)  # our own linear layers say it themselves
    tied = model.token_table.weight.nbytes if model.head is None else 0  # the table is the head as well
    return plain + others + tied


@torch.inference_mode()
def measure_step(model: Transformer, new_tokens: int, repeats: int) -> float:
    """Seconds of a step that computes `new_tokens` tokens of a new sequence. The best of several."""
    ids = torch.arange(new_tokens, device=model.device) % model.config.vocab_size
    positions = torch.arange(new_tokens, device=model.device)

    def step() -> None:
        model.logits(model(ids, positions, ContiguousKVCache(model.config))[-1:])

    return min(time_calls(step, model.device.type, repeats, warmup=2))
