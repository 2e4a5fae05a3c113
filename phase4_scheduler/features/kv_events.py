"""KV events: what enters the prefix cache and what leaves it, so that a router outside knows what each replica holds.

Changes nothing in what the engine decides. The events, with vLLM's fields, wait until `take_kv_events` of the block manager is called.
(vLLM publishes them over ZeroMQ.)
Attaches to: `BlockManager.prefix_cache`, `cache_blocks`, `reset_prefix_cache`.

Source: vllm/distributed/kv_events.py; vllm/v1/core/block_pool.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from phase3_paged_attention.paging.block_allocator import PhysicalBlock
from phase3_paged_attention.paging.block_manager import BlockManager
from phase3_paged_attention.paging.block_table import BlockTable, hash_block
from phase3_paged_attention.paging.prefix_cache import PrefixCache
from phase4_scheduler.assembly import Feature


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Blocks that follow each other in a text. Equal blocks of two requests are stored twice.

    Attributes:
        block_hashes: one for each block. parent_block_hash: of the block before them; None: the text begins with them.
        token_ids: of all of them.
    """

    block_hashes: list[bytes]
    parent_block_hash: bytes | None
    token_ids: list[int]
    block_size: int


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """Blocks that are overwritten, or hold no more what their hashes say."""

    block_hashes: list[bytes]


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The cache was reset."""


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared


def block_names(token_ids: Sequence[int], block_size: int, salt: bytes = b"") -> list[bytes]:
    """The hashes by which events call the full blocks of a text."""
    names = [salt]
    for end in range(block_size, len(token_ids) + 1, block_size):
        names.append(hash_block(names[-1], token_ids[end - block_size : end]))
    return names[1:]


class WatchedPrefixCache(PrefixCache):
    """
    Attributes:
        added: hashes of the blocks that entered. removed: called with the hash of a block that leaves.
    """

    def __init__(self, removed: Callable[[bytes], None]) -> None:
        super().__init__()
        self.added: list[bytes] = []
        self.removed = removed

    def add(self, block: PhysicalBlock, block_hash: bytes) -> None:
        super().add(block, block_hash)
        self.added.append(block_hash)

    def remove(self, block: PhysicalBlock) -> None:
        if block.block_hash is not None:
            self.removed(block.block_hash)
        super().remove(block)


class KVEventBlockManager(BlockManager):
    """Attributes: kv_events: since they were taken last."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.kv_events: list[KVEvent] = []
        self.prefix_cache = WatchedPrefixCache(lambda name: self.kv_events.append(BlockRemoved([name])))

    def cache_blocks(self, table: BlockTable, token_ids: Sequence[int], num_tokens: int) -> None:
        super().cache_blocks(table, token_ids, num_tokens)
        if added := self.prefix_cache.added:
            first, size = table.block_hashes.index(added[0]), self.block_size
            parent = table.block_hashes[first - 1] if first else None
            tokens = list(token_ids[first * size : (first + len(added)) * size])
            self.kv_events.append(BlockStored(added, parent, tokens, size))
            self.prefix_cache.added = []

    def reset_prefix_cache(self) -> bool:
        so_far = list(self.kv_events)
        if done := super().reset_prefix_cache():
            self.kv_events = [*so_far, AllBlocksCleared()]
        return done

    def take_kv_events(self) -> list[KVEvent]:
        events, self.kv_events = self.kv_events, []
        return events


class KVEvents(Feature):
    """Setting: `enable_kv_cache_events`."""

    settings = {"enable_kv_cache_events": False}
    block_manager = KVEventBlockManager
