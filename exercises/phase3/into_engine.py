"""The way into the engine for phase 3: a block manager or a cache of the small engine that calls the learner's part in one place."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from exercises.capstone.parts import COMPLETE
from exercises.capstone.your_engine import SHARED, cache_with, in_your_engine
from exercises.judging.engine_runs import PROMPTS


def order_in_the_engine(FreeList: type) -> None:
    """Exercise 3.4: prompts that begin alike come again, and memory is too small to keep everything."""

    class OrderedManager(import_module(f"{COMPLETE}.blocks").BlockManager):
        """The learner's list says which free block is taken next."""

        def __init__(self, *sizes: Any) -> None:
            super().__init__(*sizes)
            self.order = FreeList(list(range(1, self.num_blocks)))

        def take(self) -> int:
            block = self.order.take()
            self.allocator.free.remove(block)
            self.allocator.free.insert(0, block)
            return super().take()

        def hit(self, block: int) -> None:
            if not self.allocator.ref_count[block]:
                self.order.hit(block)
            super().hit(block)

        def free(self, request: Any, num_filled: int | None = None) -> None:
            held = request.blocks
            super().free(request, num_filled)
            freed = [block for block in held if not self.allocator.ref_count[block]]
            self.order.give_back(freed, sum(block in self.names for block in freed))

    waves = (SHARED[:2], PROMPTS, SHARED, PROMPTS[:2], SHARED)
    parts = {"BlockManager": OrderedManager}
    in_your_engine("p3e4_eviction", FreeList, parts=parts, waves=waves, num_blocks=10)


def attention_in_the_engine(paged_attention: Callable) -> None:
    """Exercise 3.6: in decode the learner's loop attends, one head at a time."""

    def attend_token(cache: Any, layer: int, q: Tensor, table: list[int], length: int) -> Tensor:
        keys, values = cache.blocks(layer)
        heads = (
            paged_attention(q[h], keys[:, :, h], values[:, :, h], list(table), length) for h in range(len(q))
        )
        return torch.stack([torch.as_tensor(head, dtype=q.dtype) for head in heads])

    in_your_engine("p3e6_paged_attention", paged_attention, parts={"PagedCache": cache_with(attend_token)})
