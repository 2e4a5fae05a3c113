"""The kernel benchmark on a machine without a GPU."""

from labkit.lab import Lab
from phase1_tokens_embeddings.weights import SHAPES
from phase5_real_gpu.measuring.kernel_cases import (
    CPU_DECODE,
    CPU_DECODE_B1,
    CPU_PREFILL,
    CPU_SKEWED,
    PYTHON_CPU,
)
from phase5_real_gpu.measuring.kernel_measure import Bench
from phase5_real_gpu.measuring.kernel_peers import COMPILED, GATHER, PROMPT, PYTHON, SDPA, VECTORISED
from phase5_real_gpu.story.kernel_figures import draw_kernels
from phase5_real_gpu.story.kernel_on_gpu import PYTHON_MULTIPLY_ADD
from phase5_real_gpu.story.kernel_tables import show_results

PROOF = "tests/phase5_real_gpu and compile_report.py"


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
            predicted=(0.25, 1.1), between=True, measured=round(main.share_of_limit, 2), kind="timing",
            note=f"""{main.details['bytes'] / 1e6:.0f} MB have to be read: {main.floor / 1e3:.1f} ms at
                {bench.limits.read_gb_s:.0f} GB/s. It took {main.value / 1e3:.1f} ms. What copies first
                reads, writes and reads each byte again: it cannot come to more than a third.""",
        )  # fmt: skip
        if skewed := found.get(CPU_SKEWED.name):
            lab.predict(
                "cpu-skewed-against-uniform",
                "unequal lengths, the same total: how many times as long as equal lengths",
                predicted=(0.7, 1.6), between=True, measured=round(skewed.value / main.value, 2), unit="x", kind="timing",
                note=f"Lengths from {min(CPU_SKEWED.context_lens)} to {max(CPU_SKEWED.context_lens):,} tokens. Cores "
                "that are done early wait for the one with the longest texts.",
            )  # fmt: skip
    kernel, python = found.get(PYTHON_CPU.name), found.get(f"python-{PYTHON_CPU.name}")
    if kernel and python:
        python_us = 1e6 * PYTHON_CPU.work.operations / 2 * PYTHON_MULTIPLY_ADD
        times = python_us / max(kernel.floor, bench.limits.launch_us)
        lab.predict(
            "compiled-vs-python",
            f"{PYTHON_CPU.title}, the same case: plain Python loops take how many times as long as the compiled kernel",
            predicted=(round(times / 4), round(4 * times)), between=True,
            measured=round(python.value / kernel.value), unit="x", kind="timing",
            note=f"""Python: {python.value / 1e3:.1f} ms. Compiled: {kernel.value:.0f} us. Both read the same blocks where they
                lie; the compiled loops go through them several numbers at a time. Predicted {times:,.0f}, within a factor of four, with {1e9 * PYTHON_MULTIPLY_ADD:.0f} ns for each of Python's multiplications,
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
