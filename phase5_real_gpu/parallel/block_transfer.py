"""Blocks of keys and values on their way from one engine to another.

The decode side reads the blocks where they lie, in the cache of the prefill side, as a network card reads another machine's
memory (RDMA). Between the two stands a **lease**: the prefill side keeps the blocks until a certain moment, and frees them then,
whether it has heard of the other side or not; that one may be dead. No message is needed to end it: both look at the clock. So
the decode side looks at the clock *after* reading. What was read before the end is good; everything later may be anything.

Source: vllm/distributed/kv_transfer/kv_connector/v1/nixl; Gray and Cheriton, "Leases" (1989).
"""

import time
from collections.abc import Callable, Sequence

from torch import Tensor

BlockPair = tuple[int, int]  # (block of the other side, own block)


def copy_blocks(
    source: Tensor,
    target: Tensor,
    pairs: Sequence[BlockPair],
    lease_until: float,
    clock: Callable[[], float] = time.monotonic,
) -> set[int]:
    """Read blocks of another engine's cache under a lease.

    Args:
        source, target: [2, num_layers, num_blocks, block_size, num_kv_heads, head_dim].
        lease_until: by `clock`, from when on `source` may hold anything.

    Returns:
        own blocks that do not hold what they should: all from the first copy on that ended too late.
    """
    for copied, (theirs, own) in enumerate(pairs):
        target[:, :, own].copy_(source[:, :, theirs])
        if clock() >= lease_until:
            return {own for _, own in pairs[copied:]}
    return set()
