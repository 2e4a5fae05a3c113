"""A few figures of this machine in a few seconds, under the names that all machines use.

The same code as that of the benchmarks with fewer repeats: the ceilings, the engine on a small model, one attention kernel.
"""

from collections.abc import Callable
from dataclasses import replace

import torch

from phase5_real_gpu.measuring.engine_cases import Plan, bench_model, default_dtype, plan_for
from phase5_real_gpu.measuring.engine_runs import measure_model
from phase5_real_gpu.measuring.gpu_watch import ask
from phase5_real_gpu.measuring.kernel_cases import CPU_DECODE, DECODE_B64
from phase5_real_gpu.measuring.kernel_measure import run_case
from phase5_real_gpu.measuring.kernel_peers import COMPILED, GATHER, TRITON
from phase5_real_gpu.measuring.machine_limits import measure_limits
from phase5_real_gpu.measuring.measurements import Bench
from phase5_real_gpu.measuring.reference_files import Limits, Reference, as_reference

DTYPES = {"cpu": ("bfloat16", "float32"), "cuda": ("bfloat16", "float16")}


def measure_quickly(
    device: str, seed: int = 0, tell: Callable[[str], None] = lambda _: None, plan: Plan | None = None
) -> Reference:
    """The machine at hand, as if read from a file. Takes a few seconds.

    Args:
        tell: called with the next step. plan: of the engine; None: `plan_for`, quick.
    """
    tell("ceilings")
    bench = Bench(measure_limits(device, DTYPES[device], quick=True), device, default_dtype(device), seed)
    tell("engine")
    plan = plan or replace(plan_for(device, quick=True), mixed=(1, 4, 4), repeats=3)
    measure_model(bench, plan, bench_model(plan.models[0]), peers=False)
    tell("attention kernel")
    case, kernel = (DECODE_B64, TRITON) if device == "cuda" else (CPU_DECODE, COMPILED)
    if device == "cpu" or torch.cuda.get_device_capability() >= (8, 0):  # the case is in bfloat16
        run_case(bench, case, [kernel])
        path = "kernel"
        if (
            case.name not in bench.found
        ):  # no compiler, a wrong answer, no memory: the general way in its place
            run_case(bench, case, [replace(GATHER, prefix="")])
            path = "gather"
        if m := bench.found.get(case.name):
            bench.add(replace(m, details=m.details | {"path": path}))
    limits = bench.limits
    return as_reference(
        None, device, ask(), name="yours", title="your machine, a quick look",
        command="python phase5_real_gpu/compare_to_reference.py",
        limits=Limits(limits.read_gb_s, limits.copy_gb_s, limits.matmul_tflops, limits.launch_us),
        measurements=(*limits.measurements(), *bench.found.values()), quick=True,
    )  # fmt: skip
