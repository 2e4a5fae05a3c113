"""kernel_benchmark.py on a GPU: the cases, the ladder, the peers, the gates."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from labkit.lab import Lab
from phase1_tokens_embeddings.weights import SHAPES
from phase5_real_gpu.kernels import triton_setup, write_kv
from phase5_real_gpu.measuring.kernel_cases import (
    DECODE_B1_4K,
    DECODE_B1_32K,
    DECODE_B64,
    DECODE_FP8,
    DECODE_SKEWED,
    PREFILL_8K,
    PYTHON_GPU,
    WRITE_8K,
    AttentionCase,
    WriteCase,
)
from phase5_real_gpu.measuring.kernel_measure import Bench, floor_of, measure_write
from phase5_real_gpu.measuring.kernel_peers import (
    FLASHINFER,
    FLEX,
    FLEX_PAGED,
    PYTHON,
    SDPA,
    TRITON,
    VECTORISED,
    Runner,
)
from phase5_real_gpu.measuring.measurements import Measurement
from phase5_real_gpu.measuring.reference_files import known_references
from phase5_real_gpu.story.kernel_figures import draw_kernels
from phase5_real_gpu.story.kernel_gates import put_gates
from phase5_real_gpu.story.kernel_tables import show_results
from phase5_real_gpu.story.ladder_story import ladder_cases, ladder_runners, show_ladder

LAYERS = 16  # keys and values of 16 layers of the 1 x 4k case are 268 MB: no cache holds them
PYTHON_MULTIPLY_ADD = 50e-9  # seconds that plain Python needs for one multiplication and addition, roughly


def on_gpu(lab: Lab, bench: Bench, dtype: str) -> None:
    lab.title("Kernels: right first, then timed")
    lab.say("""One layer of Llama-3 8B: 32 query heads, 8 KV heads, 128 numbers a head, blocks of 16 tokens
        scattered over the memory. Caches are emptied before each run. What fails or is missing says so, and
        the others go on.""")
    ours = [TRITON]
    if problem := triton_setup.card_problem(getattr(torch, dtype)):
        bench.leave_out(TRITON.title, problem)
        ours = []
    rungs = ladder_runners() if ours else []
    ladder_jobs = [lambda case=case: bench.run_case(case, rungs) for case in ladder_cases(dtype)]
    jobs = [*own_jobs(bench, ours, dtype), *ladder_jobs, *peer_jobs(bench, dtype)]
    for job in lab.progress(jobs, "checking and timing"):
        job()

    found = {m.name: m for m in bench.measurements()}
    if ours:
        lab.title("Gates and goals")
        put_gates(lab, found, bench.limits.matmul_tflops[dtype])
        against_python(lab, bench, replace(PYTHON_GPU, dtype=dtype))
        lab.title("The ladder")
        show_ladder(lab, bench, dtype, "decode_ladder_measured")
    lab.title("All figures")
    kernels = [r for name, r in bench.results.items() if not name.startswith("ladder-")]
    order = list(dict.fromkeys(r.case for r in kernels))
    kernels.sort(key=lambda r: order.index(r.case))
    show_results(lab, f"{bench.limits.device_name}, {dtype}", kernels, in_tera=True)
    beside_published(lab, found)
    what_it_means(lab, found)
    if fig := draw_kernels(kernels, bench.limits.ceilings(dtype), bench.limits.device_name, dtype):
        lab.figure(fig, "kernel_benchmark")


# ---------------------------------------------------------------------- what is run, in this order

Job = Callable[[], object]


def own_jobs(bench: Bench, ours: Sequence[Runner], dtype: str) -> list[Job]:
    """The course's kernels, and beside them what needs no compiling."""

    def job(case: AttentionCase, runners: Sequence[Runner], *how, **more) -> Job:
        return lambda: bench.run_case(replace(case, dtype=dtype), runners, *how, **more)

    return [
        job(DECODE_B64, [*ours, SDPA, VECTORISED]),
        job(DECODE_SKEWED, ours),
        lambda: fp8_case(bench, ours, dtype),
        job(DECODE_B1_32K, [*ours, SDPA]),
        job(DECODE_B1_4K, [*ours, SDPA], "row", LAYERS),
        job(DECODE_B1_4K, [*ours, SDPA], "graph", LAYERS, suffix="-graph"),
        job(PREFILL_8K, [*ours, SDPA]),
        lambda: write_cases(bench, replace(WRITE_8K, dtype=dtype), bool(ours)),
        job(PYTHON_GPU, [*ours, VECTORISED], "row", LAYERS),
        job(PYTHON_GPU, [PYTHON]),
    ]


