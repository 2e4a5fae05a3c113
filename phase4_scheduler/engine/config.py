"""The settings of a scheduler, and of a whole engine."""

from dataclasses import dataclass
from typing import Annotated

from labkit.checks import check_fields, whole


@dataclass(frozen=True)
class SchedulerConfig:
    """The limits of a step, and the policy.

    Attributes:
        max_num_seqs: the largest number of sequences that run at the same time.
        max_num_batched_tokens: the token budget: the largest number of tokens in a step.
        max_model_len: the largest number of tokens in a request, prompt and answer together; None: as many as the cache
            holds, in an engine the model's context.
        chunked_prefill: whether a prompt may be computed in several steps.
        long_prefill_token_threshold: the largest number of tokens of one request in a step while other requests exist; 0: no limit.
        policy: order of the waiting queue, and victim of a preemption: a name in `policy.py`, or a class of your own.
    """

    max_num_seqs: Annotated[int, whole(1)] = 64
    max_num_batched_tokens: Annotated[int, whole(1)] = 2048
    max_model_len: Annotated[int | None, whole(1, optional=True)] = None
    chunked_prefill: bool = True
    long_prefill_token_threshold: Annotated[int, whole(0)] = 0
    policy: object = "fcfs"

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class EngineConfig(SchedulerConfig):
    """All settings of an engine: those of `SchedulerConfig`, those of the KV cache, and two that belong to neither.

    Attributes:
        num_blocks: blocks, the null block included; None: as many as all running requests could ever need,
            within 30% of the memory (on a GPU 80% of what is free, less what the largest step needs).
        block_size: tokens per block.
        enable_prefix_caching: find full blocks again by the tokens that they hold.
        enforce_eager: on a GPU, launch every operation of a decode step instead of replaying a CUDA graph.
        seed: for requests without a seed of their own.
    """

    num_blocks: Annotated[int | None, whole(1, optional=True)] = None
    block_size: Annotated[int, whole(1)] = 16
    enable_prefix_caching: bool = True
    enforce_eager: bool = False
    seed: Annotated[int, whole(-(2**63))] = 0
