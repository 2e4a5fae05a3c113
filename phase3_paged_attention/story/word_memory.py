"""A cache that can be read: words in place of keys and values, and drawings of tables and blocks.

The block manager never sees a tensor. Here its blocks hold words, so that one can look through a table and
read what is there. The decisions are those of the real manager, with the features of this phase.
"""

from collections import Counter
from dataclasses import dataclass, field

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from labkit.figures import BLUE, GREEN, INK, MUTED, ORANGE, PURPLE, RED, TEAL, YELLOW, new_figure
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


@dataclass
class Moment:
    """The memory at one time, for the figure: for each place the requests that hold it, how full it is, and its state."""

    what: str
    owners: list[list[str]]  # one list of names for each block, then for each swap slot
    fill: list[float]  # share of the block that holds something, 0 to 1
    remembered: list[bool]  # free, but it can still be found in the prefix cache


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
        self.moments: list[Moment] = []
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

    def keep_moment(self, what: str) -> None:
        """Remember how the memory looks now."""
        manager = self.manager
        places = manager.num_blocks + manager.num_swap_blocks
        owners: list[list[str]] = [[] for _ in range(places)]
        fill = [0.0] * places
        for reader in self.readers:
            table, size = reader.table, manager.block_size
            held = table.block_ids or [manager.num_blocks + slot for slot in manager.swapped.get(table, ())]
            for i, place in enumerate(held):
                owners[place].append(reader.name)
                fill[place] = min(1.0, (table.num_tokens - i * size) / size)
        remembered = [b.block_hash is not None and b.ref_count == 0 for b in manager.allocator.blocks]
        self.moments.append(Moment(what, owners, fill, remembered + [False] * manager.num_swap_blocks))


OWNER_COLORS = dict(
    zip(("alice", "bob", "carol", "dave", "carol 2", "carol 3", "frank"),
        (BLUE, ORANGE, GREEN, PURPLE, TEAL, YELLOW, RED))
)  # fmt: skip
REMEMBERED = dict(facecolor="#eef1f3", edgecolor="#b4bdc5", hatch="////")


def draw_moments(memory: WordMemory) -> Figure:
    """One row per moment, one cell per block, one colour per request. A shared block shows all its requests."""
    num_blocks, num_slots = memory.manager.num_blocks, memory.manager.num_swap_blocks
    fig, (ax,) = new_figure(
        "Freed blocks serve other requests; a shared block is stored once",
        f"{num_blocks - 1} blocks of {memory.manager.block_size} words, moment by moment; a part of a cell is empty "
        "where the block is not full",
        size=(11.5, 0.52 * len(memory.moments) + 1.9),
    )
    for row, moment in enumerate(memory.moments):
        for place in range(1, num_blocks + num_slots):
            # Block 0 is never given out, so block 1 stands at the left. Swap slots stand apart.
            x = place - 1 if place < num_blocks else place + 0.4
            cell = dict(xy=(x, row), width=0.92, height=0.8, linewidth=0.8)
            ax.add_patch(Rectangle(**cell, facecolor="white", edgecolor="#c9d0d6"))
            names = moment.owners[place]
            for k, name in enumerate(names):
                height, color = 0.8 / len(names), OWNER_COLORS[name]
                corner = (x, row + k * height)
                ax.add_patch(Rectangle(corner, 0.92 * moment.fill[place], height, facecolor=color))
            if moment.remembered[place]:
                ax.add_patch(Rectangle(**cell, **REMEMBERED))
    right = num_blocks + num_slots + 0.4
    ax.set(xlim=(-0.2, right), ylim=(len(memory.moments), -0.9))
    ax.set_yticks([r + 0.4 for r in range(len(memory.moments))], [m.what for m in memory.moments])
    ax.set_xticks([i + 0.46 for i in range(num_blocks - 1)], [str(i + 1) for i in range(num_blocks - 1)])
    ax.set_xlabel("physical block")
    ax.text(num_blocks + 0.4 + num_slots / 2, -0.2, "main memory (swap)", ha="center", color=MUTED)
    ax.grid(False)
    ax.tick_params(length=0)
    ax.spines[["left", "bottom"]].set_visible(False)
    handles = [Rectangle((0, 0), 1, 1, facecolor=c) for c in OWNER_COLORS.values()]
    handles.append(Rectangle((0, 0), 1, 1, **REMEMBERED))
    labels = [*OWNER_COLORS, "free, still in the prefix cache"]
    ax.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.45, -0.13), ncols=8, labelcolor=INK,
              handlelength=1.1, columnspacing=1.2)  # fmt: skip
    return fig
