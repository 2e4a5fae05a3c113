"""The roofline: what limits a step, arithmetic or memory?

A processor does two things: it fetches numbers from memory, and it computes with them. Each has a top
speed, and a step can be no faster than the slower of the two allows. Which one it is depends on a single
figure, the arithmetic intensity: operations done for each byte fetched.

- Decode, one user: each weight is fetched, used for one multiplication and one addition, and dropped.
  In FP16 that is one operation a byte. Memory is the limit, and the arithmetic units idle.
- Prefill: each weight is fetched once and used for every token of the prompt. Arithmetic is the limit.

You will see both ceilings of this machine measured, then steps of 1 to 1,024 tokens placed under them,
and the time of each predicted before it is measured.

Source: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model" (2009).
"""

from __future__ import annotations

import torch

from labkit.lab import Lab, run_lab
from phase2_attention_kvcache.model.checkpoint import parse_dtype
from phase2_attention_kvcache.model.config import GPT2_124M
from phase2_attention_kvcache.model.roofline import (
    Step,
    limit_of,
    measure_ceilings,
    measure_step,
    narrow,
    work_of_step,
)
from phase2_attention_kvcache.model.transformer import Transformer
from phase2_attention_kvcache.story.roofline_figure import draw_roofline


def story(lab: Lab) -> None:
    dtype = lab.args.dtype
    size = torch.finfo(parse_dtype(dtype)).bits // 8
    if lab.args.model == "gpt2-124m":
        model = Transformer.random(GPT2_124M, dtype, lab.device, lab.seed)
        name = "GPT-2's shape, 124M random weights"
    else:
        model = Transformer.from_pretrained(lab.args.model, dtype, lab.device)
        name = lab.args.model
    config = model.config

    lab.title("Two ceilings of this machine")
    ceilings = measure_ceilings(lab.device, dtype, lab.quick)
    lab.table(
        f"{lab.device}, {dtype}", ["ceiling", "value", "unit"],
        [["read from memory", ceilings.bandwidth / 1e9, "GB/s"],
         ["large matrix product", ceilings.rate / 1e9, "GFLOP/s"],
         ["ridge: they meet at", ceilings.ridge, "operations a byte"]],
        note="A data sheet's figures are higher. These are what a program gets.",
    )  # fmt: skip

    lab.title(f"Steps of 1 to 1,024 tokens: {name}")
    sizes = [1, 4, 16, 64, 256, 1024] if lab.quick else [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
    sizes = [n for n in sizes if n <= config.max_context]
    steps = []
    for n in lab.progress(sizes, "timing steps"):
        work = work_of_step(config, n, 0, size)
        steps.append(Step(n, work, ceilings.seconds(work), measure_step(model, n, 3 if lab.quick else 6)))

    few = next(step for step in steps if step.tokens >= 16)
    overhead = measure_step(Transformer.random(narrow(config), dtype, lab.device), 1, 10)
    decode = limit_of(steps[0], few, ceilings, overhead)
    prefill = limit_of(steps[-2], steps[-1], ceilings, overhead)
    for claim, what, predicted, (limit, why) in (
        ("decode-memory-bound", "decode (1 token a step)", "memory", decode),
        ("prefill-compute-bound", f"prefill ({steps[-1].tokens:,} tokens a step)", "arithmetic", prefill),
    ):
        question = f"what limits {what}: memory, arithmetic or overhead"
        lab.predict(claim, question, predicted=predicted, measured=limit, kind="timing", note=why)
    if any(step.seconds < 0.95 * step.floor for step in steps):
        lab.say("""Some steps beat their floor. So a ceiling was measured too low: something else kept this
            machine busy at that moment. Close it and run again.""")
    lab.table(
        "Predicted from the roofline, then measured",
        ["tokens", "operations a byte", "floor, ms", "measured, ms", "measured / floor", "limit"],
        [[n, w.intensity, 1e3 * floor, 1e3 * s, s / floor,
          "memory" if w.intensity < ceilings.ridge else "arithmetic"] for n, w, floor, s in steps],
        note="The floor is what no program can beat on this machine. Above it: small operations between "
             "the large ones, Python, routines that do not reach the peak. Below it: a small model whose weights fit in the processor's own "
             "cache, which is faster than main memory.",
    )  # fmt: skip
    together = next((n for n, _, _, s in reversed(steps) if s < 2 * steps[0].seconds), 1)
    lab.say(f"""What it means: a step of {together} tokens takes less than twice as long as a step of one.
        So a server that lets {together} users share each step serves them for less than the price of two. (Nearly:
        each user also needs scores and a cache of their own.) That is batching, and Phase 4 is about it.""")
    lab.record(
        bandwidth_gb_s=ceilings.bandwidth / 1e9,
        rate_gflop_s=ceilings.rate / 1e9,
        steps=[dict(tokens=n, intensity=w.intensity, floor_s=f, measured_s=s) for n, w, f, s in steps],
    )
    lab.figure(draw_roofline(ceilings, steps, name, lab.device, dtype), "roofline")


def main(argv: list[str] | None = None) -> int:
    return run_lab(
        story,
        __doc__,
        options=("device", "dtype", "seed", "quick"),
        add_arguments=lambda parser: parser.add_argument(
            "--model",
            default="gpt2-124m",
            metavar="NAME",
            help="gpt2-124m (GPT-2's shape, random weights, the default), tales, gpt2 or a model folder",
        ),
        argv=argv,
    )


if __name__ == "__main__":
    raise SystemExit(main())
