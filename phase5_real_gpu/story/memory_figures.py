"""The figures of memory_hierarchy.py."""

from collections.abc import Sequence

from labkit.figures import BLUE, GREY, INK, MUTED, ORANGE, TEAL, new_figure, plain_numbers
from phase5_real_gpu.measuring.measurements import Limits
from phase5_real_gpu.measuring.memory_cpu import GB, KIB, MIB, Point
from phase5_real_gpu.measuring.memory_step import StepBytes

TITLES = {"gpt2": "GPT-2", "llama-3-8b": "Llama-3 8B"}


def show_size(size: int) -> str:
    for unit, bytes_of_it in (("GiB", 1024 * MIB), ("MiB", MIB), ("KiB", 1)):
        if size >= bytes_of_it:
            return f"{size / max(bytes_of_it, KIB):.3g} {unit}"
    return "-"


def draw_curve(
    points: Sequence[Point],
    caches: dict[str, int],
    levels: dict[str, Point],
    limits: Limits,
    who: str,
    memory: str,
):
    near, far = max(p.gb_s for p in points), points[-1].gb_s
    if {"L1", "DRAM"} <= set(levels):
        near, far = levels["L1"].gb_s, levels["DRAM"].gb_s
    fig, axes = new_figure(
        f"What fits in the nearest cache is read {near / far:.0f} times as fast",
        f"{limits.device_name}, {who}; a working set read again and again",
        panels=2,
    )
    sizes = [p.size for p in points]
    panels = (
        ("GB/s, read in order", [p.gb_s for p in points], BLUE, "linear"),
        ("nanoseconds per random read", [p.jump_ns for p in points], ORANGE, "log"),
    )
    for ax, (label, values, colour, scale) in zip(axes, panels):
        ax.plot(sizes, values, marker="o", color=colour)
        ax.set(xscale="log", yscale=scale, xlabel="working set", ylabel=label)
        ticks = [4**i * KIB for i in range(1, 20) if sizes[0] <= 4**i * KIB <= sizes[-1]]
        ax.set_xticks(ticks[::2], [show_size(t) for t in ticks[::2]])
        ax.tick_params(which="minor", axis="x", length=0)
        plain_numbers(ax, "y")
        low, high = (0, max(values)) if scale == "linear" else (min(values) / 1.6, max(values) * 1.3)
        ax.set_ylim(low, high * 1.25)
        left = sizes[0] / 1.3
        ax.set_xlim(left, sizes[-1] * 1.5)
        for name, end in [*caches.items(), (memory, sizes[-1] * 1.5)]:
            if end > left:
                if name != memory:
                    ax.axvline(end, color=GREY, linestyle=":", linewidth=1.2)
                middle = (left * min(end, sizes[-1] * 1.5)) ** 0.5
                ax.text(middle, high * 1.2, name, ha="center", va="top", color=MUTED, fontsize=9)
            left = max(left, end)
    return fig


def draw_steps(steps: Sequence[tuple], machines: Sequence[tuple[str, float]]):
    """What a step's time goes to, for each model and number of users; the time on each machine beside it."""
    last: StepBytes = steps[-1][3]
    most_users = max(users for _, users, _, _ in steps)
    fig, (ax,) = new_figure(
        f"A step for one request reads mostly weights, a step for {most_users} mostly keys and values",
        "Bytes that one decode step fetches from memory, 16-bit numbers, and the shortest time that takes",
        size=(7.2, 6),
    )
    names = []
    for row, (shape, users, context, step) in enumerate(steps):
        left = 0.0
        for part, colour in ((step.weights, BLUE), (step.kv, ORANGE), (step.activations, TEAL)):
            share = part / (step.from_memory + step.activations)
            ax.barh(row, share, 0.5, left=left, color=colour)
            if share > 0.08:
                text = f"{part / GB:.1f} GB" if part >= GB else f"{part / 1e6:,.0f} MB"
                style = dict(ha="center", va="center", color="white", fontweight="bold")
                ax.text(left + share / 2, row, text, **style)
            left += share
        lines = []
        for machine, gb_s in machines:
            ms = 1000 * step.seconds(gb_s)
            where = machine if machine.startswith("this") else f"an {machine.split()[0]}"
            lines.append(f"{ms:,.0f} ms on {where}" if ms >= 10 else f"{ms:.2g} ms on {where}")
        ax.text(0.01, row + 0.3, ", ".join(lines), va="top", fontsize=10, color=INK)
        names.append(f"{TITLES[shape.name]}\n{users} x {context:,} tokens")
    ax.set_yticks(range(len(names)), names)
    ax.set(xlim=(0, 1.02), xlabel="share of the step's bytes")
    ax.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"])
    ax.set_ylim(len(steps) - 0.35, -0.4)
    ax.grid(visible=False)
    activations = f"activations (at most {last.activations / 1e6:,.0f} MB; they can stay in a cache)"
    for label, colour in (("weights", BLUE), ("keys and values", ORANGE), (activations, TEAL)):
        ax.barh(0, 0, color=colour, label=label)
    fig.legend(loc="outside lower center")
    return fig
