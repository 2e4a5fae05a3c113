"""The whole engine on this machine: TTFT, ITL and throughput beside their floors and beside transformers.

Three figures are what users and operators feel:

- TTFT, time to first token: how long until the answer begins. Set by prefill, so it depends on ISL, the
  prompt's length: flat while reading the weights takes longer than computing, then in proportion to ISL.
- ITL, inter-token latency: the time from one token to the next. At batch 1 every weight must be read for every
  token, so bytes of the weights / bandwidth is a floor that no program gets below.
- Throughput, tokens a second for all users together. The weights are read once for the whole batch: more
  users cost little, until keys and values or arithmetic take over.

Each figure stands beside the floor worked out from ceilings measured just before, and beside transformers with
the same weights: static batches, and its own continuous batching. On a GPU it runs the shapes of GPT-2,
TinyLlama-1.1B and Llama-3-8B in 16 bit; on a CPU `tales` and GPT-2. Weights are random: speed is not affected.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterable
from typing import Any

import torch

from labkit.lab import Lab, run_lab
from labkit.machine import synchronize
from phase1_tokens_embeddings.memory_math import kv_per_token
from phase2_attention_kvcache.checkpoint import parse_dtype
from phase2_attention_kvcache.sampling_params import SamplingParams
from phase2_attention_kvcache.transformer import Transformer
from phase4_scheduler.engine import EngineConfig, LLMEngine
from phase4_scheduler.engine_config import GPU_SHARE
from phase4_scheduler.packed_linear import can_pack, pack_linear_layers
from phase5_real_gpu.measuring.engine_bench import Bench, path_of
from phase5_real_gpu.measuring.engine_cases import (
    MODEL_NAMES,
    BenchModel,
    Plan,
    Workload,
    bench_model,
    blocks_of,
    decode_floor,
    default_dtype,
    equal_workload,
    mixed_workload,
    num_output_tokens,
    plan_for,
    run_floor,
    ttft_floor,
)
from phase5_real_gpu.measuring.engine_peers import measure_peers, to_transformers
from phase5_real_gpu.measuring.engine_shown import beats_its_floor, check_claims, draw, show_model, show_t4
from phase5_real_gpu.measuring.machine_limits import measure_limits
from phase5_real_gpu.measuring.measurements import put_on_record

BLOCK = 16
# Seconds on a GPU. `measure_machine.py` may stop this script after 270, and all figures would be lost.
PEERS_UNTIL = 210


# ---------------------------------------------------------------------- one model, our engine


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


# ---------------------------------------------------------------------- all of it


def measure_model(bench: Bench, name: str, peers: bool = True) -> None:
    """Our engine, then the others, on one model. Its memory is free again afterwards."""
    bm = bench_model(name)
    workloads = workloads_of(bm, bench.plan, bench.seed)

    def with_model() -> None:
        model = Transformer.random(bm.config, bench.dtype, bench.device, bench.seed)
        # Before packing, which lets the plain weights go.
        theirs = (
            bench.attempt(f"transformers, {bm.title}", lambda: to_transformers(model), True)
            if peers
            else None
        )
        fitting = workloads
        if bench.device == "cuda":
            fitting = that_fit(bench, bm, workloads, GPU_SHARE * torch.cuda.mem_get_info()[0])
        packed = pack_linear_layers(model) if can_pack(model) else model
        engine = make_engine(packed, bench.plan, fitting.values())
        measure_ours(bench, bm, engine, fitting)
        del engine  # its cache makes room for theirs
        free_memory(bench.device)
        if theirs is not None:
            measure_peers(bench, bm, theirs, fitting)

    # Whatever one fails with, the others count.
    bench.attempt(bm.title, with_model, foreign=bench.device == "cuda")
    free_memory(bench.device)


def free_memory(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def story(lab: Lab) -> None:
    began, device = time.monotonic(), lab.device
    dtype = default_dtype(device) if lab.args.dtype == "auto" else lab.args.dtype
    plan = plan_for(device, lab.quick)
    names = tuple(lab.args.models or plan.models)
    limits = measure_limits(device, (dtype,), quick=lab.quick)
    lab.say(f"""Every token costs one reading of the weights. {limits.device_name} reads {limits.read_gb_s:,.0f} GB/s
        and multiplies {limits.matmul_tflops[dtype]:,.3g} TFLOP/s in {dtype}, measured just now. So the shortest
        time of every step is known before it runs.""")
    peers_until = began + PEERS_UNTIL if device == "cuda" else float("inf")
    bench = Bench(device, dtype, plan, limits, lab.seed, peers_until)
    for name in lab.progress(names, "models, a minute or so each" if not lab.quick else "models"):
        measure_model(bench, name, peers=not lab.args.no_peers)

    measured = [bench_model(n) for n in names if bench.value(f"ttft-{n}-isl{plan.isls[0]}") is not None]
    show_t4(lab)
    check_claims(lab, bench, [m.name for m in measured])
    for bm in measured:
        show_model(lab, bench, bm)
    if beaten := beats_its_floor(bench):
        lab.say(f"""{len(beaten)} figures beat their bound, such as {beaten[0]}. So a ceiling was measured too low:
            something else kept this machine busy at that moment. Close it and run again.""")
    if bench.left_out:
        lab.title("Left out")
        lab.show("\n".join(bench.left_out))
    lab.record(limits=limits.to_json(), left_out=bench.left_out)
    put_on_record(lab, bench.by_name.values())
    if measured:
        lab.figure(draw(bench, measured), "engine_benchmark")


def add_arguments(parser: Any) -> None:
    parser.add_argument(
        "--dtype", default="auto", choices=["auto", "float32", "bfloat16", "float16"],
        help="number format (auto: bfloat16, on a GPU older than Ampere float16)",
    )  # fmt: skip
    parser.add_argument("--models", nargs="+", choices=MODEL_NAMES, help="which models (default: by machine)")
    parser.add_argument("--no-peers", action="store_true", help="leave transformers out")


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, ("device", "seed", "quick"), add_arguments, argv)


if __name__ == "__main__":
    raise SystemExit(main())
