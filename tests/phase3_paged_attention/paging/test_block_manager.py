"""The block manager against a naive one made of lists, and single cases."""

import pytest
from hypothesis import settings

from phase3_paged_attention.paging import BlockManager, BlockTable
from tests.phase3_paged_attention.naive_manager import Machine, admit

TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=100, stateful_step_count=40)


# ---------------------------------------------------------------------- single cases


def free_ids(manager):
    return [b.block_id for b in manager.allocator]


def test_a_hit_is_not_evicted_by_its_own_allocation():
    """Free list: [5] [4] [3] [2] [1] and the request needs all five, of which it finds 1 and 2."""
    manager = BlockManager(6, 2)
    first = admit(manager, list(range(10)))
    manager.free(first)
    assert free_ids(manager) == [5, 4, 3, 2, 1]
    table = admit(manager, [0, 1, 2, 3, 70, 71, 72, 73, 74, 75])
    assert table.block_ids == [1, 2, 5, 4, 3]
    manager.check_integrity()


def test_equal_blocks_of_one_step_stay_apart_and_the_oldest_is_found():
    """Two with the same prompt, neither of which was looked up after the other had its blocks."""
    manager = BlockManager(10, 2)
    one, two = BlockTable(), BlockTable()
    tokens = [1, 2, 3]
    prefixes = [manager.match_prefix(t, tokens) for t in (one, two)]
    for table, prefix in zip((one, two), prefixes):
        assert manager.allocate(table, tokens, 3, prefix)
    assert (one.block_ids, two.block_ids) == ([1, 2], [3, 4])
    assert [b.block_id for b in manager.match_prefix(BlockTable(), tokens)] == [1]
    manager.free(one)
    assert [b.block_id for b in manager.match_prefix(BlockTable(), tokens)] == [1]
    # The older copy is evicted; the younger one is found from then on.
    while manager.num_free_blocks:
        manager.allocate(BlockTable(), [9], 1)
    assert [b.block_id for b in manager.match_prefix(BlockTable(), tokens)] == [3]
    manager.check_integrity()


def test_a_run_of_hits_ends_where_a_block_is_missing():
    """Blocks are uncached from anywhere in a chain; what lies behind them is of no use."""
    manager = BlockManager(10, 2)
    admit(manager, [1, 2, 3, 4, 5])
    manager.uncache(admit(manager, [1, 2, 9]))  # it shares the first block
    assert manager.match_prefix(BlockTable(), [1, 2, 3, 4, 5]) == []


def test_freeing_twice_is_fine_for_a_table_and_an_error_for_a_block():
    manager = BlockManager(5, 2)
    table = admit(manager, [1, 2, 3])
    manager.free(table)
    manager.free(table)
    manager.free(BlockTable())
    assert manager.num_free_blocks == 4
    manager.check_integrity()
    with pytest.raises(ValueError, match="freed twice"):
        manager.allocator.free_to_back([manager.allocator.blocks[2]])
    with pytest.raises(ValueError, match="freed twice"):
        manager.allocator.free_to_front([manager.allocator.blocks[2]])


def test_without_prefix_caching_nothing_is_found_and_nothing_is_named():
    manager = BlockManager(6, 2, enable_prefix_caching=False)
    table = admit(manager, [1, 2, 3])
    assert manager.match_prefix(BlockTable(), [1, 2, 3]) == []
    manager.free(table)
    assert free_ids(manager) == [2, 1, 3, 4, 5]  # unhashed: to the front, the last one first


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(num_blocks=1), "num_blocks is 1"),
        (dict(num_blocks=0), "num_blocks is 0"),
        (dict(num_blocks=5, block_size=0), "block_size is 0"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        BlockManager(**arguments)


@pytest.mark.parametrize("broken", ["ref", "lost", "name", "table"])
def test_check_integrity_sees_what_is_broken(broken):
    manager = BlockManager(6, 2)
    table = admit(manager, [1, 2, 3])
    manager.check_integrity()
    if broken == "ref":
        table.blocks[0].ref_count += 1
    elif broken == "lost":
        manager.allocator.remove(manager.allocator.blocks[4])
    elif broken == "name":
        manager.prefix_cache._blocks.clear()
    else:
        table.block_ids[0] = 5
    with pytest.raises(RuntimeError, match="contradicts itself"):
        manager.check_integrity()
