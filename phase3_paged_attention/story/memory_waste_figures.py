"""The figures of memory_waste.py."""

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from labkit.figures import BLUE, COLORS, GREY, MUTED, ORANGE, YELLOW, new_figure, plain_numbers
from phase3_paged_attention.paging import BlockManager, BlockTable
from phase3_paged_attention.story.memory_policies import ContiguousAllocator, Shares

ROW, CELLS = 2048, 32  # slots a contiguous request gets; blocks in a line of the picture


def physical_memory(lengths: Sequence[int], num_slots: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Who owns each slot, contiguous and paged: request + 1 where a token is, -(request + 1) where a slot is
    allocated and empty, 0 where it is free.

    Paged requests grow in turns, as they do on a server, and others were there before them. So their blocks
    lie scattered.
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
    """The same memory twice, slot by slot, each request in its colour: the first 26, which are those that fit."""
    num_slots = 4 * ROW
    contiguous, paged = physical_memory(lengths[:26], num_slots, seed)
    counts = [len(np.unique(np.abs(m[m != 0]))) for m in (contiguous, paged)]
    used = [100 * float((m > 0).mean()) for m in (contiguous, paged)]
    fig, axes = new_figure(
        f"The same memory: {counts[0]} users in rows, {counts[1]} in blocks",
        f"{num_slots:,} slots, one small cell is a block of 16; full colour: a token, pale: allocated and empty, white: free",
        panels=2,
        size=(12.5, 5.6),
    )
    colors = request_colors(len(lengths[:26]))
    memories = {"Contiguous": contiguous, "Paged": paged}
    for ax, (name, memory), count, share in zip(axes, memories.items(), counts, used):
        image = np.ones((len(memory), 3))
        owner = np.abs(memory) - 1
        image[memory > 0] = colors[owner[memory > 0]]
        image[memory < 0] = 1 - 0.22 * (1 - colors[owner[memory < 0]])
        lines = num_slots // 16 // CELLS
        image = image.reshape(lines, CELLS * 16, 3)
        ax.imshow(image, aspect="auto", interpolation="nearest", extent=(0, CELLS, lines, 0))
        ax.set_xticks(np.arange(CELLS + 1), minor=True)
        ax.set_yticks(np.arange(lines + 1), minor=True)
        ax.grid(which="minor", color="white", linewidth=1.1)
        ax.grid(which="major", visible=False)
        ax.set(xticks=[], yticks=[])
        ax.tick_params(which="both", length=0)
        ax.spines[["left", "bottom"]].set_visible(False)
        ax.set_axisbelow(False)
        title = f"{name}: {count} requests, {share:.0f}% of the slots hold a token"
        ax.set_title(title, loc="left", fontsize=11)
    return fig


def request_colors(n: int) -> np.ndarray:
    """n colours [n, 3] that differ well between neighbours: hues a golden angle apart, in three shades."""
    hues = (0.58 + np.arange(n) * 0.618034) % 1
    saturation = np.take([0.75, 0.55, 0.85], np.arange(n) % 3)
    value = np.take([0.72, 0.88, 0.6], np.arange(n) % 3)
    return matplotlib.colors.hsv_to_rgb(np.stack([hues, saturation, value], axis=1))


def draw_shares(shares: dict[str, Shares]) -> Figure:
    paged, longest = shares["paged"], shares["longest"]
    fig, (ax,) = new_figure(
        f"A row for the longest request: {100 * longest.used:.0f}% of the memory holds tokens. Blocks: {100 * paged.used:.0f}%",
        "Requests without end, many short and few long, at most 2,048 tokens; averages over a run",
        size=(9.2, 3.9),
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
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=4)
    return fig


def draw_block_sizes(found: dict[str, dict[int, tuple[float, float]]]) -> Figure:
    worst = max(by[16][0] for by in found.values())
    fig, (left, right) = new_figure(
        f"Up to 16 tokens a block, no traffic wastes more than {100 * worst:.1f}%",
        f"Counted with the block manager, for {len(found)} kinds of traffic",
        panels=2,
        size=(12, 4.8),
    )
    for color, (name, by) in zip(COLORS, found.items()):
        sizes = list(by)
        left.plot(sizes, [100 * by[s][0] for s in sizes], marker="o", color=color, label=name)
        right.plot(sizes, [by[s][1] / by[1][1] * 100 for s in sizes], marker="o", color=color, label=name)
    for ax in (left, right):
        ax.set_xscale("log", base=2)
        ax.set_xticks(sizes)
        ax.axvline(16, color=GREY, linestyle="--", linewidth=1.2)
        ax.set_xlabel("tokens a block")
        plain_numbers(ax, "x")
    top = left.get_ylim()[1]
    left.text(15, top * 0.97, "vLLM's default", ha="right", va="top", color=MUTED)
    left.set(ylabel="allocated and empty, %", ylim=(0, None))
    right.set(ylabel="requests at a time, % of those with blocks of 1", ylim=(0, 105))
    left.legend()
    return fig
