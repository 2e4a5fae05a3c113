"""The settings of an engine: the scheduler's, the cache's, and the few that belong to neither."""

from dataclasses import dataclass
from numbers import Integral

from phase2_attention_kvcache.model.kv_formats import check_kv_cache_dtype
from phase2_attention_kvcache.model.quantized_formats import find_method
from phase4_scheduler.engine.speculative_config import SpeculativeConfig


@dataclass(frozen=True)
class SchedulerConfig:
    """The limits of a step, and the policies.

    Attributes:
        max_num_seqs: most sequences that run at a time.
        max_num_batched_tokens: most tokens of a step: the token budget.
        max_model_len: most tokens of a request, prompt and answer together; None: as many as the cache holds, in an
            engine the model's context.
        chunked_prefill: whether a prompt may be computed in several steps.
        long_prefill_token_threshold: most tokens of one request in a step while others live; 0: no limit.
        policy: "fcfs" (first come, first served) or "priority" (the smallest number first).
        preemption: "recompute" (drop the blocks, compute the tokens again) or "swap" (move the blocks to
            main memory and back; recomputes if there is no room for them).
        speculative_config: who drafts the next tokens, and how many (a `SpeculativeConfig`, or its fields as a dict);
            None: nobody, one token a step.
    """

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    max_model_len: int | None = None
    chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    policy: str = "fcfs"
    preemption: str = "recompute"
    speculative_config: SpeculativeConfig | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "speculative_config", SpeculativeConfig.of(self.speculative_config))
        check_whole(self, 1, "max_num_seqs", "max_num_batched_tokens")
        check_whole(self, 1, "max_model_len", optional=True)
        check_whole(self, 0, "long_prefill_token_threshold")
        for name, known in (("policy", ("fcfs", "priority")), ("preemption", ("recompute", "swap"))):
            if getattr(self, name) not in known:
                raise ValueError(f"unknown {name} {getattr(self, name)!r}: use {' or '.join(known)}")
        if speculation := self.speculative_config:
            needed = 1 + speculation.num_speculative_tokens + speculation.num_draft_slots
            if self.max_num_batched_tokens < needed:
                raise ValueError(
                    f"max_num_batched_tokens is {self.max_num_batched_tokens}: a request with "
                    f"{speculation.num_speculative_tokens} drafts needs {needed} in a step; raise it, or lower "
                    "num_speculative_tokens"
                )


@dataclass(frozen=True)
class CacheConfig:
    """The KV cache.

    Attributes:
        num_blocks: blocks, the null block included; None: as many as all running requests could ever need,
            within 30% of the memory (on a GPU 80% of what is free: activations need some as well).
        block_size: tokens a block.
        enable_prefix_caching: find full blocks again by the tokens that they hold.
        num_swap_blocks: blocks of main memory for preempted requests (preemption="swap").
        kv_cache_dtype: how keys and values are stored: "auto" (as the model computes), "fp8" or "int8_per_token_head".
    """

    num_blocks: int | None = None
    block_size: int = 16
    enable_prefix_caching: bool = True
    num_swap_blocks: int = 0
    kv_cache_dtype: str = "auto"

    def __post_init__(self) -> None:
        check_kv_cache_dtype(self.kv_cache_dtype)
        check_whole(self, 1, "block_size")
        check_whole(self, 1, "num_blocks", optional=True)
        check_whole(self, 0, "num_swap_blocks")


@dataclass(frozen=True)
class EngineConfig(CacheConfig, SchedulerConfig):  # the scheduler's fields come first
    """All settings of an engine: those of `SchedulerConfig` and of `CacheConfig`, and

    Attributes:
        enforce_eager: on a GPU, start every operation of a decode step anew instead of replaying a recording.
        seed: for requests that have no seed of their own.
        quantization: "int8", "fp8", "int4", "q8_0" or "q4_0": turn the weights into few bits while they are loaded; None: as
            the file has them. On a CPU with numba activations are rounded to 8 bits too, but for "fp8".
        tensor_parallel_size, pipeline_parallel_size: devices that share each layer, and groups of them that share the layers
            (phase 5, section 7).
        enable_expert_parallel: the devices that share a layer of a mixture hold whole experts, and not a slice of each.
    """

    enforce_eager: bool = False
    seed: int = 0
    quantization: str | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    enable_expert_parallel: bool = False

    @property
    def world_size(self) -> int:
        """Devices in all."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    def __post_init__(self) -> None:
        SchedulerConfig.__post_init__(self)
        CacheConfig.__post_init__(self)
        check_whole(self, -(2**63), "seed")
        check_whole(self, 1, "tensor_parallel_size", "pipeline_parallel_size")
        if self.quantization is not None:
            object.__setattr__(self, "quantization", find_method(self.quantization))
        if self.quantization is not None and self.world_size > 1:
            raise ValueError("quantization works on one device: leave it out, or the parallel sizes")
        if self.preemption == "swap" and self.num_swap_blocks == 0:
            raise ValueError(
                "preemption is 'swap', and num_swap_blocks is 0: say how many blocks may be swapped out"
            )


def check_whole(config: object, least: int, *names: str, optional: bool = False) -> None:
    """Each of these settings must be a whole number of at least `least`, or, if `optional`, None."""
    for name in names:
        value = getattr(config, name)
        if value is None and optional:
            continue
        if not isinstance(value, Integral) or isinstance(value, bool):
            raise ValueError(f"{name} is {value!r}: it must be a whole number")
        if value < least:
            raise ValueError(f"{name} is {value}: it must be {least} or more")
