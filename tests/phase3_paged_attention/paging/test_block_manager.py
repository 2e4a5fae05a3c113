"""The block manager against a naive one made of lists, on random requests whose memory shows every wrong pointer; single cases."""

import dataclasses
from functools import cache

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from phase3_paged_attention.paging import BlockManager, BlockTable, hash_block


class Naive:
    """The same rules with plain lists: block numbers, and whole prefixes in place of hashes."""

    def __init__(self, num_blocks, size):
        self.size = size
        self.free_list = list(range(1, num_blocks))
        self.readers = dict.fromkeys(range(num_blocks), 0) | {0: 1}
        self.names = {}  # block -> all tokens up to its end; in the order in which they were named

    def find(self, tokens):
        found = []
        for end in range(
            self.size, len(tokens), self.size
        ):  # an end below len(tokens): one is left to compute
            same = [block for block, name in self.names.items() if name == tuple(tokens[:end])]
            if not same:
                break
            found.append(same[0])
        return found

    def blocks_for(self, num_tokens):
        return -(-num_tokens // self.size)

    def allocate(self, blocks, tokens, want, prefix=(), must_fit=0):
        """The new list of blocks, or None. `want`: tokens that shall be there."""
        needed = max(self.blocks_for(want), self.blocks_for(must_fit)) - len(blocks) - len(prefix)
        if needed > len([b for b in self.free_list if b not in prefix]):
            return None
        blocks = blocks + list(prefix)
        self.free_list = [b for b in self.free_list if b not in prefix]
        for block in prefix:
            self.readers[block] += 1
        while len(blocks) < self.blocks_for(want):
            blocks.append(self.take())
        for i in range(want // self.size):
            self.names.setdefault(blocks[i], tuple(tokens[: (i + 1) * self.size]))
        return blocks

    def take(self):
        block = self.free_list.pop(0)
        self.names.pop(block, None)
        self.readers[block] = 1
        return block

    def give_back(self, blocks):
        for block in blocks:
            self.readers[block] -= 1
        gone = [b for b in reversed(blocks) if self.readers[b] == 0]
        unhashed = [b for b in gone if b not in self.names]
        self.free_list = unhashed + self.free_list + [b for b in gone if b in self.names]


@dataclasses.dataclass(eq=False)
class User:
    tokens: list
    table: BlockTable
    blocks: list  # what the naive manager says
    computed: int = 0  # tokens that have room, and are or will be written in this step
    written: int = 0


@cache
def name_of(tokens, size):
    """The name that a block must have whose last token is the last of these."""
    parent = name_of(tokens[:-size], size) if len(tokens) > size else b""
    return hash_block(parent, tokens[-size:])


def snapshot(manager, table):
    """Everything that a refused call must leave as it was."""
    return (
        [b.block_id for b in manager.allocator],
        [(b.ref_count, b.block_hash) for b in manager.allocator.blocks],
        [(block_hash, b.block_id) for block_hash, b in manager.prefix_cache],
        (list(table.block_ids), table.num_tokens, table.num_hashed, len(manager.tables)),
    )


tokens_of = st.lists(st.integers(0, 1), min_size=1, max_size=13)  # two letters: prefixes collide all the time


class Machine(RuleBasedStateMachine):
    """Random requests. Memory keeps, in place of a key, all tokens that the key depends on."""

    @initialize(num_blocks=st.integers(2, 14), size=st.integers(1, 4))
    def begin(self, num_blocks, size):
        self.manager, self.naive, self.size = BlockManager(num_blocks, size), Naive(num_blocks, size), size
        self.memory = [[None] * self.size for _ in range(num_blocks)]
        self.users, self.away = [], []

    def refused(self, call, table):
        """Run a call that may be refused; if it was, nothing may have changed."""
        before = snapshot(self.manager, table)
        done = call()
        if not done:
            assert snapshot(self.manager, table) == before
        return done

    def end_step(self):
        """What was computed is written; then every user reads their own past."""
        for u in self.users:
            for at in range(u.written, u.computed):
                self.memory[u.table.block_ids[at // self.size]][at % self.size] = tuple(u.tokens[: at + 1])
            u.written = u.computed
        for u in self.users:
            for at in range(u.computed):
                block_id = u.table.block_ids[at // self.size]
                assert self.memory[block_id][at % self.size] == tuple(u.tokens[: at + 1])

    def enter(self, u, part, all_must_fit):
        """Admit a request: look it up, and compute a part of the rest."""
        prefix = self.manager.match_prefix(u.table, u.tokens)
        found = self.naive.find(u.tokens)
        assert [b.block_id for b in prefix] == found
        hit = len(found) * self.size
        want = hit + max(1, round(part * (len(u.tokens) - hit)))
        assert hit < want <= len(u.tokens)
        must_fit = len(u.tokens) if all_must_fit else 0
        done = self.refused(lambda: self.manager.allocate(u.table, u.tokens, want, prefix, must_fit), u.table)
        blocks = self.naive.allocate([], u.tokens, want, found, must_fit)
        assert done == (blocks is not None)
        if done:
            u.blocks, u.computed, u.written = blocks, want, hit
            self.users.append(u)
        return done

    @rule(tokens=tokens_of, part=st.floats(0, 1), all_must_fit=st.booleans())
    def admit(self, tokens, part, all_must_fit):
        self.enter(User(tokens, BlockTable(), []), part, all_must_fit)

    @precondition(lambda self: self.users)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 1), min_size=1, max_size=5))
    def go_on(self, data, tokens):
        u = data.draw(st.sampled_from(self.users))
        longer = u.tokens if u.computed < len(u.tokens) else u.tokens + tokens
        want = data.draw(st.integers(u.computed + 1, len(longer)))
        done = self.refused(lambda: self.manager.allocate(u.table, longer, want), u.table)
        blocks = self.naive.allocate(u.blocks, longer, want)
        assert done == (blocks is not None)
        if done:
            u.tokens, u.blocks, u.computed = longer, blocks, want

    @rule()
    def step(self):
        self.end_step()

    @precondition(lambda self: self.users)
    @rule(data=st.data(), comes_back=st.booleans())
    def free(self, data, comes_back):
        self.end_step()
        u = data.draw(st.sampled_from(self.users))
        self.users.remove(u)
        self.manager.free(u.table)
        self.naive.give_back(u.blocks)
        if comes_back:  # preempted: the same table and tokens, later
            self.away.append(User(u.tokens, u.table, []))

    @precondition(lambda self: self.away)
    @rule(part=st.floats(0, 1))
    def come_back(self, part):
        u = self.away.pop(0)
        if not self.enter(u, part, True):
            self.away.append(u)

    @rule()
    def reset(self):
        held = bool(self.users)
        assert self.manager.reset_prefix_cache() == (not held)
        if not held:
            self.naive.names.clear()

    @invariant()
    def everything_agrees(self):
        if not hasattr(self, "manager"):
            return
        self.manager.check_integrity()
        assert [b.block_id for b in self.manager.allocator] == self.naive.free_list
        assert self.manager.num_free_blocks == len(self.naive.free_list)
        blocks = self.manager.allocator.blocks
        names = {b.block_id: b.block_hash for b in blocks if b.block_hash}
        assert names == {block: name_of(tokens, self.size) for block, tokens in self.naive.names.items()}
        assert all(self.manager.prefix_cache._blocks.values()), "hashes that no block has would pile up"
        assert all(b.ref_count == self.naive.readers[b.block_id] for b in blocks)
        for u in self.users:
            assert u.table.block_ids == u.blocks
            assert u.table.num_tokens == u.computed

    def teardown(self):
        if not hasattr(self, "manager"):
            return
        self.end_step()
        for u in self.users:
            self.manager.free(u.table)
        self.manager.check_integrity()
        assert self.manager.num_free_blocks == self.manager.num_blocks - 1


def admit(manager, tokens):
    """A table with these tokens, as many as can be found taken from the prefix cache."""
    table = BlockTable()
    assert manager.allocate(table, tokens, len(tokens), manager.match_prefix(table, tokens))
    return table


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=100, stateful_step_count=40)


# ---------------------------------------------------------------------- single cases


def test_a_run_of_hits_ends_where_a_block_is_missing():
    """Blocks are uncached from anywhere in a chain; what lies behind them is of no use."""
    manager = BlockManager(10, 2)
    admit(manager, [1, 2, 3, 4, 5])
    manager.uncache(admit(manager, [1, 2, 9]))  # it shares the first block
    assert manager.match_prefix(BlockTable(), [1, 2, 3, 4, 5]) == []


def test_freeing_twice_is_fine_for_a_table_and_an_error_for_a_block_as_is_taking_one_too_many():
    manager = BlockManager(5, 2)
    table = admit(manager, [1, 2, 3])
    manager.free(table)
    manager.free(table)
    manager.free(BlockTable())
    assert manager.num_free_blocks == 4
    manager.check_integrity()
    with pytest.raises(ValueError, match="freed twice"):
        manager.allocator.free_to_back([manager.allocator.blocks[2]])
    with pytest.raises(ValueError, match="is not free"):
        manager.allocator.remove(manager.allocator.null_block)
    for _ in range(4):
        manager.allocator.take()
    with pytest.raises(MemoryError, match="no free block"):
        manager.allocator.take()


def test_without_prefix_caching_nothing_is_found_and_nothing_is_named():
    manager = BlockManager(6, 2, enable_prefix_caching=False)
    table = admit(manager, [1, 2, 3])
    assert manager.match_prefix(BlockTable(), [1, 2, 3]) == []
    manager.free(table)
    free = [b.block_id for b in manager.allocator]
    assert free == [2, 1, 3, 4, 5]  # unhashed: to the front, the last one first


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
