"""The chapters of continuous_batching.py, and its figure."""

import statistics
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from labkit.figures import BLUE, COLORS, GREEN, INK, MUTED, ORANGE, new_figure
from labkit.lab import Lab
from phase4_scheduler.engine import LLMEngine
from phase4_scheduler.simulator.batching import Job, Served, mixed_jobs, serve_continuously, serve_statically


def load_engine(lab: Lab, max_num_seqs: int) -> LLMEngine:
    limits = dict(max_num_seqs=max_num_seqs, seed=lab.seed)
    return LLMEngine.from_pretrained(lab.args.model, lab.args.dtype, lab.device, **limits)


def three_users(lab: Lab) -> None:
    """The article's example: A wants 500 tokens, B 10, C 800."""
    scale = 10 if lab.quick else 1  # the counts scale along exactly
    lengths = {"A": 500 // scale, "B": 10 // scale, "C": 800 // scale}
    engine = load_engine(lab, max_num_seqs=3)
    lab.title("Three users in one batch")
    lab.say(f"""A wants {lengths["A"]} tokens, B {lengths["B"]}, C {lengths["C"]}. In a static batch all three are
        handed out when the last one is done. (With --quick all lengths are a tenth of the article's.)""")
    jobs = [Job(name, [100 + i], osl) for i, (name, osl) in enumerate(lengths.items())]
    if lab.device == "cuda":  # kernels are compiled at the first step of their kind, before a clock runs
        serve_statically(engine, jobs, batch_size=3)
    static = serve_statically(engine, jobs, batch_size=3)
    continuous = serve_continuously(engine, jobs)
    lab.predict(
        claim="head-of-line",
        question="steps that B's finished answer waits in a static batch",
        predicted=lengths["C"] - lengths["B"],
        measured=static.done_step["B"] - static.written_step["B"],
        source_says=None if lab.quick else 790,
        unit="steps",
    )
    lab.predict(
        claim="head-of-line",
        question="how many times too long B waits",
        predicted=lengths["C"] / lengths["B"],
        measured=static.done_step["B"] / continuous.done_step["B"],
        source_says=80,
        unit="x",
    )
    lab.predict(
        claim="continuous-same-tokens",
        question="are the tokens of all three the same in both ways?",
        predicted=True,
        measured=static.token_ids == continuous.token_ids,
        # In 16 bit, sums in another order may be rounded to another token.
        kind="structure" if lab.args.dtype == "float32" else "timing",
    )
    both = (static, continuous)
    lab.table(
        "When the answer reaches the user",
        ["user", "tokens", "static, step", "continuous, step", "static, s", "continuous, s"],
        [
            [name, osl, *(way.done_step[name] for way in both), *(way.done_seconds[name] for way in both)]
            for name, osl in lengths.items()
        ],
    )


def mixed_traffic(lab: Lab) -> None:
    batch_size, count, shrink, rounds = (16, 48, 12, 1) if lab.quick else (16, 96, 8, 2)
    engine = load_engine(lab, max_num_seqs=batch_size)
    jobs = mixed_jobs(count, engine.model.config.vocab_size, shrink, lab.seed)
    lab.title("Mixed traffic")
    lab.say(f"""{count} requests for summaries, chat and code arrive at once, and a batch holds {batch_size}.
        Lengths are those of the article, divided by {shrink} to fit the model's context. The same requests go
        through the same engine batch by batch, and continuously. (Of two rounds each the faster one; one round with --quick.)""")
    serve_continuously(engine, jobs[:batch_size])  # warms the machine up
    served = [
        (
            serve_statically(engine, jobs, batch_size),
            serve_statically(engine, jobs, batch_size, pad=False),
            serve_continuously(engine, jobs),
        )
        for _ in lab.progress(range(rounds), "three ways, in turn")
    ]
    static, lenient, continuous = (min(way, key=lambda one: one.seconds) for way in zip(*served))

    lab.predict(
        claim="static-steps",
        question="steps of the static way",
        predicted=sum(max(job.osl for job in jobs[i : i + batch_size]) for i in range(0, count, batch_size)),
        measured=lenient.steps,
        tolerance=0.05,
        unit="steps",
        note="""A batch takes as many steps as its longest answer, and a few more where the prompts together
            are over the token budget of a step.""",
    )
    speedup, fewer_steps = static.seconds / continuous.seconds, static.steps / continuous.steps
    padding = static.seconds / lenient.seconds
    lab.predict(
        claim="continuous-2-4x",
        question="continuous batching is faster by",
        predicted=(0.8 * padding, fewer_steps * padding),
        between=True,
        measured=speedup,
        source_says=(2, 4),
        unit="x",
        kind="timing",
        note=f"""Predicted: if finished rows cost nothing, static batches would be {padding:.1f} times as fast, and continuous
            ones have that as well. They also take {fewer_steps:.1f} times fewer steps: worth all of that where a step costs the
            same whatever its rows, and nothing where it costs by its rows. (Up to a fifth is lost to prompts that come one by
            one, and not all together.)""",
    )
    ways = {"static, padded": static, "static, finished rows free": lenient, "continuous": continuous}
    lab.table(
        f"{count} requests, {continuous.tokens:,} tokens wanted, batch size {batch_size}",
        ["way", "steps", "seconds", "tokens/s", "rows idle", "median wait for the answer, s"],
        [
            [name, way.steps, way.seconds, way.tokens / way.seconds, f"{way.idle_share(batch_size):.0%}",
             statistics.median(way.done_seconds.values())]
            for name, way in ways.items()
        ],
        note="""Padded: a finished row goes on computing until its batch ends, as in `generate` of most
            libraries. Free: it costs nothing more, but stays empty.""",
    )  # fmt: skip
    lab.say(f"""The same machine serves {speedup:.1f} times as many users, so each costs
        {1 / speedup:.0%} of the money. The model is not faster: rows that were idle are in use.""")
    subtitle = f"{count} requests at once, batch size {batch_size}, {lab.args.model}, {lab.where}"
    lab.figure(draw_batches(static, continuous, subtitle), "requests_in_the_batch")


KINDS = {
    "summarisation": (BLUE, "summary: long prompt, short answer"),
    "chat": (ORANGE, "chat"),
    "code": (GREEN, "code: long answer"),
}
WAITING = "#eceff1"


def draw_batches(static: Served, continuous: Served, subtitle: str) -> Any:
    """Both ways side by side, on the same axis of steps."""
    ratio = static.steps / continuous.steps
    fig, (left, right) = new_figure(
        f"Continuous batching needs {continuous.steps:,} steps, static batching {static.steps:,} ({ratio:.1f} times as many)",
        subtitle,
        panels=2,
        size=(7.2, 8.6),
    )
    draw_batch(left, static, f"Static batches: a batch ends with its longest answer ({static.seconds:.1f} s)")
    title = f"Continuous: a free row is filled in the next step ({continuous.seconds:.1f} s)"
    draw_batch(right, continuous, title)
    left.set_ylabel("rows of the batch")
    for ax in (left, right):
        ax.set_xlim(0, max(static.steps, continuous.steps))
    handles = [Patch(color=color, label=label) for color, label in KINDS.values()]
    handles.append(Patch(color=WAITING, label="finished, waits for the batch"))
    right.legend(handles=handles, loc="lower right", fontsize=8.5, labelcolor=MUTED)
    return fig


def draw_batch(ax: Axes, served: Served, title: str) -> None:
    """Which requests are in the batch at each step. Grey: a row of padding, or an empty one."""
    free_rows: set[int] = set()
    row: dict[str, int] = {}
    first: dict[str, int] = {}
    for step, event in enumerate(served.events):
        for name in event["tokens"]:
            if name not in row:
                row[name] = min(free_rows, default=len(set(row.values())))
                free_rows.discard(row[name])
                first[name] = step
        free_rows |= {row[name] for name in event["finished"]}
    for order, (name, begin) in enumerate(first.items()):
        color = KINDS.get(name.split("-")[0], (COLORS[order % 3],))[0]
        written, handed_out = served.written_step[name], served.done_step[name]
        bar = dict(left=begin, height=0.86, color=color, edgecolor="white", lw=0.5)
        ax.barh(row[name], written - begin, **bar)
        if handed_out > written:
            ax.barh(row[name], handed_out - written, left=written, height=0.86, color=WAITING, lw=0)
    ax.set_title(title, loc="left", fontsize=10, color=INK)
    ax.set_xlabel("step")
    ax.set_yticks([])
    ax.set_ylim(max(row.values()) + 0.5, -0.5)
    ax.grid(axis="y", visible=False)