def peer_jobs(bench: Bench, dtype: str) -> list[Job]:
    """Peers that compile themselves first come last: should one take too long, the rest has its figures."""

    def job(case: AttentionCase, runner: Runner, *how, **more) -> Job:
        return lambda: bench.run_case(replace(case, dtype=dtype), [runner], *how, slow=True, **more)

    return [
        job(DECODE_B64, FLASHINFER),
        job(DECODE_B1_4K, FLASHINFER, "row", LAYERS),
        job(DECODE_B1_4K, FLASHINFER, "graph", LAYERS, suffix="-graph"),
        job(DECODE_SKEWED, FLASHINFER),
        job(DECODE_B1_32K, FLASHINFER),
        job(PREFILL_8K, FLASHINFER),
        lambda: fp8_case(bench, [FLASHINFER], dtype, slow=True),
        job(DECODE_B64, FLEX),
        job(DECODE_B64, FLEX_PAGED),
        job(PREFILL_8K, FLEX),
    ]


def fp8_case(bench: Bench, runners: Sequence[Runner], dtype: str, slow: bool = False) -> None:
    if problem := triton_setup.card_problem(torch.float8_e4m3fn):
        bench.leave_out(DECODE_FP8.title, problem)
    else:
        bench.run_case(replace(DECODE_FP8, dtype=dtype), runners, slow=slow)


def write_cases(bench: Bench, case: WriteCase, ours: bool) -> None:
    def with_torch(k, v, k_cache, v_cache, slots) -> None:
        k_cache.flatten(0, 1).index_copy_(0, slots, k)
        v_cache.flatten(0, 1).index_copy_(0, slots, v)

    def run(prefix: str, title: str, write) -> None:
        bench.attempt(
            f"{title}, {case.title}",
            lambda: measure_write(write, prefix, title, case, bench.limits, bench.device, bench.seconds),
        )

    if ours:
        run("", TRITON.title, write_kv)
    run("torch-", "PyTorch index_copy_", with_torch)


# ---------------------------------------------------------------------- what it comes to


def against_python(lab: Lab, bench: Bench, case: AttentionCase) -> None:
    kernel, python = (bench.results.get(name) for name in (case.name, f"python-{case.name}"))
    if not kernel or not python:
        return
    predicted_us = max(
        1e6 * floor_of(case, bench.limits).seconds, 2 * bench.limits.launch_us
    )  # the kernel, and the one that merges its splits
    python_us = 1e6 * case.work.operations / 2 * PYTHON_MULTIPLY_ADD
    ratio = python.measurement.value / kernel.measurement.value
    note = f"""Python: {python.measurement.value / 1e3:,.0f} ms. The kernel: {kernel.measurement.value:.1f} us, and
        that is mostly the price of starting it."""
    if large := bench.results.get(DECODE_B64.name):
        more = DECODE_B64.work.operations / case.work.operations
        longer = large.measurement.value / kernel.measurement.value
        note += f""" With {large.case} there is {more:,.0f} times as much to do, and the kernel takes only
            {longer:.0f} times as long. Python would take {more:,.0f} times as long, so there the ratio would be
            {ratio * more / longer:,.0f}."""
    lab.predict(
        "triton-vs-python",
        f"{case.title}, the same case: plain Python loops take how many times as long as the Triton kernel",
        predicted=round(python_us / predicted_us), measured=round(ratio), unit="x", tolerance=0.75,
        kind="timing", note=note,
    )  # fmt: skip


def beside_published(lab: Lab, found: Mapping[str, Measurement]) -> None:
    """The large decode case beside vLLM's own kernel on other people's cards."""
    if not (mine := found.get(DECODE_B64.name)):
        return
    published = [r for r in known_references()[0] if r.origin == "published"]
    rows = [("yours", mine), *((r.title, r.get(DECODE_B64.name)) for r in published)]
    lab.table(
        f"{DECODE_B64.title}: how near to the pace of the memory?",
        ["kernel and card", "us", "share"],
        [[title, m.value, f"{m.share_of_limit:.0%}"] for title, m in rows],
        note="""Microseconds of two cards say which memory is faster. The share says how good a kernel is: yours of the pace
            measured here, theirs of the data sheet's, which is a little higher than what any program reaches.""",
    )


def what_it_means(lab: Lab, found: Mapping[str, Measurement]) -> None:
    if DECODE_B64.name not in found:
        return
    layers = SHAPES["llama-3-8b"].num_layers
    step_ms = found[DECODE_B64.name].value * layers / 1000
    lab.say(f"""What it means: Llama-3 8B has {layers} such layers, so for 64 users with 4k tokens each attention takes
        {step_ms:.1f} ms of every step. From attention alone, no user can get more than {1000 / step_ms:,.0f} tokens a
        second. Each percent of bandwidth a kernel leaves unused is a percent on that part of the rent.""")
