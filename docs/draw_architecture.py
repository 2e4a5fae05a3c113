"""Draw the pictures that show how things hang together: a block of the model, the whole engine with its files, the states
of a request, the way of a decode step through the memory of an H100.

    python docs/draw_architecture.py

Numbers in them are worked out from the shapes and cards of phase 1. The files that they name are in the course.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from labkit.figures import BLUE, GREEN, GREY, INK, MUTED, ORANGE, PURPLE, RED, TEAL, plt
from phase1_tokens_embeddings.weights import CARDS, SHAPES
from phase2_attention_kvcache.model import GPT2_124M
from phase5_real_gpu.measuring.memory_step import step_bytes

FOLDER = Path(__file__).parent
Point = tuple[float, float]


def canvas(width: float, height: float, title: str, subtitle: str = "") -> tuple[Figure, Axes]:
    """A white page, 1 unit = 1 inch, y upwards, with a title."""
    fig = plt.figure(figsize=(width, height))
    ax = fig.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, width), ylim=(0, height))
    ax.axis("off")
    ax.text(0.2, height - 0.32, title, fontsize=14, fontweight="bold", va="center")
    ax.text(0.2, height - 0.62, subtitle, fontsize=9.5, color=MUTED, va="center")
    return fig, ax


def box(ax: Axes, left: float, bottom: float, width: float, height: float, colour: str, text: str = "",
        below: str = "", fill: float = 0.14) -> None:  # fmt: skip
    """A box with round corners; `text` in its middle, `below` under it in small letters."""
    look = dict(boxstyle="round,pad=0,rounding_size=0.08", edgecolor=colour, linewidth=1.2)
    ax.add_patch(FancyBboxPatch((left, bottom), width, height, facecolor=(colour, fill), **look))
    x, y = left + width / 2, bottom + height / 2
    lift = 0.045 + 0.085 * (below.count("\n") + 1) if below else 0
    if text:
        ax.text(x, y + lift, text, ha="center", va="center", fontsize=10, fontweight="bold")
    if below:
        down = 0.1 if text else 0
        ax.text(x, y - down, below, ha="center", va="center", fontsize=8.3, color=INK, linespacing=1.35)


def arrow(
    ax: Axes, start: Point, end: Point, colour: str = INK, bend: float = 0.0, style: str = "-|>"
) -> None:
    look = dict(arrowstyle=style, mutation_scale=13, color=colour, linewidth=1.5, shrinkA=0, shrinkB=0)
    ax.add_patch(FancyArrowPatch(start, end, connectionstyle=f"arc3,rad={bend}", **look))


def note(
    ax: Axes, x: float, y: float, text: str, colour: str = MUTED, size: float = 8.6, where: str = "left"
) -> None:
    ax.text(x, y, text, fontsize=size, color=colour, ha=where, va="center", linespacing=1.4)


# ---------------------------------------------------------------------- a block


def draw_block() -> Figure:
    """One block of GPT-2, with the shapes and how many parameters each part has."""
    d, wide, heads = GPT2_124M.d_model, GPT2_124M.d_ff, GPT2_124M.num_heads
    attention, mlp = 4 * d * d, 2 * d * wide
    share = mlp / (attention + mlp)
    title = "A block: take something from other tokens, then think alone"
    fig, ax = canvas(
        11.4,
        5.0,
        title,
        f"GPT-2 small: {d} numbers a token, {GPT2_124M.num_layers} such blocks on top of each other",
    )
    y = 1.15
    ax.plot([0.4, 11.0], [y, y], color=BLUE, linewidth=7, alpha=0.35, solid_capstyle="butt")
    arrow(ax, (11.0, y), (11.25, y), BLUE)
    note(ax, 0.4, y - 0.33, f"x: [N, {d}], the stream\n(residual): flows past, is only added to", BLUE)
    for x, colour in ((5.5, ORANGE), (10.6, PURPLE)):
        ax.add_patch(plt.Circle((x, y), 0.16, facecolor="white", edgecolor=colour, linewidth=1.6, zorder=4))
        ax.text(x, y, "+", ha="center", va="center", fontsize=13, color=colour, zorder=5)

    def branch(left: float, parts: Sequence[tuple[float, str, str]], colour: str, back: float) -> None:
        arrow(ax, (left - 0.3, y), (left - 0.3, 2.55), colour, style="-")
        arrow(ax, (left - 0.3, 2.55), (left, 2.55), colour)
        x = left
        for number, (width, text, below) in enumerate(parts):
            box(ax, x, 2.1, width, 0.9, colour, text, below)
            if number < len(parts) - 1:
                arrow(ax, (x + width, 2.55), (x + width + 0.18, 2.55), colour)
            x += width + 0.18
        arrow(ax, (x - 0.18, 2.55), (back, 2.55), colour, style="-")
        arrow(ax, (back, 2.55), (back, y + 0.16), colour)

    branch(0.95, [(0.72, "norm", "one size"), (1.05, "q, k, v", f"{d} to 3 x {d}"),
                  (1.25, "attend", f"{heads} heads of {d // heads}"), (0.8, "out", f"{d} to {d}")], ORANGE, 5.5)  # fmt: skip
    branch(6.2, [(0.72, "norm", "one size"), (1.05, "up", f"{d} to {wide:,}"),
                 (0.85, "bend", "GELU"), (1.05, "down", f"{wide:,} to {d}")], PURPLE, 10.6)  # fmt: skip
    ax.text(0.95, 3.75, "Attention", fontsize=12, fontweight="bold", color=ORANGE)
    note(ax, 0.95, 3.42, f"the only place where tokens meet; {attention / 1e6:.1f} million parameters")
    ax.text(6.2, 3.75, "MLP", fontsize=12, fontweight="bold", color=PURPLE)
    note(
        ax, 6.2, 3.42, f"each token by itself; {mlp / 1e6:.1f} million parameters, {share:.0%} of the block's"
    )
    arrow(ax, (3.55, 2.1), (3.55, 1.62), GREEN, style="<|-|>")
    box(ax, 2.85, 1.32, 1.4, 0.3, GREEN, "", "KV cache: kv.attend", 0.22)
    note(
        ax,
        0.4,
        0.3,
        "In code: Block, Attention and GeluMLP in phase2_attention_kvcache/model/transformer.py, 40 lines together",
    )
    return fig


# ---------------------------------------------------------------------- the engine

FILES = {
    "server": "phase4_scheduler/server/app.py",
    "tokenizer": "phase1_tokens_embeddings/tokens/tokenizer.py",
    "out": "phase4_scheduler/engine/output_processor.py",
    "async": "phase4_scheduler/server/async_engine.py",
    "core": "phase4_scheduler/engine/core.py",
    "scheduler": "phase4_scheduler/engine/scheduler.py",
    "blocks": "phase3_paged_attention/paging/block_manager.py",
    "runner": "phase4_scheduler/engine/model_runner.py",
    "model": "phase2_attention_kvcache/model/transformer.py",
    "sampler": "phase2_attention_kvcache/model/sampling.py",
    "paged": "phase3_paged_attention/paging/paged_kv_cache.py",
    "triton": "phase5_real_gpu/kernels/triton_kv_cache.py",
    "storage": "phase3_paged_attention/paging/kv_storage.py",
}
"""What the boxes of the architecture are called after. A test looks whether they are there."""
OF_PHASE = {1: BLUE, 2: ORANGE, 3: GREEN, 4: PURPLE, 5: RED}


def draw_architecture() -> Figure:
    """The whole engine: processes, files, and what goes between them."""
    fig, ax = canvas(12.4, 6.7, "The whole architecture, and where each part is in this course",
                     "a request from left to right, its answer back; colours are phases")  # fmt: skip
    for phase, colour in OF_PHASE.items():
        box(ax, 6.95 + 1.05 * (phase - 1), 6.22, 0.97, 0.27, colour, "", f"Phase {phase}", 0.3)
    for left, width, text in (
        (0.2, 3.3, "API process"),
        (3.95, 8.25, "engine process: one loop, one step after the other"),
    ):
        box(ax, left, 0.35, width, 5.4, GREY, fill=0.06)
        note(ax, left + 0.12, 5.57, text, INK, 10)
    box(ax, 9.0, 0.5, 3.05, 4.1, RED, fill=0.04)
    note(ax, 9.12, 4.42, "on the GPU, where there is one", RED, 9)

    def part(
        left: float, bottom: float, width: float, text: str, key: str, does: str, height: float = 0.92
    ) -> None:
        path = FILES[key]
        colour = OF_PHASE[int(path[5])]
        box(
            ax,
            left,
            bottom,
            width,
            height,
            colour,
            text,
            f"{does}\n{'/'.join(path.split('/')[-2 if width > 1.5 else -1 :])}",
        )

    part(0.4, 4.3, 2.9, "HTTP", "server", "OpenAI's protocol, streams")
    part(0.4, 3.0, 2.9, "Tokenizer", "tokenizer", "text to token ids")
    part(0.4, 1.75, 2.9, "Output", "out", "ids to text, stop strings")
    part(0.4, 0.5, 2.9, "AsyncEngine", "async", "a queue for each user")
    part(4.15, 4.3, 4.3, "EngineCore.step", "core", "schedule, execute, sample, update, hand out")
    part(4.15, 3.0, 2.05, "Scheduler", "scheduler", "how many tokens of whom")
    part(6.4, 3.0, 2.05, "BlockManager", "blocks", "in which blocks")
    part(4.15, 1.75, 4.3, "ModelRunner", "runner", "requests become flat tensors: ids, positions, slots")
    part(4.15, 0.5, 4.3, "Sampler", "sampler", "scores to one token a request")
    part(9.15, 3.2, 2.75, "Transformer", "model", "blocks of attention and MLP")
    part(9.15, 1.95, 1.3, "kv.attend", "paged", "on a CPU")
    part(10.6, 1.95, 1.3, "kv.attend", "triton", "on a GPU")
    part(9.15, 0.7, 2.75, "KVStorage", "storage", "keys and values, block by block")

    arrow(ax, (1.85, 4.3), (1.85, 3.92))
    arrow(ax, (3.3, 3.46), (4.15, 4.6))
    note(ax, 3.72, 4.98, "token\nids", MUTED, 8, "center")
    arrow(ax, (5.2, 4.3), (5.2, 3.92))
    arrow(ax, (6.2, 3.46), (6.4, 3.46), style="<|-|>")
    arrow(ax, (5.2, 3.0), (5.2, 2.67))
    arrow(ax, (8.45, 2.3), (9.15, 3.45))
    arrow(ax, (9.8, 3.2), (9.8, 2.87))
    arrow(ax, (11.25, 3.2), (11.25, 2.87))
    arrow(ax, (9.8, 1.95), (9.8, 1.62), style="<|-|>")
    arrow(ax, (11.25, 1.95), (11.25, 1.62), style="<|-|>")
    arrow(ax, (9.15, 3.3), (8.45, 1.1), bend=0.12)
    note(ax, 8.72, 1.72, "logits", MUTED, 8, "center")
    arrow(ax, (4.15, 0.96), (3.3, 0.96))
    note(ax, 3.72, 1.2, "new ids", MUTED, 8, "center")
    arrow(ax, (1.85, 1.42), (1.85, 1.75))
    ax.plot([0.4, 0.3, 0.3], [2.2, 2.2, 4.76], color=INK, linewidth=1.5)
    arrow(ax, (0.3, 4.76), (0.4, 4.76))
    note(ax, 0.4, 2.83, "text", MUTED, 8)
    return fig


# ---------------------------------------------------------------------- a request's states


def draw_states() -> Figure:
    """The states of `RequestStatus`, and what leads from one to the next."""
    fig, ax = canvas(
        10.6, 4.5, "The states of a request", "RequestStatus in phase4_scheduler/engine/request.py"
    )
    box(ax, 1.2, 2.35, 2.1, 0.95, BLUE, "WAITING", "in the queue\nholds no block")
    box(ax, 4.75, 2.35, 2.1, 0.95, GREEN, "RUNNING", "takes part in steps\nholds its blocks")
    box(ax, 8.3, 2.35, 2.1, 0.95, GREY, "FINISHED", "blocks free again\nfinish_reason says why")
    box(ax, 4.75, 0.45, 2.1, 0.95, RED, "PREEMPTED", "at the head of the queue\nholds no block")
    arrow(ax, (0.25, 2.83), (1.2, 2.83))
    note(ax, 0.7, 3.03, "arrives", where="center")
    arrow(ax, (3.3, 2.83), (4.75, 2.83))
    note(ax, 4.02, 3.06, "admitted:", where="center")
    note(ax, 4.02, 2.4, "blocks, budget,\nmax_num_seqs\nallow it", where="center")
    arrow(ax, (6.85, 2.83), (8.3, 2.83))
    note(ax, 7.57, 3.06, "stop, length", where="center")
    note(ax, 7.57, 2.58, "abort, error", where="center")
    arrow(ax, (5.45, 2.35), (5.45, 1.4), RED)
    note(ax, 5.35, 1.88, "no block is left, and it\nwas the last one to come", RED, where="right")
    arrow(ax, (6.15, 1.4), (6.15, 2.35), GREEN)
    note(
        ax,
        6.27,
        1.88,
        "there is room again: all its tokens\nare computed anew, prompt and answer,\nbut for those found in the prefix cache",
        GREEN,
    )
    arrow(ax, (5.3, 3.3), (6.3, 3.3), GREEN, bend=-0.9)
    note(ax, 5.8, 3.95, "every step: catches up, writes a token", GREEN, where="center")
    return fig


# ---------------------------------------------------------------------- memory levels of an H100

# Size of each level of an H100 SXM; the first three: NVIDIA, Hopper tuning guide (docs.nvidia.com/cuda), section 1.4.
REGISTER_KIB, SHARED_KIB, L2_MB = 256, 228, 50
PCIE_GB_S = 64  # PCIe 5.0 with 16 lanes, one way
USERS, CONTEXT, MODEL = 32, 4096, "llama-3-8b"


def decode_facts() -> dict[str, float]:
    """What one decode step moves, from the shape of the model and the card's data sheet."""
    card, moved = CARDS["h100"], step_bytes(SHAPES[MODEL], USERS, CONTEXT)
    return dict(
        weights=moved.weights / 1e9,
        kv=moved.kv / 1e9,
        between=moved.activations / 1e6,
        tables=USERS * CONTEXT / 16 * 4 / 1e3,
        ms=1000 * moved.seconds(card.bandwidth_gb_s),
        pcie_ms=moved.from_memory / PCIE_GB_S / 1e6,
        registers=card.multiprocessors * REGISTER_KIB / 1024,
        shared=card.multiprocessors * SHARED_KIB / 1024,
    )


