"""Features of the block manager, single cases. Random ones: `tests/fuzzing/engine.py`."""

import pytest

from phase3_paged_attention.paging import BlockManager, BlockTable
from phase3_paged_attention.sharing import (
    BlockJournal,
    ForkingBlockManager,
    RecordingBlockManager,
    SwappingBlockManager,
    WindowedBlockManager,
    recorded,
)
from phase3_paged_attention.story.word_memory import WordBlockManager
from tests.phase3_paged_attention.paging.test_block_manager import admit


def test_twins_name_their_blocks_each_by_its_own_tokens():
    manager = ForkingBlockManager(10, 2)
    one = admit(manager, [1, 2, 3])
    two = manager.fork(one)
    for table, tokens in ((one, [1, 2, 3, 4]), (two, [1, 2, 3, 5])):
        assert manager.allocate(table, tokens, 4)
    for table, tokens in ((one, [1, 2, 3, 4, 0]), (two, [1, 2, 3, 5, 0])):
        assert [b.block_id for b in manager.match_prefix(BlockTable(), tokens)] == table.block_ids


def test_fork_of_nothing_and_of_what_is_swapped_out():
    manager = WordBlockManager(6, 2, num_swap_blocks=4)
    assert manager.fork(BlockTable()).blocks == []
    table = admit(manager, [1, 2, 3])
    manager.swap_out(table)
    with pytest.raises(ValueError, match="swapped out"):
        manager.fork(table)


def test_bad_arguments():
    with pytest.raises(ValueError, match="num_swap_blocks is -1"):
        SwappingBlockManager(5, num_swap_blocks=-1)
    with pytest.raises(ValueError, match="sliding_window is 0"):
        WindowedBlockManager(5, sliding_window=0, max_new_tokens=1)


@pytest.mark.parametrize("late", [False, True])
def test_the_journal_tells_what_happened(late):
    manager = recorded(BlockManager(4, 2)) if late else RecordingBlockManager(4, 2)
    assert recorded(manager) is manager and type(manager.take_journal()) is BlockJournal
    table = admit(manager, [1, 2, 3])
    manager.free(table)
    again = admit(manager, [1, 2, 4, 4, 5])
    assert manager.journal == BlockJournal(taken=[1, 2, 2, 3], hit=[1], freed=[2, 1], evicted=[])
    assert manager.stats.hit_tokens == 2
    manager.free(again)
    admit(manager, [7, 7, 7])
    assert manager.take_journal().evicted == [2] and manager.journal == BlockJournal()


def test_check_integrity_sees_a_lost_swap_block():
    manager = SwappingBlockManager(6, 2, num_swap_blocks=2)
    manager.free_swap_blocks.pop()
    with pytest.raises(RuntimeError, match="contradicts itself"):
        manager.check_integrity()


def test_check_integrity_sees_a_window_that_lost_a_block():
    manager = WindowedBlockManager(9, 2, sliding_window=4, max_new_tokens=2)
    table = admit(manager, [1, 2, 3, 4])
    manager.check_integrity()
    null = manager.allocator.null_block
    manager.give_back(table.blocks[:1])
    table.blocks[0], table.block_ids[0] = null, 0
    null.ref_count += 1
    with pytest.raises(RuntimeError, match="still seen"):
        manager.check_integrity()
