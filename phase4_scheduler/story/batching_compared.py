"""Static batches beside continuous batching, on the same engine with the same model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from labkit.figures import BLUE, COLORS, GREEN, INK, MUTED, ORANGE, new_figure
from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase4_scheduler.engine.engine import LLMEngine


@dataclass(frozen=True)
class Job:
    """A user's request: a prompt, and how many tokens it will write."""

    name: str
    prompt: list[int]
    osl: int


@dataclass
class Served:
    """How a set of jobs went.

    Attributes:
        steps: steps of the model. seconds: all of them together.
        done_step, done_seconds: when each job's answer was handed to its user.
        written_step: in which step its last token was written.
        events: the engine's record of each step.
    """

    steps: int = 0
    seconds: float = 0.0
    done_step: dict[str, int] = field(default_factory=dict)
    done_seconds: dict[str, float] = field(default_factory=dict)
    written_step: dict[str, int] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    token_ids: dict[str, list[int]] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        return sum(map(len, self.token_ids.values()))


def serve_continuously(engine: LLMEngine, jobs: Sequence[Job]) -> Served:
    """Hand everything to the engine at once. It keeps its batch full by itself."""
    return _serve(engine, [jobs], pad=False, static=False)


def serve_statically(engine: LLMEngine, jobs: Sequence[Job], batch_size: int, pad: bool = True) -> Served:
    """Batch after batch: the next one starts when all of this one is done, and answers are handed out then.

    Args:
        pad: every row of a batch goes on to the end of its longest answer, as in `generate` of most
            libraries; what is written past a row's own end is thrown away. False: finished rows cost nothing
            more, only their seats stay empty.
    """
    batches = [jobs[i : i + batch_size] for i in range(0, len(jobs), batch_size)]
    return _serve(engine, batches, pad, static=True)


def _serve(engine: LLMEngine, batches: Sequence[Sequence[Job]], pad: bool, static: bool) -> Served:
    engine.block_manager.reset_prefix_cache()
    served = Served()
    engine.record(served.events.append)
    began = engine.clock()
    for batch in batches:
        longest = max(job.osl for job in batch)
        wanted = {job.name: job.osl for job in batch}
        for job in batch:
            params = SamplingParams(temperature=0, max_tokens=longest if pad else job.osl, ignore_eos=True)
            engine.add_request(job.name, job.prompt, params)
        while engine.has_unfinished_requests:
            for output in engine.step():
                written = served.token_ids.setdefault(output.request_id, [])
                written += output.token_ids
                if len(written) == wanted[output.request_id]:
                    served.written_step[output.request_id] = len(served.events)
                    if not static:
                        served.done_step[output.request_id] = len(served.events)
                        served.done_seconds[output.request_id] = engine.clock() - began
        if static:
            served.done_step |= dict.fromkeys(wanted, len(served.events))
            served.done_seconds |= dict.fromkeys(wanted, engine.clock() - began)
        for job in batch:
            del served.token_ids[job.name][job.osl :]
    served.seconds = engine.clock() - began
    served.steps = len(served.events)
    engine.record(None)
    return served


# The source's four patterns: (least, most) prompt tokens, (least, most) answer tokens.
PATTERNS = {
    "summary": ((2000, 4000), (100, 300)),
    "chat": ((50, 200), (100, 500)),
    "code": ((200, 500), (500, 2000)),
}


def mixed_jobs(count: int, vocab_size: int, shrink: int, seed: int) -> list[Job]:
    """`count` requests, each of one of the three patterns, all lengths divided by `shrink`."""
    rng = random.Random(seed)
    jobs = []
    for i in range(count):
        kind = rng.choice(list(PATTERNS))
        (isl_low, isl_high), (osl_low, osl_high) = PATTERNS[kind]
        isl = max(1, rng.randint(isl_low, isl_high) // shrink)
        osl = max(1, rng.randint(osl_low, osl_high) // shrink)
        jobs.append(Job(f"{kind}-{i}", [rng.randrange(vocab_size) for _ in range(isl)], osl))
    return jobs


KIND_COLORS = {"summary": BLUE, "chat": ORANGE, "code": GREEN}


def color_of(name: str, order: int) -> str:
    return KIND_COLORS.get(name.split("-")[0], COLORS[order % 3])


def draw_seats(ax: Axes, served: Served, title: str) -> None:
    """Who sits in the batch at each step. Grey: a seat that writes what nobody reads, or nothing."""
    free: list[int] = []
    seat_of: dict[str, int] = {}
    spans: dict[str, list[int]] = {}
    num_seats = 0
    for step, event in enumerate(served.events):
        for name in event["tokens"]:
            if name not in seat_of:
                if free:
                    seat_of[name] = min(free)
                    free.remove(seat_of[name])
                else:
                    seat_of[name], num_seats = num_seats, num_seats + 1
                spans[name] = [step, step]
            spans[name][1] = step + 1
        for name in event["tokens"]:
            if name in event["finished"]:
                free.append(seat_of[name])
    for order, (name, (first, last)) in enumerate(spans.items()):
        written = min(served.written_step[name], last)
        color = color_of(name, order)
        ax.barh(
            seat_of[name], written - first, left=first, height=0.86, color=color, edgecolor="white", lw=0.5
        )
        handed_out = served.done_step[name]
        if handed_out > written:
            ax.barh(seat_of[name], handed_out - written, left=written, height=0.86, color="#eceff1", lw=0)
        if "-" not in name:
            ax.text(first + 6, seat_of[name], name, color="white", va="center", fontweight="bold", fontsize=9)
    ax.set_title(title, loc="left", fontsize=10, color=INK)
    ax.set_xlabel("step")
    ax.set_yticks([])
    ax.set_ylim(num_seats - 0.5, -0.5)
    ax.grid(axis="y", visible=False)


def figure_of_seats(static: Served, continuous: Served, subtitle: str) -> Any:
    """Both ways side by side, on the same axis of steps."""
    ratio = static.steps / continuous.steps
    fig, (left, right) = new_figure(
        f"The same requests, the same model: {static.steps:,} steps, or {continuous.steps:,} ({ratio:.1f} times fewer)",
        subtitle,
        panels=2,
        size=(12.5, 5.0),
    )
    draw_seats(left, static, f"Static batches: a batch ends with its longest answer ({static.seconds:.1f} s)")
    draw_seats(
        right, continuous, f"Continuous: an empty seat is taken in the next step ({continuous.seconds:.1f} s)"
    )
    left.set_ylabel("seats of the batch")
    for ax in (left, right):
        ax.set_xlim(0, max(static.steps, continuous.steps))
    names = {"summary": "summary: long prompt, short answer", "chat": "chat", "code": "code: long answer"}
    handles = [Patch(color=KIND_COLORS[k], label=label) for k, label in names.items()]
    handles.append(Patch(color="#eceff1", label="done, and kept waiting"))
    right.legend(handles=handles, loc="lower right", fontsize=8.5, labelcolor=MUTED)
    return fig


def idle_share(served: Served, seats: int) -> float:
    """Share of seat-steps in which nothing was written that a user wanted."""
    return 1 - served.tokens / (seats * served.steps)
