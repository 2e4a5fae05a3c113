"""Copies blocks of keys and values from one engine to another.

The decode side reads the blocks from the cache of the prefill side, as a network card reads another machine's
memory (RDMA). A **lease** limits the transfer: the prefill side keeps the blocks until a fixed time and then frees them,
even if it has heard nothing from the decode side, which may be dead. No message ends a lease: both sides check the clock. So
the decode side checks the clock *after* reading. A block read before the end is good; a later read may return other data.

Source: vllm/distributed/kv_transfer/kv_connector/v1/nixl; Gray and Cheriton, "Leases" (1989).
"""

import time
from collections.abc import Callable, Sequence

from torch import Tensor

from labkit.machine import synchronize

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
        lease_until: time of `clock` from which on `source` may hold other data.

    Returns:
        own blocks without the right content: all from the first copy on that ended too late.
    """
    for copied, (theirs, own) in enumerate(pairs):
        target[:, :, own].copy_(source[:, :, theirs])
        synchronize(target.device.type)  # on a GPU `copy_` only queues the copy
        if clock() >= lease_until:
            return {own for _, own in pairs[copied:]}
    return set()
