"""The figures of memory_waste.py."""

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from labkit.figures import BLUE, GREY, MUTED, ORANGE, TEAL, YELLOW, new_figure
from phase3_paged_attention.paging import BlockManager, BlockTable
from phase3_paged_attention.story.memory_policies import ContiguousAllocator, Shares

ROW, CELLS = 2048, 32  # slots a contiguous request gets; blocks in a line of the picture


def physical_memory(lengths: Sequence[int], num_slots: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The owner of each slot, contiguous and paged: request + 1 where a token is, -(request + 1) where a slot is
    allocated and empty, 0 where it is free.

    Paged requests grow in turns, as on a server, after other requests have finished. So their blocks are
    scattered.
    """
    rows, contiguous = ContiguousAllocator(num_slots), np.zeros(num_slots, int)
    for i, n in enumerate(lengths):
        start = rows.allocate(ROW)
        if start is None:
            break
        contiguous[start : start + ROW] = -(i + 1)
        contiguous[start : start + n] = i + 1

    rng = np.random.default_rng(seed)
    manager = BlockManager(num_slots // 16 + 1, 16, enable_prefix_caching=False)
    earlier = [BlockTable() for _ in range(num_slots // 16)]
    for table in earlier:
        manager.allocate(table, range(16), 16)
    for i in rng.permutation(len(earlier)):
        manager.free(earlier[i])
    tables, paged = [BlockTable() for _ in lengths], np.zeros(num_slots, int)
    growing = list(range(len(lengths)))
    while growing:
        for i in list(growing):
            n = min(int(lengths[i]), tables[i].num_tokens + 16)
            if not manager.allocate(tables[i], range(n), n):
                raise ValueError(f"{len(lengths)} requests do not fit {num_slots:,} slots")
            if n == lengths[i]:
                growing.remove(i)
    for i, table in enumerate(tables):
        for j, block in enumerate(table.block_ids):
            first = (block - 1) * 16
            paged[first : first + 16] = -(i + 1)
            paged[first : first + min(16, table.num_tokens - 16 * j)] = i + 1
    return contiguous, paged


def draw_memory(lengths: Sequence[int], seed: int = 0) -> Figure:
    """The same memory twice, slot by slot, for the 26 requests that fit in blocks. Three requests have a colour of their own."""
    num_slots = 4 * ROW
    contiguous, paged = physical_memory(lengths[:26], num_slots, seed)
    counts = [len(np.unique(np.abs(m[m != 0]))) for m in (contiguous, paged)]
    fig, axes = new_figure(
        f"The same memory holds {counts[0]} requests in rows and {counts[1]} in blocks",
        f"{num_slots:,} slots; each cell is 16 slots; requests of {min(lengths[:26])} to {max(lengths[:26])} tokens",
        panels=2,
        size=(7.2, 9),
    )
    kinds = {f"request {i + 1}": color for i, color in enumerate((BLUE, ORANGE, TEAL))}
    kinds |= {"the other requests": GREY, "allocated, empty": "#f3e6bd", "free": "#ffffff"}
    palette = np.array([matplotlib.colors.to_rgb(color) for color in kinds.values()])
    for ax, name, memory, count in zip(axes, ("Rows", "Blocks"), (contiguous, paged), counts):
        kind = np.where(memory > 0, np.minimum(memory - 1, 3), np.where(memory < 0, 4, 5))
        lines = num_slots // 16 // CELLS
        image = palette[kind].reshape(lines, CELLS * 16, 3)
        ax.imshow(image, aspect="auto", interpolation="nearest", extent=(0, CELLS, lines, 0))
        ax.set_xticks(np.arange(CELLS + 1), minor=True)
        ax.set_yticks(np.arange(lines + 1), minor=True)
        ax.grid(which="minor", color="#d5dbe0", linewidth=0.7)
        ax.grid(which="major", visible=False)
        ax.set(xticks=[], yticks=[])
        ax.tick_params(which="both", length=0)
        ax.set_axisbelow(False)
        used = 100 * float((memory > 0).mean())
        ax.set_title(f"{name}: {count} requests, {used:.0f}% of the slots hold a token", loc="left")
    handles = [Rectangle((0, 0), 1, 1, facecolor=color, edgecolor=MUTED) for color in kinds.values()]
    fig.legend(handles, kinds, loc="outside lower center", ncols=3, handlelength=1.1)
    return fig


def draw_shares(shares: dict[str, Shares]) -> Figure:
    paged, longest = shares["paged"], shares["longest"]
    fig, (ax,) = new_figure(
        f"A row for the longest request: {100 * longest.used:.0f}% of the memory holds tokens. Blocks: {100 * paged.used:.0f}%",
        "Simulated: many short requests and few long ones, at most 2,048 tokens; averages over a run",
        size=(7.2, 3.9),
    )
    names = list(shares)
    left = np.zeros(len(names))
    kinds = [("used", "tokens", BLUE), ("reserved", "reserved: used later", YELLOW),
             ("internal", "internal: never used", ORANGE), ("external", "external: gaps", GREY)]  # fmt: skip
    for key, label, color in kinds:
        width = np.array([100 * getattr(shares[n], key) for n in names])
        ax.barh(names, width, left=left, color=color, label=label, height=0.62)
        for y, (x, w) in enumerate(zip(left, width)):
            if w > 4:
                ax.text(x + w / 2, y, f"{w:.0f}", ha="center", va="center", color="white", fontweight="bold")
        left += width
    for y, name in enumerate(names):
        ax.text(101, y, f"{shares[name].running:.0f} requests", va="center", color=MUTED)
    ax.set(xlim=(0, 100), xlabel="share of the memory, %")
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    fig.legend(loc="outside lower center", ncols=2)
    return fig
