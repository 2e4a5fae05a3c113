"""The measured runs of the engine benchmark: TTFT, ITL and throughput of our engine, throughput of the other."""

import gc
import statistics
import time
from functools import partial
from typing import Any

import torch

from labkit.machine import synchronize
from phase2_attention_kvcache.measuring.roofline import hollow
from phase2_attention_kvcache.model import SamplingParams, Transformer
from phase3_paged_attention.paging.cpu_decode import GatherDecode
from phase4_scheduler.engine import EngineConfig, LLMEngine
from phase5_real_gpu.kernels import TritonPagedKVCache
from phase5_real_gpu.measuring import engine_cases as cases
from phase5_real_gpu.measuring.engine_cases import BenchModel, Plan, Workload
from phase5_real_gpu.measuring.engine_peers import random_transformers, static_batches
from phase5_real_gpu.measuring.measurements import Bench, Floor, Measurement, percentiles

HOLLOW = 16, 32  # tokens of prompt and answer in a run of the hollow model


def path_of(engine: LLMEngine) -> str:
    """How the engine's decode steps run: "graph", "kernel", or "gather" where no kernel can.

    "graph" from the first recording on: earlier steps, such as prompts alone, were not recorded.
    """
    runner = engine.core.runner
    if getattr(runner, "recordings", None):
        return "graph"
    cache = runner.kv_cache
    gathers = isinstance(getattr(cache, "decoder", None), GatherDecode)
    return "gather" if gathers and not isinstance(cache, TritonPagedKVCache) else "kernel"


def workloads_of(model: BenchModel, plan: Plan, seed: int) -> dict[str, Workload]:
    """By the ending of the measurement's name: b1, b8, ..., mixed64."""
    vocab = model.config.vocab_size
    runs = {f"b{b}": cases.equal_workload(b, plan.isl, plan.osl, vocab, seed) for b in plan.batches}
    count, low, high = plan.mixed
    return runs | {f"mixed{count}": cases.mixed_workload(count, low, high, vocab, seed)}


def make_engine(model: Transformer, plan: Plan) -> LLMEngine:
    """An engine as in a server, with the largest cache that fits in memory, but without prefix caching."""
    config = EngineConfig(
        max_num_seqs=max(*plan.batches, plan.mixed[0]), max_num_batched_tokens=plan.step_tokens,
        enable_prefix_caching=False,
    )  # fmt: skip
    return LLMEngine(model, None, config)


def serve(engine: LLMEngine, workload: Workload) -> tuple[float, list[float]]:
    """Seconds from the first arrival to the last token, and all ITLs in seconds.

    Raises:
        RuntimeError: an answer has the wrong length, so the figure would be wrong.
    """
    params = [SamplingParams(temperature=0, max_tokens=osl, ignore_eos=True) for _, osl in workload]
    synchronize(engine.model.device.type)
    began = time.perf_counter()
    outputs = engine.generate([prompt for prompt, _ in workload], params)
    seconds = time.perf_counter() - began
    wrong = [o.error for o, (_, osl) in zip(outputs, workload, strict=True) if len(o.token_ids) != osl]
    if wrong:
        raise RuntimeError(wrong[0] or "an answer has the wrong length")
    return seconds, [itl for output in outputs for itl in output.metrics.itls]


def warm_up(engine: LLMEngine, workload: Workload) -> None:
    """Compile kernels and record graphs before anything is timed.

    On a GPU that takes the whole workload: graphs are recorded for each size of batch that occurs.
    """
    on_gpu = engine.model.device.type == "cuda"
    serve(engine, workload if on_gpu else [(prompt, 2) for prompt, _ in workload[:4]])


def add_figure(
    bench: Bench, name: str, values: list[float], unit: str, floor: Floor | None = None, **details: Any
) -> Measurement:
    """The median of several values. For a rate, `floor` is the time of the whole run that writes `details["tokens"]`."""
    is_rate, bound = unit == "tok/s", None
    if floor:
        bound = details["tokens"] / floor.seconds if is_rate else 1e3 * floor.seconds
    details = percentiles(values) | details | {"dtype": bench.dtype}
    better = "higher" if is_rate else "lower"
    value = statistics.median(values)
    return bench.add(Measurement(name, value, unit, better, bound, floor and floor.limit, details))


def measure_ours(
    bench: Bench, plan: Plan, bm: BenchModel, engine: LLMEngine, workloads: dict[str, Workload]
) -> None:
    """TTFT of each length, then each workload. A failure of one does not stop the others."""
    for isl in plan.isls:
        what = f"TTFT of {isl:,} tokens, {bm.title}"
        if isl + 1 > bm.config.max_context:
            bench.leave_out(what, f"its context is {bm.config.max_context:,}")
        else:
            name = f"ttft-{bm.name}-isl{isl}"
            bench.attempt(what, partial(_ttft, bench, plan, bm, engine, isl), name=name)
    for ending, workload in workloads.items():
        what, name = f"throughput of {len(workload)} requests, {bm.title}", f"throughput-{bm.name}-{ending}"
        bench.attempt(what, partial(_throughput, bench, plan, bm, engine, ending, workload), name=name)


