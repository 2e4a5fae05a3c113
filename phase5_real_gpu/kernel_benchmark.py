"""Every attention kernel against the limit of this machine, against its peers, and against plain Python.

A kernel's time in microseconds says little: is 300 good? So two questions come before it. How many bytes have
to be moved, and how many operations done? And how fast does *this* machine move bytes and multiply, measured?
Together they give a floor that no kernel can get under, and a share of it that each one reaches.

Nothing is timed before its answer was checked against Phase 3's vectorised attention: a wrong kernel is easily
a fast one. On a GPU this runs the Triton kernels, each rung of the ladder, PyTorch's SDPA and flex attention,
FlashInfer where it is installed, and the pure-Python reference at a size it can bear. On a CPU it runs Phase 3's
compiled kernel and its peers at GPT-2's shape. (Triton's interpreter would run its kernels there, line by line.
That proves them right and says nothing about speed, so it is not timed.)

Source: Williams, Waterman, Patterson, "Roofline" (2009), for the floor; Phase 2's roofline.py builds it.
"""

from __future__ import annotations

import time

import torch

from labkit.lab import Lab, run_lab
from phase1_tokens_embeddings.model_shapes import SHAPES
from phase5_real_gpu.measuring.kernel_cases import (
    CPU_DECODE,
    CPU_DECODE_B1,
    CPU_PREFILL,
    CPU_SKEWED,
    PYTHON_CPU,
)
from phase5_real_gpu.measuring.kernel_figures import draw_kernels
from phase5_real_gpu.measuring.kernel_measure import Bench
from phase5_real_gpu.measuring.kernel_on_gpu import PYTHON_MULTIPLY_ADD, on_gpu
from phase5_real_gpu.measuring.kernel_peers import COMPILED, GATHER, PROMPT, PYTHON, SDPA, VECTORISED
from phase5_real_gpu.measuring.kernel_tables import show_limits, show_results
from phase5_real_gpu.measuring.machine_limits import measure_limits
from phase5_real_gpu.measuring.measurements import put_on_record

PEERS_UNTIL = 120  # seconds: no peer that has to be compiled first begins later
PROOF = "tests/phase5_real_gpu and compile_report.py"


def story(lab: Lab) -> None:
    began = time.monotonic()
    device = lab.device
    dtype = "float32"
    if device == "cuda":
        dtype = "bfloat16" if torch.cuda.get_device_capability() >= (8, 0) else "float16"
    lab.title("The ceilings of this machine")
    lab.say("""How fast can it read, copy, multiply, start? Whatever follows is held against these four figures,
        measured just now, and not against a data sheet.""")
    limits = measure_limits(device, (dtype,), lab.quick)
    show_limits(lab, limits, dtype)
    seconds = 0.03 if lab.quick else 0.15 if device == "cuda" else 0.3
    bench = Bench(lab, limits, device, seconds, 3 if lab.quick else 5, began + PEERS_UNTIL)
    lab.record(limits=limits.to_json())
    (on_gpu if device == "cuda" else on_cpu)(lab, bench, dtype)
    put_on_record(lab, [*limits.measurements(), *bench.measurements()])
    lab.record(left_out=bench.left_out)


def on_cpu(lab: Lab, bench: Bench, dtype: str) -> None:
    lab.title("Kernels: right first, then timed")
    lab.say(f"""No GPU here. The Triton kernels can only be interpreted, line by line, which proves them right
        ({PROOF}) and says nothing of their speed, so they are not timed. What runs at full
        speed on a CPU is Phase 3's kernel, compiled by numba. One layer of GPT-2: 12 heads of 64, blocks of 16
        tokens scattered over the memory. Caches are emptied before each run, since in a model the next layer's
        keys are somewhere else.""")
    lab.cannot_measure(
        "triton-vs-python", "plain Python loops take how many times as long as the Triton kernel", "GPU",
        "Run this script on a machine with an NVIDIA GPU. Below: the same question for the compiled kernel.",
    )  # fmt: skip
    for case, runners in lab.progress(
        [
            (CPU_DECODE, [COMPILED, GATHER, SDPA, VECTORISED]),
            (CPU_SKEWED, [COMPILED]),
            (CPU_DECODE_B1, [COMPILED, SDPA]),
            (CPU_PREFILL, [PROMPT]),
            (PYTHON_CPU, [COMPILED, PYTHON]),
        ],
        "checking and timing",
    ):
        bench.run_case(case, runners)
    found = {m.name: m for m in bench.measurements()}
    main = found.get(CPU_DECODE.name)
    if main:
        lab.predict(
            "cpu-decode-bandwidth",
            f"{CPU_DECODE.title}, compiled, in place: share of the bandwidth just measured",
            predicted=0.9, measured=round(main.share_of_limit, 2), tolerance=0.25, kind="timing",
            note=f"""{main.details['bytes'] / 1e6:.0f} MB have to be read: {main.floor / 1e3:.1f} ms at
                {bench.limits.read_gb_s:.0f} GB/s. It took {main.value / 1e3:.1f} ms.""",
        )  # fmt: skip
        if skewed := found.get(CPU_SKEWED.name):
            lab.predict(
                "cpu-skewed-against-uniform",
                "unequal lengths, the same total: how many times as long as equal lengths",
                predicted=1.0, measured=round(skewed.value / main.value, 2), unit="x", tolerance=0.3, kind="timing",
                note=f"Lengths from {min(CPU_SKEWED.context_lens)} to {max(CPU_SKEWED.context_lens):,} tokens. Cores "
                "that are done early wait for the one with the longest texts.",
            )  # fmt: skip
    kernel, python = found.get(PYTHON_CPU.name), found.get(f"python-{PYTHON_CPU.name}")
    if kernel and python:
        python_us = 1e6 * PYTHON_CPU.work.operations / 2 * PYTHON_MULTIPLY_ADD
        lab.predict(
            "compiled-vs-python",
            f"{PYTHON_CPU.title}, the same case: plain Python loops take how many times as long as the compiled kernel",
            predicted=round(python_us / max(kernel.floor, bench.limits.launch_us)),
            measured=round(python.value / kernel.value), unit="x", tolerance=0.75, kind="timing",
            note=f"""Python: {python.value / 1e3:.1f} ms. Compiled: {kernel.value:.0f} us. Both run the same loops in the
                same order. Predicted with {1e9 * PYTHON_MULTIPLY_ADD:.0f} ns for each of Python's multiplications,
                and the floor for the other.""",
        )  # fmt: skip
    lab.title("All figures")
    results = list(bench.results.values())
    show_results(lab, f"{bench.limits.device_name}, {dtype}", results, in_tera=False)
    gather = found.get(f"gather-{CPU_DECODE.name}")
    if main and gather:
        layers = SHAPES["gpt2"].num_layers
        lab.say(f"""What it means: GPT-2 has {layers} such layers. For 16 users attention takes
            {layers * main.value / 1e3:.0f} ms of each step in place, and {layers * gather.value / 1e3:.0f} ms if blocks are
            copied together first: time in which the same machine, at the same price, could have written more.""")
    if fig := draw_kernels(results, bench.limits.ceilings(dtype), bench.limits.device_name, dtype):
        lab.figure(fig, "kernel_benchmark")


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, options=("device", "seed", "quick"), argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
