"""The engine's measured runs: latency and throughput of ours."""

import gc
import statistics
import time
from collections.abc import Iterable

import torch

from labkit.machine import synchronize
from phase1_tokens_embeddings.weights import kv_per_token
from phase2_attention_kvcache.model import SamplingParams, Transformer
from phase2_attention_kvcache.model.checkpoint import parse_dtype
from phase4_scheduler.engine import EngineConfig, LLMEngine
from phase4_scheduler.engine.build import GPU_SHARE, prepare_weights
from phase5_real_gpu.measuring.engine_bench import Bench, path_of
from phase5_real_gpu.measuring.engine_cases import (
    BenchModel,
    Plan,
    Workload,
    bench_model,
    blocks_of,
    decode_floor,
    equal_workload,
    mixed_workload,
    num_output_tokens,
    run_floor,
    ttft_floor,
)
from phase5_real_gpu.measuring.engine_peers import measure_peers, to_transformers

BLOCK = 16


# Seconds on a GPU. `measure_machine.py` may stop this script after 270, and all figures would be lost.
PEERS_UNTIL = 210


def workloads_of(model: BenchModel, plan: Plan, seed: int) -> dict[str, Workload]:
    """By the ending of the measurement's name: b1, b8, ..., mixed64."""
    vocab = model.config.vocab_size
    runs = {f"b{b}": equal_workload(b, plan.isl, plan.osl, vocab, seed) for b in plan.batches}
    count, low, high = plan.mixed
    return runs | {f"mixed{count}": mixed_workload(count, low, high, vocab, seed)}


def make_engine(model: Transformer, plan: Plan, workloads: Iterable[Workload]) -> LLMEngine:
    """An engine whose cache holds the largest workload and the longest prompt. No prefix caching."""
    isl = max(i for i in plan.isls if i < model.config.max_context)
    blocks = max(*(blocks_of(w, BLOCK) for w in workloads), isl // BLOCK + 2)
    config = EngineConfig(
        max_num_seqs=max(max(plan.batches), plan.mixed[0]), max_num_batched_tokens=plan.step_tokens,
        num_blocks=blocks + 1, block_size=BLOCK, enable_prefix_caching=False,
    )  # fmt: skip
    return LLMEngine(model, None, config)


def serve(engine: LLMEngine, workload: Workload) -> tuple[float, list[float]]:
    """Seconds from the first arrival to the last token, and all ITLs in seconds.

    Raises:
        RuntimeError: an answer has not the length asked for. (Then the figure would be wrong.)
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


def that_fit(
    bench: Bench, bm: BenchModel, workloads: dict[str, Workload], free_bytes: float
) -> dict[str, Workload]:
    """The workloads whose keys and values fit into the memory that is left. The others are left out.

    Raises:
        MemoryError: none does.
    """
    block_bytes = BLOCK * kv_per_token(bm.config, parse_dtype(bench.dtype).itemsize)
    fitting = {}
    for ending, workload in workloads.items():
        needed = block_bytes * blocks_of(workload, BLOCK)
        if needed <= free_bytes:
            fitting[ending] = workload
        else:
            bench.left_out.append(
                f"{bm.title}, {ending}: keys and values need {needed / 1e9:.1f} GB, {free_bytes / 1e9:.1f} are left"
            )
    if not fitting:
        raise MemoryError
    return fitting


def measure_ours(bench: Bench, bm: BenchModel, engine: LLMEngine, workloads: dict[str, Workload]) -> None:
    """TTFT of each length, then each workload. One that fails for want of memory does not stop the others."""
    for isl in bench.plan.isls:
        what = f"TTFT of {isl:,} tokens, {bm.title}"
        if isl + 1 > bm.config.max_context:
            bench.left_out.append(f"{what}: its context is {bm.config.max_context:,}")
            continue
        bench.attempt(what, lambda isl=isl: _ttft(bench, bm, engine, isl))
    for ending, workload in workloads.items():
        what = f"throughput of {len(workload)} requests, {bm.title}"
        bench.attempt(what, lambda ending=ending, w=workload: _throughput(bench, bm, engine, ending, w))


def _ttft(bench: Bench, bm: BenchModel, engine: LLMEngine, isl: int) -> None:
    prompt = equal_workload(1, isl, 1, bm.config.vocab_size, bench.seed)
    warm_up(engine, prompt)
    seconds = [serve(engine, prompt)[0] for _ in range(bench.plan.repeats + 1)]
    floor = ttft_floor(bm.config, isl, bench.limits, bench.dtype)
    bench.add(
        f"ttft-{bm.name}-isl{isl}", [1e3 * s for s in seconds], "ms", floor, isl=isl, path=path_of(engine)
    )


def _throughput(bench: Bench, bm: BenchModel, engine: LLMEngine, ending: str, workload: Workload) -> None:
    plan, tokens = bench.plan, num_output_tokens(workload)
    warm_up(engine, workload)
    runs = [serve(engine, workload) for _ in range(plan.repeats)]
    floor, details = None, dict(batch=len(workload), path=path_of(engine))
    if not ending.startswith("mixed"):
        floor = run_floor(bm.config, len(workload), plan.isl, plan.osl, bench.limits, bench.dtype)
        itls = [1e3 * statistics.median(itls) for _, itls in runs]
        step = decode_floor(bm.config, len(workload), plan.isl + plan.osl // 2, bench.limits, bench.dtype)
        bench.add(f"itl-{bm.name}-{ending}", itls, "ms", step, context=plan.isl + plan.osl // 2, **details)
    name = f"throughput-{bm.name}-{ending}"
    bench.add(name, [tokens / s for s, _ in runs], "tok/s", floor, tokens=tokens, **details)


def measure_model(bench: Bench, name: str, peers: bool = True) -> None:
    """Our engine, then the others, on one model. Its memory is free again afterwards."""
    bm = bench_model(name)

    def with_model() -> None:
        workloads = workloads_of(bm, bench.plan, bench.seed)
        model = Transformer.random(bm.config, bench.dtype, bench.device, bench.seed)
        theirs = None
        if peers:  # before packing, which lets the plain weights go
            theirs = bench.attempt(f"transformers, {bm.title}", lambda: to_transformers(model), foreign=True)
        if bench.device == "cuda":
            workloads = that_fit(bench, bm, workloads, GPU_SHARE * torch.cuda.mem_get_info()[0])
        engine = make_engine(prepare_weights(model), bench.plan, workloads.values())
        measure_ours(bench, bm, engine, workloads)
        del engine  # its cache makes room for theirs
        free_memory(bench.device)
        if theirs is not None:
            measure_peers(bench, bm, theirs, workloads)

    # Whatever one fails with, the others count.
    bench.attempt(bm.title, with_model, foreign=bench.device == "cuda")
    free_memory(bench.device)


def free_memory(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