def _ttft(bench: Bench, plan: Plan, bm: BenchModel, engine: LLMEngine, isl: int) -> None:
    prompt = cases.equal_workload(1, isl, 1, bm.config.vocab_size, bench.seed)
    warm_up(engine, prompt)
    ms = [1e3 * serve(engine, prompt)[0] for _ in range(plan.repeats + 1)]
    floor = cases.step_floor(bm.config, 1, bench.limits, bench.dtype, new_tokens=isl)
    add_figure(bench, f"ttft-{bm.name}-isl{isl}", ms, "ms", floor, isl=isl, path=path_of(engine))


def _throughput(
    bench: Bench, plan: Plan, bm: BenchModel, engine: LLMEngine, ending: str, workload: Workload
) -> None:
    warm_up(engine, workload)
    runs = [serve(engine, workload) for _ in range(plan.repeats)]
    floor, details = None, dict(batch=len(workload), path=path_of(engine))
    if not ending.startswith("mixed"):
        floor = cases.run_floor(bm.config, len(workload), plan.isl, plan.osl, bench.limits, bench.dtype)
        itls = [1e3 * statistics.median(itls) for _, itls in runs]
        context = plan.isl + plan.osl // 2
        more = dict(context=context)
        if len(workload) == 1:  # a single request: its gaps, and the time of a step without work, explain it
            more |= dict(seconds=[round(g, 7) for _, gaps in runs for g in gaps])
            more |= dict(fixed_ms=_hollow_ms(engine, bench.seed))
        step = cases.step_floor(bm.config, len(workload), bench.limits, bench.dtype, context)
        add_figure(bench, f"itl-{bm.name}-{ending}", itls, "ms", step, **details, **more)
    tokens = sum(osl for _, osl in workload)
    rates = [tokens / seconds for seconds, _ in runs]
    add_figure(bench, f"throughput-{bm.name}-{ending}", rates, "tok/s", floor, tokens=tokens, **details)


def _hollow_ms(engine: LLMEngine, seed: int) -> float:
    """Milliseconds of a step with as many layers and almost nothing to read: the fixed part of every step."""
    like = engine.model
    model = Transformer.random(hollow(like.config), like.dtype, like.device.type, seed)
    other = LLMEngine(model, None, EngineConfig(num_blocks=8))
    workload = cases.equal_workload(1, *HOLLOW, model.config.vocab_size, seed)
    warm_up(other, workload)
    return 1e3 * min(statistics.median(serve(other, workload)[1]) for _ in range(3))


def measure_peers(
    bench: Bench, plan: Plan, bm: BenchModel, model: Any, workloads: dict[str, Workload]
) -> None:
    """Measure transformers on the same workloads, within the plan's `peer_seconds`."""
    bench.until = time.monotonic() + plan.peer_seconds
    for ending, workload in workloads.items():
        name = f"transformers-static-throughput-{bm.name}-{ending}"
        bench.attempt(name, partial(_their_throughput, bench, model, name, workload), True, name)


def _their_throughput(bench: Bench, model: Any, name: str, workload: Workload) -> None:
    # On a GPU: kernels and memory for every size of batch that occurs.
    static_batches(model, workload if bench.device == "cuda" else [(prompt, 2) for prompt, _ in workload[:1]])
    synchronize(bench.device)
    began = time.perf_counter()
    answers = static_batches(model, workload)
    seconds = time.perf_counter() - began
    if [len(a) for a in answers] != [osl for _, osl in workload]:
        raise RuntimeError("it wrote answers of the wrong length")
    tokens = sum(map(len, answers))
    add_figure(bench, name, [tokens / seconds], "tok/s", None, tokens=tokens, batch=len(workload))


def measure_model(bench: Bench, plan: Plan, bm: BenchModel | str, peers: bool = True) -> None:
    """Measure our engine, then transformers, on one model, and free its memory."""
    bm = cases.bench_model(bm) if isinstance(bm, str) else bm
    workloads = workloads_of(bm, plan, bench.seed)

    def ours() -> None:
        model = Transformer.random(bm.config, bench.dtype, bench.device, bench.seed)
        engine = make_engine(model, plan)
        measure_ours(bench, plan, bm, engine, workloads)

    bench.attempt(bm.title, ours)
    free_memory(bench.device)
    if peers and bench.value(f"throughput-{bm.name}-{next(iter(workloads))}") is not None:
        what = f"transformers, {bm.title}"
        theirs = bench.attempt(what, partial(random_transformers, bm.config, bench.dtype, bench.device))
        if theirs is not None:
            measure_peers(bench, plan, bm, theirs, workloads)
        del theirs
    free_memory(bench.device)


def free_memory(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