def draw_levels() -> Figure:
    """Which bytes of a decode step come from which level of an H100's memory."""
    f, card = decode_facts(), CARDS["h100"]
    fig, ax = canvas(11.6, 6.0, f"A decode step waits for one level of memory: {f['weights'] + f['kv']:.0f} GB out of HBM, {f['ms']:.1f} ms",
                     f"computed, not measured: {MODEL}, 16 bit, {USERS} users with {CONTEXT:,} tokens each, on an H100; sizes and speeds from NVIDIA's documents")  # fmt: skip
    multi = f"{card.multiprocessors} x"
    rows: list[tuple[str, str, str, str]] = [
        ("registers", f"{multi} {REGISTER_KIB} KiB = {f['registers']:.0f} MiB", PURPLE,
         "the numbers being multiplied; running maximum, sum and mixture of the online softmax"),
        ("shared memory, L1", f"{multi} {SHARED_KIB} KiB = {f['shared']:.0f} MiB", BLUE,
         "the tiles of weights and keys that are used now, and the next ones, on their way"),
        ("L2 cache", f"{L2_MB} MB, for all", TEAL,
         f"vectors between the operations ({f['between']:.0f} MB in all, a little at a time), block tables ({f['tables']:.0f} kB)"),
        ("HBM", f"80 GB, {card.bandwidth_gb_s / 1000:.2f} TB/s", RED,
         f"weights: {f['weights']:.1f} GB, read once for all {USERS} users\nkeys and values: {f['kv']:.1f} GB, each read once, for its own user"),
        ("the computer's memory", f"over PCIe 5.0, {PCIE_GB_S} GB/s", GREY,
         f"token ids and block tables come from here: kilobytes. Swapped blocks lie here.\nReading all {f['weights'] + f['kv']:.0f} GB over this road would take {f['pcie_ms']:.0f} ms"),
    ]  # fmt: skip
    for number, (name, size, colour, holds) in enumerate(rows):
        width, y = 2.5 + 0.32 * number, 4.35 - 0.98 * number
        box(ax, 2.05 - width / 2 + 0.1, y, width, 0.76, colour, name, size, 0.3 if colour == RED else 0.12)
        note(ax, 4.75, y + 0.38, holds, INK, 9.3)
        if number:
            thick = 4 if colour == RED else 1.5
            look = dict(arrowstyle="-|>", mutation_scale=9 + 2 * thick, linewidth=thick, color=colour)
            ax.add_patch(FancyArrowPatch((2.15, y + 0.76), (2.15, y + 0.99), shrinkA=0, shrinkB=0, **look))
    return fig


DRAWINGS: dict[str, Callable[[], Figure]] = {
    "block": draw_block,
    "architecture": draw_architecture,
    "request_states": draw_states,
    "h100_decode": draw_levels,
}


def main() -> None:
    for name, draw in DRAWINGS.items():
        fig = draw()
        fig.savefig(FOLDER / f"{name}.png")
        plt.close(fig)
        print(FOLDER / f"{name}.png")


if __name__ == "__main__":
    main()
