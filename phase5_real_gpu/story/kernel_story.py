"""kernel_benchmark.py on a CPU and on a GPU: its cases, its peers, its tables and its conclusions."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from labkit.lab import Lab
from phase1_tokens_embeddings.weights import SHAPES
from phase5_real_gpu.kernels import triton_setup, write_kv
from phase5_real_gpu.measuring import kernel_cases as cases
from phase5_real_gpu.measuring import kernel_peers as peers
from phase5_real_gpu.measuring.kernel_cases import AttentionCase, GemmCase, WriteCase
from phase5_real_gpu.measuring.kernel_measure import measure_gemm, measure_write, run_case
from phase5_real_gpu.measuring.kernel_peers import Runner
from phase5_real_gpu.measuring.measurements import Bench, Limits
from phase5_real_gpu.story.kernel_figures import draw_kernels
from phase5_real_gpu.story.kernel_gates import put_gates
from phase5_real_gpu.story.ladder_story import ladder_runners

LAYERS = 16  # keys and values of 16 layers of the 1 x 4k case are 268 MB: no cache holds them
LONG_LAYERS = 4  # of 1 x 32k: 537 MB
PYTHON_MULTIPLY_ADD = 50e-9  # seconds that plain Python needs for one multiplication and addition, roughly
PROOF = "tests/phase5_real_gpu and compile_report.py"
GEMM_LAYERS = 32  # 336 MB in int4
GEMMS = (
    (cases.GEMM_INT4, "Triton, weights in registers"),
    (replace(cases.GEMM_INT4, name="torch-gemm-b1", kind=""), "PyTorch linear, 16 bits"),
)
Job = Callable[[], object]


def show_limits(lab: Lab, limits: Limits) -> None:
    rows = [[m.name, m.value, m.unit] for m in limits.measurements()]
    note = "copy-bandwidth: read and written bytes. launch: an operation on one number. h2d, d2h: pinned main memory to the GPU, and back."
    lab.table(limits.device_name, ["ceiling", "value", "unit"], rows, note=note)


def show_results(lab: Lab, bench: Bench) -> None:
    """A table of all kernels, and a figure that leaves out the rungs of the ladder."""
    kernels = list(bench.found.values())
    if not kernels:
        return
    order = list(dict.fromkeys(m.details["case"] for m in kernels))
    kernels.sort(key=lambda m: order.index(m.details["case"]))
    unit, factor = ("TFLOP/s", 1) if bench.device == "cuda" else ("GFLOP/s", 1000)
    rows, last = [], None
    for m in kernels:
        d = m.details
        rows.append(["" if d["case"] == last else d["case"], d["kernel"], m.value, d["p10"], d["p90"], d["gb_s"],
                     factor * d["tflop_s"], f"{m.share_of_limit:.1%} of {m.limit}"])  # fmt: skip
        last = d["case"]
    lab.table(
        f"{bench.limits.device_name}, {bench.dtype}",
        ["case", "kernel", "us", "p10", "p90", "GB/s", unit, "reached"], rows,
        note="Medians, and the 10th and 90th percentile. GB/s counts each key and value once. Reached: the shortest time that "
        "this machine allows, divided by the time taken. Each answer was checked first.",
    )  # fmt: skip
    kernels = [m for m in kernels if not m.name.startswith("ladder-")]
    lab.figure(draw_kernels(kernels, bench.limits.device_name, bench.dtype), "kernel_benchmark")


def against_python(lab: Lab, bench: Bench, claim: str, case: AttentionCase, kernel: str) -> None:
    """The same case in plain Python loops, predicted from its operations."""
    fast, python = bench.found.get(case.name), bench.found.get(f"python-{case.name}")
    if not fast or not python:
        return
    times = 1e6 * case.work.operations / 2 * PYTHON_MULTIPLY_ADD / max(fast.floor, 2 * bench.limits.launch_us)
    lab.predict(
        claim, f"{case.title}, the same case: plain Python loops take how many times as long as {kernel}",
        predicted=(round(times / 4), round(4 * times)), between=True, measured=round(python.value / fast.value),
        unit="x", kind="timing",
        note=f"Python: {python.value / 1e3:,.0f} ms. The kernel: {fast.value:,.0f} us. Both read the same blocks in place. "
        f"Predicted {times:,.0f}, within a factor of four: {PYTHON_MULTIPLY_ADD * 1e9:.0f} ns for each multiplication and "
        "addition in Python, and the kernel at its floor.",
    )  # fmt: skip


# ---------------------------------------------------------------------- on a CPU


def on_cpu(lab: Lab, bench: Bench) -> None:
    lab.title("Kernels: right first, then timed")
    lab.say(f"""No GPU here. The Triton kernels can only be interpreted, which checks their results ({PROOF}) and says nothing about their
        speed. Phase 3's kernel, compiled by numba, runs at full speed on a CPU. One layer of GPT-2: 12 heads of 64, blocks of 16 tokens
        scattered over the memory. Caches are emptied before each run, because in a model the next layer has other keys.""")
    lab.cannot_measure(
        "triton-vs-python", "plain Python loops take how many times as long as the Triton kernel", "GPU",
        "Run this script on a machine with an NVIDIA GPU. The same question for the compiled kernel follows.",
    )  # fmt: skip
    jobs = (
        (cases.CPU_DECODE, [peers.COMPILED, peers.GATHER, peers.SDPA]),
        (cases.CPU_DECODE_B1, [peers.COMPILED, peers.SDPA]),
        (cases.CPU_PREFILL, [peers.PROMPT]),
        (cases.PYTHON_CPU, [peers.COMPILED, peers.PYTHON]),
    )
    for case, runners in lab.progress(jobs, "checking and timing"):
        run_case(bench, case, runners)
    main, gather = (bench.found.get(way + cases.CPU_DECODE.name) for way in ("", "gather-"))
    if main:
        lab.predict(
            "cpu-decode-bandwidth",
            f"{cases.CPU_DECODE.title}, compiled, in place: share of the bandwidth just measured",
            predicted=(0.25, 1.1), between=True, measured=round(main.share_of_limit, 2), kind="timing",
            note=f"""The kernel must read {main.details['bytes'] / 1e6:.0f} MB: {main.floor / 1e3:.1f} ms at
                {bench.limits.read_gb_s:.0f} GB/s. It took {main.value / 1e3:.1f} ms. An implementation that gathers first
                reads, writes and reads each byte again, and reaches at most a third.""",
        )  # fmt: skip
    against_python(lab, bench, "compiled-vs-python", cases.PYTHON_CPU, "the compiled kernel")
    lab.title("All figures")
    show_results(lab, bench)
    if main and gather:
        layers = SHAPES["gpt2"].num_layers
        lab.say(f"""GPT-2 has {layers} such layers. For 16 requests attention takes
            {layers * main.value / 1e3:.0f} ms of each step in place, and {layers * gather.value / 1e3:.0f} ms if blocks are
            gathered first.""")


# ---------------------------------------------------------------------- on a GPU


def on_gpu(lab: Lab, bench: Bench) -> None:
    lab.title("Kernels: right first, then timed")
    lab.say("""One layer of Llama-3 8B: 32 query heads, 8 KV heads, 128 numbers per head, blocks of 16 tokens
        scattered over the memory. Caches are emptied before each run. A kernel that fails or is missing is reported, and
        the others run.""")
    ours = [peers.TRITON]
    if problem := triton_setup.card_problem(getattr(torch, bench.dtype)):
        bench.leave_out(peers.TRITON.title, problem)
        ours = []
    for job in lab.progress(gpu_jobs(bench, ours), "checking and timing"):
        job()
    if ours:
        lab.title("Gates")
        put_gates(lab, bench.found)
        against_python(
            lab, bench, "triton-vs-python", replace(cases.PYTHON_GPU, dtype=bench.dtype), "the Triton kernel"
        )
    lab.title("All figures")
    show_results(lab, bench)
    if mine := bench.found.get(cases.DECODE_B64.name):
        layers = SHAPES["llama-3-8b"].num_layers
        step_ms = mine.value * layers / 1000
        lab.say(f"""Llama-3 8B has {layers} such layers, so for 64 requests with 4k tokens each attention takes
            {step_ms:.1f} ms of every step. Attention alone limits each request to {1000 / step_ms:,.0f} tokens
            per second. Each percent of bandwidth that a kernel leaves unused adds a percent to this part of the cost.""")


def gpu_jobs(bench: Bench, ours: Sequence[Runner]) -> list[Job]:
    """The course's kernels, beside them the peers that need no compiling; then the ladder. FlashInfer compiles its
    kernels first, so it comes last: should it take too long, the rest has its figures."""

    def job(case: AttentionCase, runners: Sequence[Runner], **more) -> Job:
        case = replace(case, dtype=bench.dtype)
        if case.kv_dtype and (problem := triton_setup.card_problem(case.cache_dtype)):
            return lambda: bench.leave_out(case.title, problem)
        return partial(run_case, bench, case, runners, **more)

    # A call of few programs is short: timed by itself, its launch, its Python and the caches just emptied would count.
    graph, few = dict(graph_layers=LAYERS), dict(graph_layers=LONG_LAYERS)
    attention: list[tuple[AttentionCase, list[Runner], dict[str, int]]] = [
        (cases.DECODE_B64, [peers.SDPA], {}),
        (cases.DECODE_B1_4K, [peers.SDPA], graph),
        (cases.DECODE_SKEWED, [], {}),
        (cases.DECODE_ONE_LONG, [], few),
        (cases.DECODE_FP8, [], {}),
        (cases.DECODE_B1_32K, [peers.SDPA], few),
        (cases.PREFILL_8K, [peers.SDPA], {}),
        (cases.PYTHON_GPU, [peers.PYTHON], {}),
    ]
    own = [job(case, [*ours, *others], **more) for case, others, more in attention]
    own.append(partial(write_cases, bench, replace(cases.WRITE_8K, dtype=bench.dtype), bool(ours)))
    own += [partial(gemm_case, bench, case, title) for case, title in GEMMS if ours]
    ladder = [  # named so that "ladder-2-packed-" can stand before it
        job(replace(case, name=case.name.removeprefix("decode-")), ladder_runners(), **more)
        for case, more in ((cases.DECODE_B64, {}), (cases.DECODE_B1_32K, few))
    ]
    compiled_first = [job(case, [peers.FLASHINFER], slow=True, **more) for case, _, more in attention[:-1]]
    return [*own, *(ladder if ours else ()), *compiled_first]


def gemm_case(bench: Bench, case: GemmCase, title: str) -> None:
    case = replace(case, dtype=bench.dtype)
    run = lambda: bench.add(measure_gemm(bench, case, title, GEMM_LAYERS))  # noqa: E731
    bench.attempt(f"{title}, {case.title}", run, name=case.name)


def write_cases(bench: Bench, case: WriteCase, ours: bool) -> None:
    def with_torch(k, v, k_cache, v_cache, slots) -> None:
        k_cache.flatten(0, 1).index_copy_(0, slots, k)
        v_cache.flatten(0, 1).index_copy_(0, slots, v)

    kernels = [("", peers.TRITON.title, write_kv)] * ours + [("torch-", "PyTorch index_copy_", with_torch)]
    for prefix, title, write in kernels:
        run = partial(measure_write, bench, write, prefix, title, case)
        bench.attempt(f"{title}, {case.title}", lambda run=run: bench.add(run()), name=prefix + case.name)
