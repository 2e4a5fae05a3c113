"""Ranks for exercise 5.5: each a thread, and sums that all of them wait for."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from phase2_attention_kvcache.model.attention import attention

Block = dict[str, Tensor]
HEAD_DIM = 4


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Divide each vector by the root of its mean square, then scale. x: [N, d]."""
    return weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)


def make_block(d: int, num_heads: int, num_kv_heads: int, d_ff: int, seed: int) -> Block:
    """A Llama block with random numbers, and with a bias behind each of its two sums."""
    g = torch.Generator().manual_seed(seed)
    shapes = {
        "attention_norm": (d,), "q": (num_heads * HEAD_DIM, d), "k": (num_kv_heads * HEAD_DIM, d),
        "v": (num_kv_heads * HEAD_DIM, d), "out": (d, num_heads * HEAD_DIM), "out_bias": (d,),
        "mlp_norm": (d,), "gate": (d_ff, d), "up": (d_ff, d), "down": (d, d_ff), "down_bias": (d,),
    }  # fmt: skip
    return {
        name: torch.randn(shape, generator=g) / (d**0.5 if len(shape) > 1 else 1)
        for name, shape in shapes.items()
    }


class LeftAlone(Exception):
    """A rank waited for an all-reduce that another rank never called."""


class AllReduce:
    """What the ranks call for a sum.

    Attributes:
        parts: what each rank has brought so far.
    """

    def __init__(self, ranks: int) -> None:
        self.parts: list[list[Tensor]] = [[] for _ in range(ranks)]
        self._barrier = threading.Barrier(ranks)

    def of_rank(self, rank: int) -> Callable[[Tensor], Tensor]:
        def all_reduce(x: Tensor) -> Tensor:
            self.parts[rank].append(x.clone())
            number = len(self.parts[rank])
            with suppress(threading.BrokenBarrierError):
                self._barrier.wait()
            if min(map(len, self.parts)) < number:
                raise LeftAlone
            return sum(parts[number - 1] for parts in self.parts)

        return all_reduce

    def leave(self) -> None:
        """A rank has ended: those that wait for it, now or later, wait in vain."""
        self._barrier.abort()


def run_ranks(run: Callable[..., Any], x: Tensor, parts: Sequence[Block]) -> dict[str, list[Any]]:
    """`run` on all ranks at once: how often each came to a sum, and what each came to; None for one that was left alone.

    Raises:
        Exception: what was raised on a rank.
    """
    together = AllReduce(len(parts))

    def one(rank: int) -> Any:
        try:
            return run(x.clone(), parts[rank], HEAD_DIM, attention, together.of_rank(rank))
        except LeftAlone:
            return None
        finally:
            together.leave()

    with ThreadPoolExecutor(len(parts)) as threads:
        done = [threads.submit(one, rank) for rank in range(len(parts))]
    return {"sums": [len(brought) for brought in together.parts], "results": [each.result() for each in done]}
