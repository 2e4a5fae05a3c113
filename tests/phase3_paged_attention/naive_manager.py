"""A naive block manager made of lists, and random requests whose memory shows every wrong pointer."""

import dataclasses
from functools import cache

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

    most_blocks = blocks_for

    def allocate(self, blocks, tokens, have, want, prefix=(), must_fit=0):
        """The new list of blocks, or None. `have`: tokens that are there; `want`: how many shall be."""
        needed = max(self.blocks_for(want), self.most_blocks(must_fit))
        if not self.fits(needed - len(blocks) - len(prefix), blocks, have, prefix):
            return None
        blocks = blocks + list(prefix)
        self.free_list = [b for b in self.free_list if b not in prefix]
        for block in prefix:
            self.readers[block] += 1
        self.before_writing(blocks, have)
        while len(blocks) < self.blocks_for(want):
            blocks.append(self.take())
        for i in range(blocks.count(0), want // self.size):
            self.names.setdefault(blocks[i], tuple(tokens[: (i + 1) * self.size]))
        return blocks

    def fits(self, num_new, blocks, have, prefix):
        return num_new <= len([b for b in self.free_list if b not in prefix])

    def before_writing(self, blocks, have):
        pass

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

    snapshot = staticmethod(snapshot)

    @initialize(num_blocks=st.integers(2, 14), size=st.integers(1, 4))
    def begin(self, num_blocks, size):
        self.start(BlockManager(num_blocks, size), Naive(num_blocks, size))

    def start(self, manager, naive):
        self.manager, self.naive, self.size = manager, naive, manager.block_size
        self.memory = [[None] * self.size for _ in range(manager.num_blocks)]
        self.users, self.away = [], []

    # What an extension overrides.

    def present(self):
        """Users whose blocks are here."""
        return self.users

    def before_growing(self, u):
        pass

    def refused(self, call, table):
        """Run a call that may be refused; if it was, nothing may have changed."""
        before = self.snapshot(self.manager, table)
        done = call()
        if not done:
            assert self.snapshot(self.manager, table) == before
        return done

    def pick(self, data):
        return data.draw(st.sampled_from(self.present()))

    def end_step(self):
        """What was computed is written; then every user reads their own past."""
        for u in self.present():
            for at in range(u.written, u.computed):
                block, offset = divmod(at, self.size)
                self.memory[u.table.block_ids[block]][offset] = tuple(u.tokens[: at + 1])
        self.read_back()
        for u in self.present():
            u.written = u.computed

    def read_back(self):
        for u in self.users:
            self.read(u, 0, u.table.block_ids, self.memory)

    def read(self, u, first, ids, memory):
        for at in range(first, u.computed):
            assert memory[ids[at // self.size]][at % self.size] == tuple(u.tokens[: at + 1])

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
        blocks = self.naive.allocate([], u.tokens, 0, want, found, must_fit)
        assert done == (blocks is not None)
        if done:
            u.blocks, u.computed, u.written = blocks, want, hit
            self.users.append(u)
        return done

    @rule(tokens=tokens_of, part=st.floats(0, 1), all_must_fit=st.booleans())
    def admit(self, tokens, part, all_must_fit):
        self.enter(User(tokens, BlockTable(), []), part, all_must_fit)

    @precondition(lambda self: self.present())
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 1), min_size=1, max_size=5))
    def go_on(self, data, tokens):
        u = self.pick(data)
        self.before_growing(u)
        longer = u.tokens if u.computed < len(u.tokens) else u.tokens + tokens
        want = data.draw(st.integers(u.computed + 1, len(longer)))
        done = self.refused(lambda: self.manager.allocate(u.table, longer, want), u.table)
        blocks = self.naive.allocate(u.blocks, longer, u.computed, want)
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
        held = any(any(u.blocks) for u in self.users)
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


def admit(manager, tokens, want=None, must_fit=0):
    """A table with these tokens, as many as can be found taken from the prefix cache."""
    table = BlockTable()
    prefix = manager.match_prefix(table, tokens)
    assert manager.allocate(table, tokens, want or len(tokens), prefix, must_fit)
    return table
