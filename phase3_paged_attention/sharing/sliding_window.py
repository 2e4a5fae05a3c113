"""Sliding windows: blocks that no later token sees are freed early.

Changes: a request of a model that looks back `window` tokens in every layer holds only the blocks of a window and a step;
the null block replaces the freed ones. A prefix hit needs only the last blocks, as many as fill a window.
Attaches to: `BlockManager.match_prefix`, `reserve`, `most_blocks`, `max_tokens`. (The window itself is a mask of the
attention, so it belongs to the model.) As a block belongs to all layers here, one layer that sees everything keeps every
block; vLLM has tables for each group of layers and frees more (vllm/v1/core/kv_cache_coordinator.py).

Source: vllm/v1/core/single_type_kv_cache_manager.py, SlidingWindowManager.
"""

from collections.abc import Sequence

from phase2_attention_kvcache.model.config import ModelConfig
from phase3_paged_attention.paging.block_allocator import PhysicalBlock
from phase3_paged_attention.paging.block_manager import BlockManager
from phase3_paged_attention.paging.block_table import BlockTable
from phase3_paged_attention.paging.integrity import demand


def widest_window(config: ModelConfig) -> int | None:
    """How far back the model looks, over all its layers; None: some layer sees everything."""
    windows = [config.window(layer) for layer in range(config.num_layers)]
    return None if None in windows else max(windows)


class WindowedBlockManager(BlockManager):
    """
    Args:
        sliding_window: tokens that a query sees, itself included, in the layer that looks back furthest.
        max_new_tokens: the most tokens of a request in one step.
    """

    def __init__(self, *args, sliding_window: int, max_new_tokens: int, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        if sliding_window < 1:
            raise ValueError(f"sliding_window is {sliding_window}: a token sees at least itself")
        self.sliding_window, self.max_new_tokens = sliding_window, max_new_tokens

    @property
    def max_tokens(self) -> int | None:
        return None if self._window_blocks < self.num_blocks else super().max_tokens

    @property
    def _window_blocks(self) -> int:
        # One more, since a window may begin in the middle of a block.
        return self.blocks_for(self.sliding_window - 1 + self.max_new_tokens) + 1

    def most_blocks(self, num_tokens: int) -> int:
        return min(super().most_blocks(num_tokens), self._window_blocks)

    def num_skipped_blocks(self, num_computed: int) -> int:
        """Blocks at the beginning that no later token sees, after `num_computed` tokens."""
        return max(0, num_computed - self.sliding_window + 1) // self.block_size

    def match_prefix(self, table: BlockTable, token_ids: Sequence[int]) -> list[PhysicalBlock]:
        """From the end to the beginning: the first run of blocks that fills a window; the null block before it."""
        if not self.enable_prefix_caching:
            return []
        hashes = self.block_hashes(table, token_ids, (len(token_ids) - 1) // self.block_size)
        needed, first, run = self.blocks_for(self.sliding_window - 1), 0, []
        for first in reversed(range(len(hashes))):
            block = self.prefix_cache.get(hashes[first])
            if block is None:
                run = []
                continue
            run.append(block)
            if len(run) >= needed:
                break
        # (The loop ends at block 0 with what the text begins with, which may be less than a window, or nothing.)
        return [self.allocator.null_block] * first + run[::-1]

    def reserve(
        self, table: BlockTable, num_tokens: int, prefix: Sequence[PhysicalBlock] = (), must_fit: int = 0
    ) -> bool:
        self.free_skipped(table)
        return super().reserve(table, num_tokens, prefix, must_fit)

    def free_skipped(self, table: BlockTable) -> None:
        """Free the blocks that have left the window. The null block replaces them in the table."""
        null, skipped = self.allocator.null_block, []
        num_skipped = self.num_skipped_blocks(table.num_tokens)
        # Blocks that came back from swap have no hash yet. In their place the null block would enter the prefix cache.
        table.num_hashed = max(table.num_hashed, num_skipped)
        for i in reversed(range(num_skipped)):
            if table.blocks[i] is null:
                break  # and so are all before it
            skipped.append(table.blocks[i])
            table.blocks[i], table.block_ids[i] = null, null.block_id
        null.ref_count += len(skipped)
        self.give_back(skipped)

    def check_integrity(self) -> None:
        super().check_integrity()
        for table in self.tables:
            num_null = table.block_ids.count(0)
            demand(not any(table.block_ids[:num_null]), "a table has the null block behind another one")
            demand(
                num_null <= self.num_skipped_blocks(table.num_tokens),
                "a block was given back that is still seen",
            )
