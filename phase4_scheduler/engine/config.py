"""The settings of an engine."""

from __future__ import annotations

from dataclasses import dataclass, fields
from numbers import Integral

import torch

from labkit.machine import memory_bytes
from phase1_tokens_embeddings.weights.memory_math import kv_per_token
from phase2_attention_kvcache.model.transformer import Transformer

GPU_SHARE = 0.8  # of a GPU's free memory
MEMORY_SHARE = 0.3  # of the machine's memory for keys and values, unless num_blocks says otherwise


@dataclass(frozen=True)
class EngineConfig:
    """All settings of an engine. Those it shares with `SchedulerConfig` mean the same.

    Attributes:
        num_blocks: blocks of the KV cache; None: as many as all running requests could ever need, within
            30% of the memory (on a GPU 80% of what is free: activations need some as well).
        block_size: tokens a block.
        max_model_len: most tokens of a request; None: the model's context.
        num_swap_blocks: blocks of main memory for preempted requests (preemption="swap").
        enforce_eager: on a GPU, start every operation of a decode step anew instead of replaying a recording.
        seed: for requests that have no seed of their own.
    """

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    num_blocks: int | None = None
    block_size: int = 16
    max_model_len: int | None = None
    enable_prefix_caching: bool = True
    chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    policy: str = "fcfs"
    preemption: str = "recompute"
    num_swap_blocks: int = 0
    enforce_eager: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            wants_number = "int" in str(field.type)
            if wants_number and value is None and "None" in str(field.type):
                continue
            if wants_number and (not isinstance(value, Integral) or isinstance(value, bool)):
                raise ValueError(f"{field.name} is {value!r}: it must be a whole number")
        if self.preemption == "swap" and self.num_swap_blocks == 0:
            raise ValueError(
                "preemption is 'swap', and num_swap_blocks is 0: say how many blocks may be swapped out"
            )


def default_num_blocks(model: Transformer, config: EngineConfig, longest: int) -> int:
    """Enough for `max_num_seqs` requests of full length, if the memory holds them.

    Raises:
        ValueError: it does not even hold one.
    """
    if config.block_size < 1:
        raise ValueError(f"block_size is {config.block_size}: a block holds at least 1 token")
    blocks_each = -(-longest // config.block_size)
    wanted = config.max_num_seqs * blocks_each
    if model.device.type == "cuda":
        torch.cuda.empty_cache()  # what torch has kept of an engine that is gone
        available = torch.cuda.mem_get_info()[0] * GPU_SHARE
    else:
        available = (memory_bytes() or 8 * 2**30) * MEMORY_SHARE
    block_bytes = config.block_size * kv_per_token(model.config, model.dtype.itemsize)
    if blocks_each > available // block_bytes:
        raise ValueError(
            f"a request of {longest:,} tokens needs {blocks_each * block_bytes / 2**30:.1f} GiB of KV cache, and "
            f"{available / 2**30:.1f} may be used: set max_model_len to "
            f"{int(available // block_bytes) * config.block_size:,} or less, or num_blocks to what you want to give it"
        )
    return max(blocks_each, min(wanted, int(available // block_bytes))) + 1
