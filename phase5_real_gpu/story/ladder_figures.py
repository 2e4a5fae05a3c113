"""The figure of the ladder: what each rung asks for."""

from labkit.figures import BLUE, GREY, ORANGE, TEAL, new_figure
from phase5_real_gpu.kernels.decode import tile_tokens
from phase5_real_gpu.kernels.split_rule import choose_splits
from phase5_real_gpu.ladder.ladder_rungs import FULL_BATCH, LADDER, ONE_LONG

H100_PROGRAMS = 3 * 132  # its multiprocessors
"""Resident programs of the compiled decode kernel, head size 128 (`compile_report.py`: 3 fit on a multiprocessor)."""


def draw_work():
    """Without a GPU: what each rung changes about the way it asks for bytes."""
    fig, (left, middle, right) = new_figure(
        "Rung 2 requests fewer bytes, rung 3 more at once, rung 4 also while it computes, rung 6 starts more programs",
        "Counted from the code, not timed: Llama-3 8B's heads, blocks of 16 tokens, bfloat16, an H100",
        panels=3,
        size=(7.2, 9.6),
    )
    names = [f"{i} {rung.name}" for i, rung in enumerate(LADDER, 1)]
    places = range(len(names))
    work = [rung.work(FULL_BATCH) for rung in LADDER]
    asked = [w.kv_bytes / FULL_BATCH.kv_bytes for w in work]
    left.barh(places, asked, 0.6, color=BLUE)
    left.axvline(1, color=GREY, linestyle="--", linewidth=1.2)
    left.set(title="Bytes requested / needed", xlabel="64 requests of 4,096 tokens", xlim=(0, 4.6))

    # Bytes of keys and values of a tile. From rung 4 on a tile is in flight while another one is multiplied.
    tiles = [FULL_BATCH.block_size] * 2 + [tile_tokens(FULL_BATCH.head_dim, FULL_BATCH.itemsize)] * 5
    in_flight = [2 * tile * FULL_BATCH.head_dim * FULL_BATCH.itemsize / 1024 for tile in tiles]
    middle.barh(places[:3], in_flight[:3], 0.6, color=ORANGE, alpha=0.4, label="only between multiplications")
    middle.barh(places[3:], in_flight[3:], 0.6, color=ORANGE, label="during multiplications, too")
    middle.set(title="Keys and values in flight", xlabel="KiB per program", xlim=(0, 44))
    middle.legend(loc="upper right", fontsize=9.5)

    programs = [rung.work(ONE_LONG).programs for rung in LADDER]
    tile = tile_tokens(ONE_LONG.head_dim, ONE_LONG.itemsize)  # rung 7 asks the rule how many splits
    programs[-1] *= choose_splits(
        ONE_LONG.context_lens, ONE_LONG.num_kv_heads, H100_PROGRAMS, tile
    ).num_splits
    right.barh(places, programs, 0.6, color=TEAL)
    right.axvline(H100_PROGRAMS, color=GREY, linestyle="--", linewidth=1.2)
    right.set(
        title="Programs", xlabel=f"1 request of 32,768 tokens; {H100_PROGRAMS} are resident", xlim=(0, 460)
    )

    for ax, values, line in ((left, asked, 1), (middle, in_flight, None), (right, programs, H100_PROGRAMS)):
        whole = ax.get_xlim()[1]
        for place, value in zip(places, values):
            # Beside the bar, or beyond the dashed line where the line would run through the figure.
            end = line if line is not None and value <= line < value + 0.15 * whole else value
            ax.text(end + 0.02 * whole, place, f"{value:.0f}", va="center", fontsize=10.5)
        ax.set_yticks(list(places), names)
        ax.invert_yaxis()
        ax.grid(axis="y", visible=False)
    return fig
