"""The chapters of the roofline, and its figure."""

import math

import torch
from matplotlib.figure import Figure

from labkit.figures import BLUE, GREY, INK, ORANGE, new_figure, plain_numbers
from labkit.lab import Lab
from phase2_attention_kvcache.measuring import roofline
from phase2_attention_kvcache.measuring.roofline import Ceilings, Step, limit_of, measure_step
from phase2_attention_kvcache.model import GPT2_124M, Transformer


def load_model(lab: Lab) -> tuple[Transformer, str]:
    """The model of --model, and its name in figures."""
    name, dtype = lab.args.model, lab.args.dtype
    if name == "gpt2-124m":
        model = Transformer.random(GPT2_124M, dtype, lab.device, lab.seed)
        return model, "GPT-2's shape, 124M random weights"
    return Transformer.from_pretrained(name, dtype, lab.device), name


def tell_ceilings(lab: Lab, ceilings: Ceilings) -> None:
    lab.title("Two ceilings of this machine")
    lab.table(
        f"{lab.device}, {lab.args.dtype}", ["ceiling", "value", "unit"],
        [["read from memory", ceilings.bandwidth / 1e9, "GB/s"],
         ["large matrix multiplication", ceilings.rate / 1e9, "GFLOP/s"],
         ["ridge: they meet at", ceilings.ridge, "FLOP per byte"]],
        note="A data sheet's figures are higher. These are what a program gets.",
    )  # fmt: skip


def tell_steps(lab: Lab, model: Transformer, name: str, ceilings: Ceilings) -> list[Step]:
    """Time steps of 1 to 1,024 tokens under the two ceilings, and say what limits the ends."""
    lab.title(f"Steps of 1 to 1,024 tokens: {name}")
    sizes = [1, 4, 16, 64, 256, 1024] if lab.quick else [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
    sizes = [n for n in sizes if n <= model.config.max_context]
    steps = []
    size = torch.finfo(model.dtype).bits // 8
    for n in lab.progress(sizes, "timing steps"):
        work = roofline.work_of_step(model.config, n, 0, size)
        steps.append(Step(n, work, ceilings.seconds(work), measure_step(model, n, 3 if lab.quick else 6)))

    few = next(step for step in steps if step.tokens >= 16)
    overhead = measure_step(Transformer.random(roofline.hollow(model.config), model.dtype, lab.device), 1, 10)
    decode = limit_of(steps[0], few, ceilings, overhead)
    prefill = limit_of(steps[-2], steps[-1], ceilings, overhead)
    for claim, what, predicted, (limit, why) in (
        ("decode-memory-bound", "decode (1 token a step)", "memory", decode),
        ("prefill-compute-bound", f"prefill ({steps[-1].tokens:,} tokens per step)", "arithmetic", prefill),
    ):
        question = f"what limits {what}: memory, arithmetic or overhead"
        lab.predict(claim, question, predicted=predicted, measured=limit, kind="timing", note=why)
    if any(step.seconds < 0.95 * step.floor for step in steps):
        lab.say("""Some steps beat their floor. So a ceiling was measured too low: something else kept this
            machine busy at that moment. Close it and run again.""")
    lab.table(
        "Predicted from the roofline, then measured",
        ["tokens", "FLOP per byte", "floor, ms", "measured, ms", "measured / floor", "limit"],
        [[n, w.intensity, 1e3 * floor, 1e3 * s, s / floor,
          "memory" if w.intensity < ceilings.ridge else "arithmetic"] for n, w, floor, s in steps],
        note="The floor is what no program can beat on this machine. Above it: small operations between "
             "the large ones, Python, routines that do not reach the peak. Below it: a small model whose weights fit in the processor's own "
             "cache, which is faster than main memory.",
    )  # fmt: skip
    together = next((n for n, _, _, s in reversed(steps) if s < 2 * steps[0].seconds), 1)
    lab.say(f"""What it means: a step of {together} tokens takes less than twice as long as a step of one.
        These are tokens of one prompt, and only the last needs scores. A server that lets {together} users share each step reads
        the weights once for all of them as well, but computes scores and reads a cache for each: it costs
        somewhat more than that. That is batching, and Phase 4 is about it.""")
    lab.record(
        bandwidth_gb_s=ceilings.bandwidth / 1e9,
        rate_gflop_s=ceilings.rate / 1e9,
        steps=[dict(tokens=n, intensity=w.intensity, floor_s=f, measured_s=s) for n, w, f, s in steps],
    )
    return steps


def draw_roofline(ceilings: Ceilings, steps: list[Step], name: str, where: str) -> Figure:
    fig, (ax,) = new_figure(
        "Memory limits short steps, arithmetic limits long ones",
        f"{name}; {where}. Labels: tokens, share of the roof",
        size=(7.6, 5.2),
    )
    low, high = steps[0][1].intensity / 2, max(steps[-1][1].intensity, ceilings.ridge) * 2
    slope, roof = ceilings.bandwidth / 1e9, ceilings.rate / 1e9
    ax.plot([low, ceilings.ridge, high], [low * slope, roof, roof], color=INK, linewidth=2.2)
    ax.axvline(ceilings.ridge, color=GREY, linestyle=":", linewidth=1.2)
    below = dict(xytext=(0, -10), textcoords="offset points", ha="center", va="top", fontsize=8.5)
    for n, work, floor, seconds in steps:
        y = work.operations / seconds / 1e9
        colour = BLUE if work.intensity < ceilings.ridge else ORANGE
        ax.plot(work.intensity, y, "o", color=colour, markersize=8)
        ax.annotate(f"{n:,}\n{floor / seconds:.0%}", (work.intensity, y), **below)
    ax.set(xlabel="FLOP per byte", ylabel="GFLOP/s", xscale="log", yscale="log", xlim=(low, high))
    ax.set_ylim(bottom=ax.get_ylim()[0] / 2)  # room for the label below the lowest point
    plain_numbers(ax)
    middle = (low * ceilings.ridge) ** 0.5
    along = dict(rotation=math.degrees(math.atan(slope)), rotation_mode="anchor", transform_rotates_text=True)
    label = f"memory: {slope:.0f} GB/s"
    ax.text(middle / 1.15, middle * slope, label, color=BLUE, ha="center", va="bottom", **along)
    label, above = f"arithmetic: {roof:,.0f} GFLOP/s", dict(xytext=(-4, 6), textcoords="offset points")
    ax.annotate(label, (high, roof), ha="right", color=ORANGE, **above)
    return fig
