"""The chapters of the story of the decode ladder."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from textwrap import fill

import torch
from torch import Tensor

from labkit.lab import Lab
from phase5_real_gpu.kernels.triton_setup import INTERPRETED
from phase5_real_gpu.ladder.counted_loads import SMALL, Counted, count_loads, expected, random_step
from phase5_real_gpu.ladder.ladder_rungs import LADDER, Rung, Shape, run_rung
from phase5_real_gpu.measuring.kernel_cases import AttentionInputs
from phase5_real_gpu.measuring.kernel_peers import Runner


def rungs(lab: Lab) -> None:
    lab.title("The rungs")
    indent = dict(initial_indent="   ", subsequent_indent=" " * 11)
    for number, rung in enumerate(LADDER, 1):
        holds = fill(f"holds   {rung.invariant}.", 94, **indent)
        gains = fill(f"gains   {rung.should_gain}.", 94, **indent)
        lab.show(f"{number}. {rung.name}: {rung.title}\n{holds}\n{gains}")


def same_answer(lab: Lab, device: str) -> None:
    lab.title("One result, seven ways to request the bytes")
    shape = SMALL if device == "cpu" else replace(SMALL, context_lens=[700, 0, 1290], itemsize=2)
    dtype = torch.float32 if device == "cpu" else torch.float16
    step = random_step(shape, dtype, device, lab.seed)
    lab.say(f"""A small step: contexts of {", ".join(map(str, shape.context_lens))} tokens in blocks of
        {shape.block_size}, {shape.num_heads} query heads on {shape.num_kv_heads} KV heads, so
        {shape.num_heads // shape.num_kv_heads} share one. Empty slots are NaN, and
        table entries after a request's last block point far outside the pool.""")
    right, off, results = expected(step), [], []
    for rung in lab.progress(LADDER, "interpreting seven kernels" if INTERPRETED else "seven kernels"):
        with count_loads(keys=step[1], values=step[2]) if INTERPRETED else nullcontext() as seen:
            out = run_rung(rung, *step)
        results.append(seen)
        off.append(float((out.double().cpu() - right).abs().max()))
    limit = 1e-5 if dtype == torch.float32 else 5e-3
    lab.predict(
        claim="ladder-same-answer",
        question=f"how many of the {len(LADDER)} rungs are within {limit:g} of plain attention in float64",
        predicted=len(LADDER),
        measured=sum(d < limit for d in off),
        note=f"Largest difference {max(off):.0e}. A single number read from a slot of no request would "
        "have made it NaN.",
    )
    work = [rung.work(shape) for rung in LADDER]
    rows = [[i, r.name, w.programs, w.iterations, w.kv_bytes / shape.kv_bytes, w.block_ids, d]
            for i, (r, w, d) in enumerate(zip(LADDER, work, off), 1)]  # fmt: skip
    if INTERPRETED:
        counted(lab, shape, results)
    lab.table(
        "What each rung requests",
        ["rung", "", "programs", "iterations, longest", "bytes / bytes needed", "block ids", "difference"],
        rows,
        note=f"Needed: {shape.kv_bytes:,} bytes of keys and values, each once.",
    )


def counted(lab: Lab, shape: Shape, results: list[Counted]) -> None:
    """Compare the loads that the interpreter counted with those that the code implies."""
    kv = [c.loaded["keys"] + c.loaded["values"] for c in results]
    group = shape.num_heads // shape.num_kv_heads
    lab.predict(
        claim="ladder-packed-bytes",
        question=f"{group} query heads share a KV head. Putting them into one program divides the bytes requested by",
        predicted=float(group),
        measured=kv[0] / kv[1],
        note=f"{kv[0]:,} and {kv[1]:,} bytes, counted at each load that the interpreter did.",
    )
    lab.predict(
        claim="ladder-each-byte-once",
        question="from rung 2 on: bytes of keys and values loaded, over those that the contexts hold",
        predicted=[1.0] * (len(LADDER) - 1),
        measured=[n / shape.kv_bytes for n in kv[1:]],
        note="No rung loads a slot twice, or a slot of another request.",
    )


def ladder_runners() -> list[Runner]:
    """Each rung as the kernel benchmark runs kernels: checked first, then timed."""

    def runner(number: int, rung: Rung) -> Runner:
        def call(x: AttentionInputs) -> Tensor:
            return run_rung(rung, x.q, x.k_cache, x.v_cache, x.block_tables, x.context_lens)

        return Runner(
            f"ladder-{number}-{rung.name}-", f"{number} {rung.title}",
            lambda layers: [partial(call, x) for x in layers],
        )  # fmt: skip

    return [runner(number, rung) for number, rung in enumerate(LADDER, 1)]
