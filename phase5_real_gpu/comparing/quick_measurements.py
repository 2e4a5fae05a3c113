"""A few figures of this machine in a few seconds: enough to compare, under the names that all machines use.

The full measurement (`measure_machine.py`) takes minutes. This one runs the same code with fewer repeats: the
ceilings, the engine on a small model, one attention kernel. It also keeps what explains a figure: every gap
between two tokens, and which path the engine took.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from labkit.machine import environment
from phase2_attention_kvcache.model import Transformer
from phase2_attention_kvcache.model.roofline import hollow
from phase4_scheduler.engine import Event, LLMEngine
from phase4_scheduler.engine.build import prepare_weights
from phase5_real_gpu.measuring import kernel_measure
from phase5_real_gpu.measuring.engine_bench import Bench, path_of
from phase5_real_gpu.measuring.engine_cases import Plan, bench_model, default_dtype, equal_workload, plan_for
from phase5_real_gpu.measuring.engine_runs import make_engine, measure_ours, serve, warm_up, workloads_of
from phase5_real_gpu.measuring.gather import as_reference
from phase5_real_gpu.measuring.gpu_watch import ask
from phase5_real_gpu.measuring.kernel_cases import CPU_DECODE, DECODE_B64
from phase5_real_gpu.measuring.kernel_peers import COMPILED, GATHER, TRITON
from phase5_real_gpu.measuring.machine_limits import MachineLimits, measure_limits
from phase5_real_gpu.measuring.measurements import Measurement
from phase5_real_gpu.measuring.reference_files import Limits, Reference

ITL_TOKENS, ROUNDS = 100, 3
DTYPES = {"cpu": ("bfloat16", "float32"), "cuda": ("bfloat16", "float16")}
Tell = Callable[[str], None]


def measure_gaps(engine: LLMEngine, seed: int = 0) -> tuple[list[float], dict[str, Any]]:
    """Seconds from each token to the next for a request that is alone, and what to note beside them."""
    workload = equal_workload(1, 16, ITL_TOKENS + 1, engine.model.config.vocab_size, seed)
    warm_up(engine, workload)
    events: list[Event] = []
    engine.record(events.append)
    gaps = serve(engine, workload)[1]
    engine.record(None)
    return gaps, gap_details(gaps, events) | {"path": path_of(engine)}


def gap_details(gaps: Sequence[float], events: Iterable[Event]) -> dict[str, Any]:
    """What explains an ITL: all gaps in seconds, the 99th percentile in ms, and how many steps wrote a token
    for one request while they computed a prompt of another."""
    p99 = 1e3 * statistics.quantiles(gaps, n=100)[98]
    mixed = sum(1 in (tokens := e["tokens"].values()) and max(tokens) > 1 for e in events)
    return dict(seconds=[round(g, 7) for g in gaps], p99=p99, prefill_steps=mixed)


def measure_engine(device: str, limits: MachineLimits, dtype: str, seed: int = 0) -> list[Measurement]:
    """TTFT, ITL and throughput of a small model (a GPU: TinyLlama's shape)."""
    plan = plan_for(device, quick=True)
    bm = bench_model(plan.models[0])
    model = Transformer.random(bm.config, dtype, device, seed)
    workloads = {k: w for k, w in workloads_of(bm, plan, seed).items() if k.startswith("b")}
    engine = make_engine(prepare_weights(model), plan, workloads.values())
    bench = Bench(device, dtype, plan, limits, seed)
    measure_ours(bench, bm, engine, workloads)
    if m := bench.by_name.get(f"itl-{bm.name}-b1"):
        # In turn, and the quieter round of each: what else the machine does may last for seconds.
        hollow = _hollow_engine(model, plan)
        rounds = [(measure_gaps(engine, seed), measure_gaps(hollow, seed)) for _ in range(ROUNDS)]
        (gaps, details), (bare, _) = (
            min(same, key=lambda found: statistics.median(found[0])) for same in zip(*rounds)
        )
        details["fixed_ms"] = 1e3 * statistics.median(bare)
        bench.by_name[m.name] = replace(m, value=1e3 * statistics.median(gaps), details=m.details | details)
    return list(bench.by_name.values())


def _hollow_engine(model: Transformer, plan: Plan) -> LLMEngine:
    """An engine whose steps have as many layers as the model's, and next to nothing to read or to multiply."""
    config = replace(hollow(model.config), max_context=model.config.max_context)
    small = Transformer.random(config, model.dtype, model.device)
    workload = equal_workload(1, 16, ITL_TOKENS + 1, config.vocab_size, 0)
    return make_engine(prepare_weights(small), plan, [workload])


def measure_kernel(device: str, limits: MachineLimits, tell: Tell = lambda _: None) -> list[Measurement]:
    """Decode attention for many users: the kernel, or, if there is none here, the general way in its place."""
    case, runner = (DECODE_B64, TRITON) if device == "cuda" else (CPU_DECODE, COMPILED)
    bench = kernel_measure.Bench(limits, device, seconds=0.1, tell=tell)
    for path, way in (("kernel", runner), ("gather", GATHER)):
        # No compiler, a wrong answer, no memory: it says so, and the next way is tried.
        bench.run_case(case, [way])
        for m in bench.measurements():
            return [replace(m, name=case.name, details=m.details | {"path": path})]
    return []  # the engine's figures have to do


def measure_quickly(device: str, seed: int = 0, tell: Tell = lambda _: None) -> Reference:
    """The machine at hand, as if read from a file. Takes a few seconds.

    Args:
        tell: called with what comes next.
    """
    tell("ceilings")
    limits = measure_limits(device, DTYPES[device], quick=True)
    tell("engine")
    measurements = limits.measurements() + measure_engine(device, limits, default_dtype(device), seed)
    tell("attention kernel")
    if device == "cpu" or torch.cuda.get_device_capability() >= (8, 0):  # the case is in bfloat16
        measurements += measure_kernel(device, limits, tell)
    return as_reference(
        environment(),
        device,
        ask(),
        name="yours",
        title="your machine, a quick look",
        command="python phase5_real_gpu/compare_to_reference.py",
        limits=Limits(limits.read_gb_s, limits.copy_gb_s, limits.matmul_tflops, limits.launch_us),
        measurements=tuple(measurements),
        quick=True,
    )
