"""All features of the block manager at once against a naive one made of lists, and single cases."""

import dataclasses
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from phase3_paged_attention.paging import BlockManager, BlockTable
from phase3_paged_attention.sharing import (
    BlockJournal,
    ForkingBlockManager,
    RecordingBlockManager,
    SwappingBlockManager,
    WindowedBlockManager,
    recorded,
)
from tests.phase3_paged_attention.naive_manager import Machine, Naive, admit, snapshot


class Sharing(RecordingBlockManager, ForkingBlockManager, SwappingBlockManager):
    """All but windows."""


class WindowedSharing(RecordingBlockManager, WindowedBlockManager, ForkingBlockManager, SwappingBlockManager):
    """All."""


class NaiveSharing(Naive):
    def __init__(self, num_blocks, size, window, step_tokens):
        super().__init__(num_blocks, size)
        self.window, self.step_tokens = window, step_tokens
        self.taken = self.evicted = self.copied = self.looked_up = self.hit = 0

    def num_skipped(self, have):
        """Blocks of which every token is further back than the window of token number `have` reaches."""
        ends = range(self.size, have + 1, self.size)
        return sum(end - 1 <= have - self.window for end in ends) if self.window else 0

    def skip(self, blocks, have):
        """The same blocks without those that have left the window; these are free."""
        n = self.num_skipped(have)
        gone = [b for b in blocks[:n] if b]
        self.readers[0] += len(gone)
        self.give_back(gone)
        return [0] * n + blocks[n:]

    def find(self, tokens):
        if not self.window:
            return super().find(tokens)
        # the longest beginning of which everything is there that the next token sees
        for n in range((len(tokens) - 1) // self.size, 0, -1):
            needed = range(self.num_skipped(n * self.size) or 0, n)
            if all(found := [self.block_of(tokens, i) for i in needed]):
                return [0] * needed.start + found
        return []

    def block_of(self, tokens, i):
        name = tuple(tokens[: (i + 1) * self.size])
        return next((block for block, of_block in self.names.items() if of_block == name), None)

    def most_blocks(self, num_tokens):
        """A window may begin in the middle of a block, and a step comes behind it."""
        most = self.blocks_for(num_tokens)
        return min(most, self.blocks_for(self.window - 1 + self.step_tokens) + 1) if self.window else most

    def is_shared(self, blocks, have):
        return bool(have % self.size) and self.readers[blocks[have // self.size]] > 1

    def fits(self, num_new, blocks, have, prefix):
        return super().fits(num_new + self.is_shared(blocks, have), blocks, have, prefix)

    def before_writing(self, blocks, have):
        if self.is_shared(blocks, have):
            self.copied += 1
            self.readers[blocks[have // self.size]] -= 1
            blocks[have // self.size] = self.take()

    def take(self):
        self.taken += 1
        self.evicted += self.free_list[0] in self.names
        return super().take()


class Past(NamedTuple):
    looks_back_from: int = 0  # the first token that the last step computed
    swapped: int = 0  # blocks in main memory


class SharingMachine(Machine):
    """Beside what a plain manager can do: windows, forks, swaps, counts."""

    @initialize(
        num_blocks=st.integers(2, 14),
        size=st.integers(1, 4),
        slots=st.integers(0, 8),
        window=st.one_of(st.none(), st.integers(2, 9)),
        step_tokens=st.integers(1, 4),
    )
    def begin(self, num_blocks, size, slots, window, step_tokens):
        if window is None:
            manager = Sharing(num_blocks, size, num_swap_blocks=slots)
        else:
            windows = dict(sliding_window=window, max_new_tokens=step_tokens)
            manager = WindowedSharing(num_blocks, size, num_swap_blocks=slots, **windows)
        self.start(manager, NaiveSharing(num_blocks, size, window, step_tokens))
        self.slots, self.window, self.past, self.copied = slots, window, {}, 0
        self.main_memory = [[None] * size for _ in range(slots)]

    def past_of(self, u):
        return self.past.get(u, Past())

    def swapped(self):
        return [u for u in self.users if self.past_of(u).swapped]

    def present(self):
        return [u for u in self.users if not self.past_of(u).swapped]

    def snapshot(self, manager, table):
        return (
            *snapshot(manager, table),
            dataclasses.asdict(manager.stats),
            (manager.swapped.get(table), sorted(manager.free_swap_blocks), list(manager._copies)),
        )

    def refused(self, call, table):
        """Blocks that are not needed any more may go all the same."""
        if self.window:
            self.manager.free_skipped(table)
        return super().refused(call, table)

    def end_step(self):
        """Copies first."""
        for copy in self.manager.take_copies():
            source = self.main_memory if copy.kind == "in" else self.memory
            target = self.main_memory if copy.kind == "out" else self.memory
            target[copy.target] = list(source[copy.source])
            self.copied += copy.kind == "copy"
        for u in self.users:
            self.past[u] = self.past_of(u)._replace(looks_back_from=u.written)
        super().end_step()

    def read_back(self):
        for u in self.users:
            past, swapped = self.past[u], self.manager.swapped.get(u.table)
            first = max(0, past.looks_back_from - self.window + 1) if self.window else 0
            if swapped is None:
                self.read(u, first, u.table.block_ids, self.memory)
            else:
                first = max(first, self.naive.num_skipped(u.computed) * self.size)
                self.read(u, first, swapped, self.main_memory)

    def before_growing(self, u):
        if self.window and u.written < u.computed:
            self.end_step()  # a block may go as soon as what looks back at it is computed
        u.blocks = self.naive.skip(u.blocks, u.computed)

    def enter(self, u, part, all_must_fit):
        done = super().enter(u, part, all_must_fit)
        if done:
            self.naive.looked_up += len(u.tokens)
            self.naive.hit += u.written
        return done

    @precondition(lambda self: self.present())
    @rule(data=st.data())
    def fork(self, data):
        self.end_step()
        u = self.pick(data)
        table = self.manager.fork(u.table)
        twin = dataclasses.replace(u, tokens=list(u.tokens), table=table, blocks=list(u.blocks))
        for block in u.blocks:
            self.naive.readers[block] += 1
        self.past[twin] = self.past_of(u)
        self.users.append(twin)

    @precondition(lambda self: self.present())
    @rule(data=st.data())
    def swap_out(self, data):
        self.end_step()
        u = self.pick(data)
        in_use = sum(self.past_of(v).swapped for v in self.users)
        done = self.refused(lambda: self.manager.swap_out(u.table), u.table)
        u.blocks = self.naive.skip(u.blocks, u.computed)
        held = len(u.blocks) - u.blocks.count(0)
        assert done == (in_use + held <= self.slots)
        if done:
            self.past[u] = self.past_of(u)._replace(swapped=held)
            self.naive.give_back(u.blocks)
            u.blocks = []

    @precondition(lambda self: self.swapped())
    @rule(data=st.data(), more=st.integers(0, 9))
    def swap_in(self, data, more):
        u = data.draw(st.sampled_from(self.swapped()))
        num_held, must_fit = self.past_of(u).swapped, u.computed + more
        done = self.refused(lambda: self.manager.swap_in(u.table, must_fit), BlockTable())
        skipped = self.naive.num_skipped(u.computed)
        needed = max(num_held, self.naive.most_blocks(must_fit) - skipped)
        assert done == (needed <= len(self.naive.free_list))
        if done:
            u.blocks = [0] * skipped + [self.naive.take() for _ in range(num_held)]
            self.naive.readers[0] += skipped
            self.past[u] = self.past_of(u)._replace(swapped=0)

    @invariant()
    def counts_agree(self):
        if not hasattr(self, "manager"):
            return
        stats, copies = self.manager.stats, self.manager._copies
        assert (stats.taken_blocks, stats.evicted_blocks) == (self.naive.taken, self.naive.evicted)
        assert self.copied + sum(copy.kind == "copy" for copy in copies) == self.naive.copied
        assert (stats.looked_up_tokens, stats.hit_tokens) == (self.naive.looked_up, self.naive.hit)


TestSharingMachine = SharingMachine.TestCase
TestSharingMachine.settings = settings(max_examples=100, stateful_step_count=40)


# ---------------------------------------------------------------------- single cases


def test_twins_name_their_blocks_each_by_its_own_tokens():
    manager = ForkingBlockManager(10, 2)
    one = admit(manager, [1, 2, 3])
    two = manager.fork(one)
    for table, tokens in ((one, [1, 2, 3, 4]), (two, [1, 2, 3, 5])):
        assert manager.allocate(table, tokens, 4)
    for table, tokens in ((one, [1, 2, 3, 4, 0]), (two, [1, 2, 3, 5, 0])):
        assert [b.block_id for b in manager.match_prefix(BlockTable(), tokens)] == table.block_ids


def test_fork_of_nothing_and_of_what_is_swapped_out():
    manager = Sharing(6, 2, num_swap_blocks=4)
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
    assert manager.stats.hit_rate == 2 / 8
    manager.free(again)
    admit(manager, [7, 7, 7])
    assert manager.take_journal().evicted == [2] and manager.journal == BlockJournal()


def test_without_prefix_caching_the_hit_rate_is_0():
    manager = RecordingBlockManager(6, 2, enable_prefix_caching=False)
    assert manager.stats.hit_rate == 0
    for _ in range(2):
        manager.free(admit(manager, [1, 2, 3]))
    assert manager.stats.hit_rate == 0


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
