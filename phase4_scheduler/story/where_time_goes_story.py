"""The chapters of the story of where a step's time goes."""

from __future__ import annotations

import time

import torch

from labkit.figures import COLORS, GREY, new_figure
from labkit.lab import Lab
from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase2_attention_kvcache.model.transformer import Transformer
from phase3_paged_attention.paging.block_manager import BlockManager
from phase4_scheduler.engine.request import Request
from phase4_scheduler.engine.scheduler import Scheduler, SchedulerConfig
from phase4_scheduler.story.step_timer import PARTS, decoding_engine, time_decode

CONTEXT = 256


def weight_bytes(model: Transformer) -> int:
    """Bytes of the matrices that a step multiplies with."""
    c = model.config
    per_layer = (
        c.d_model * (c.num_heads + 2 * c.num_kv_heads) * c.head_dim + c.d_model**2 + 2 * c.d_model * c.d_ff
    )
    return (c.num_layers * per_layer + c.vocab_size * c.d_model) * model.dtype.itemsize


def show_parts(lab: Lab, parts: dict[int, dict[str, float]], title: str) -> None:
    lab.table(
        title,
        ["part", *(f"{batch} user{'s' if batch > 1 else ''}" for batch in parts), "share, most users"],
        [
            [
                part,
                *(round(times[part], 2) for times in parts.values()),
                f"{list(parts.values())[-1][part] / sum(list(parts.values())[-1].values()):.1%}",
            ]
            for part in PARTS
        ]
        + [["together", *(round(sum(times.values()), 1) for times in parts.values()), ""]],
    )


def draw(lab: Lab, before: dict[int, dict[str, float]], after: dict[int, dict[str, float]]) -> None:
    most = max(after)
    gain = sum(before[most].values()) / sum(after[most].values())
    fig, (ax,) = new_figure(
        f"For {most} users a step became {gain:.1f} times faster; deciding it costs next to nothing",
        f"One decode step, GPT-2 124M, {lab.args.dtype}, {CONTEXT} tokens of context each, "
        f"{torch.get_num_threads()} CPU threads",
        size=(9.6, 4.8),
    )
    rows = [
        (f"{b} user{'s' if b > 1 else ''}, {when}", t[b])
        for b in after
        for when, t in (("before", before), ("after", after))
    ]
    for y, (_, times) in enumerate(rows):
        left = 0.0
        for part, color in zip(PARTS, [*COLORS[:7], GREY], strict=True):
            ax.barh(y, times[part], left=left, color=color, height=0.72, label=part if y == 0 else None)
            left += times[part]
        ax.text(left, y, f"  {left:.1f} ms", va="center", fontsize=9)
    ax.set_yticks(range(len(rows)), [name for name, _ in rows])
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("milliseconds")
    ax.set_xlim(0, 1.12 * max(sum(t.values()) for _, t in rows))
    ax.legend(loc="upper right", fontsize=8.5)
    lab.figure(fig, "where_time_goes")


def growing_queue(lab: Lab) -> None:
    """A hundred times the waiting requests: the same step."""
    lab.title("A queue a hundred times as long")
    rows = []
    for waiting in (100, 1_000, 10_000):
        scheduler = Scheduler(SchedulerConfig(max_num_seqs=64), BlockManager(4097))
        params = SamplingParams(temperature=0, max_tokens=500, ignore_eos=True)
        for i in range(64 + waiting):
            scheduler.add(Request(str(i), [i % 100] * 20, params))
        times = []
        for step in range(60):
            began = time.perf_counter()
            output = scheduler.schedule()
            scheduler.update(output, [5 if s.samples else None for s in output.scheduled])
            if step >= 10:
                times.append(1e6 * (time.perf_counter() - began))
        rows.append([waiting, sorted(times)[len(times) // 2]])
    lab.predict(
        claim="queue-length",
        question="deciding a step with 10,000 waiting / with 100 waiting",
        predicted=1.0,
        measured=rows[-1][1] / rows[0][1],
        tolerance=0.3,
        unit="x",
        kind="timing",
        note="The scheduler looks at the head of the queue, never along it.",
    )
    lab.table("Deciding a step for 64 running requests", ["waiting", "microseconds"], rows)


def growing_context(lab: Lab, model: Transformer, steps: int) -> None:
    """Ten times the context: only attention takes longer."""
    lab.title("Ten times the context")
    contexts = (96, 960) if lab.quick else (96, 240, 480, 960)
    parts = {
        c: time_decode(decoding_engine(model, 16, c, steps), steps)
        for c in lab.progress(contexts, "contexts")
    }
    first, last = parts[contexts[0]], parts[contexts[-1]]
    lab.predict(
        claim="context-attention-only",
        question="share of the additional time that is attention, 10 times the context",
        predicted=1.0,
        measured=(last["attention"] - first["attention"]) / (sum(last.values()) - sum(first.values())),
        tolerance=0.2,
        kind="timing",
    )
    lab.table(
        "A step for 16 users, milliseconds",
        ["context", "attention", "everything else", "together"],
        [[c, t["attention"], sum(t.values()) - t["attention"], sum(t.values())] for c, t in parts.items()],
    )
    lab.record(by_context=parts)
