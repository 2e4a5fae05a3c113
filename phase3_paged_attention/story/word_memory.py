"""A cache that can be read: words in place of keys and values, and tables that show them.

The block manager never sees a tensor. Here its blocks hold words, so that one can look through a table and
read what is there. The decisions are those of the real manager, with the features of this phase.
"""

from collections import Counter
from dataclasses import dataclass, field

from phase3_paged_attention.paging import BlockTable
from phase3_paged_attention.sharing import ForkingBlockManager, RecordingBlockManager, SwappingBlockManager

NOTHING = "·"


@dataclass
class Reader:
    """A request: its name, its words so far, and its block table."""

    name: str
    words: list[str]
    table: BlockTable = field(default_factory=BlockTable)
    written: int = 0  # words that are in memory


class WordBlockManager(RecordingBlockManager, ForkingBlockManager, SwappingBlockManager):
    """The block manager with its features put together: it counts, forks and swaps."""


class WordMemory:
    """Blocks of words, and the requests that use them.

    Attributes:
        num_copied: blocks copied so far, by kind: "copy", "out" (to the swap space), "in" (back).

    >>> memory = WordMemory(num_blocks=5, block_size=4)
    >>> alice = memory.admit("alice", "Once upon a time there")
    >>> memory.read(alice)
    'Once upon a time there'
    """

    def __init__(self, num_blocks: int, block_size: int, num_swap_blocks: int = 0) -> None:
        self.manager = manager = WordBlockManager(num_blocks, block_size, num_swap_blocks=num_swap_blocks)
        self.num_copied: Counter[str] = Counter()
        self.blocks = [[NOTHING] * manager.block_size for _ in range(manager.num_blocks)]
        self.swap = [[NOTHING] * manager.block_size for _ in range(manager.num_swap_blocks)]
        self.readers: list[Reader] = []
        self._ids: dict[str, int] = {}

    # ------------------------------------------------------------------ what requests do

    def admit(self, name: str, text: str) -> Reader | None:
        """A new request. None if there is no room: then nothing has changed."""
        reader = Reader(name, text.split())
        ids = self.ids(reader.words)
        prefix = self.manager.match_prefix(reader.table, ids)
        if not self.manager.allocate(reader.table, ids, len(ids), prefix):
            return None
        reader.written = len(prefix) * self.manager.block_size  # the cache has these already
        self.readers.append(reader)
        self._write(reader)
        return reader

    def say(self, reader: Reader, text: str) -> None:
        """A request generates these words, one per step."""
        for word in text.split():
            reader.words.append(word)
            if not self.manager.allocate(reader.table, self.ids(reader.words), len(reader.words)):
                raise MemoryError(f"no block is left for {reader.name}")
            self._write(reader)

    def fork(self, reader: Reader, name: str) -> Reader:
        twin = Reader(name, list(reader.words), self.manager.fork(reader.table), reader.written)
        self.readers.append(twin)
        return twin

    def finish(self, reader: Reader) -> None:
        self.manager.free(reader.table)
        self.readers.remove(reader)

    def ids(self, words: list[str]) -> list[int]:
        """Words as token ids, in the order in which they first appear."""
        return [self._ids.setdefault(word, len(self._ids)) for word in words]

    def _write(self, reader: Reader) -> None:
        """A step of the engine: first the copies that the manager asks for, then what was computed."""
        for kind, source, target in self.manager.take_copies():
            source_memory = self.swap if kind == "in" else self.blocks
            target_memory = self.swap if kind == "out" else self.blocks
            target_memory[target] = list(source_memory[source])
            self.num_copied[kind] += 1
        for at in range(reader.written, len(reader.words)):
            block, offset = divmod(at, self.manager.block_size)
            self.blocks[reader.table.block_ids[block]][offset] = reader.words[at]
        reader.written = len(reader.words)

    # ------------------------------------------------------------------ looking at it

    def read(self, reader: Reader) -> str:
        """The text of a request, read from memory through its table."""
        words = [word for block in reader.table.block_ids for word in self.blocks[block]]
        return " ".join(words[: reader.table.num_tokens])

    def draw_table(self, reader: Reader) -> str:
        """One line per block: logical block -> physical block, and what is in it."""
        lines, size = [], self.manager.block_size
        for i, block in enumerate(reader.table.blocks):
            left = f"{reader.name}'s block {i}".ljust(18) + f"-> physical block {block.block_id:<3}"
            words = self.blocks[block.block_id][: reader.table.num_tokens - i * size]
            words += [NOTHING] * (size - len(words))
            lines.append(f"{left} | {' '.join(f'{w:<9}' for w in words)}|  ref_count {block.ref_count}")
        return "\n".join(lines)

    def draw_free_list(self) -> str:
        """The free blocks from front to back. A block in brackets is still in the prefix cache."""
        return " ".join(
            f"[{block.block_id}]" if block.block_hash else f" {block.block_id} "
            for block in self.manager.allocator
        )
