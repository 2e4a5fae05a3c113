"""The prefix cache: full blocks by their block hash."""

from collections.abc import Iterator

from phase3_paged_attention.paging.block_allocator import PhysicalBlock


class PrefixCache:
    """Full blocks by their block hash.

    Equal blocks of several requests are not merged: a hash leads to all of them, the oldest first.

    Source: vllm/v1/core/block_pool.py, BlockHashToBlockMap.
    """

    def __init__(self) -> None:
        self._blocks: dict[bytes, dict[int, PhysicalBlock]] = {}

    def get(self, block_hash: bytes) -> PhysicalBlock | None:
        """The oldest block with this hash."""
        same = self._blocks.get(block_hash)
        return next(iter(same.values())) if same else None

    def add(self, block: PhysicalBlock, block_hash: bytes) -> None:
        block.block_hash = block_hash
        self._blocks.setdefault(block_hash, {})[block.block_id] = block

    def remove(self, block: PhysicalBlock) -> None:
        """Forget this block, because its content will be overwritten. A block without a hash is left as it is."""
        if block.block_hash is None:
            return
        same = self._blocks[block.block_hash]
        del same[block.block_id]
        if not same:
            del self._blocks[block.block_hash]
        block.block_hash = None

    def __iter__(self) -> Iterator[tuple[bytes, PhysicalBlock]]:
        """(hash, block) of every cached block; blocks of one hash in order of age, oldest first."""
        for block_hash, same in self._blocks.items():
            for block in same.values():
                yield block_hash, block
