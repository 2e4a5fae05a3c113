"""A few figures of this machine in a few seconds, under the names that all machines use: the code of the benchmarks with
fewer repeats."""

from collections.abc import Callable
from dataclasses import replace

from phase5_real_gpu.measuring.engine_cases import default_dtype, plan_for
from phase5_real_gpu.measuring.engine_runs import measure_model
from phase5_real_gpu.measuring.gpu_watch import ask
from phase5_real_gpu.measuring.kernel_cases import CPU_DECODE, DECODE_B64
from phase5_real_gpu.measuring.kernel_measure import run_case
from phase5_real_gpu.measuring.kernel_peers import COMPILED, TRITON
from phase5_real_gpu.measuring.machine_limits import measure_limits
from phase5_real_gpu.measuring.measurements import Bench
from phase5_real_gpu.measuring.reference_files import Part, Reference, as_reference


def measure_quickly(device: str, seed: int = 0, tell: Callable[[str], None] = lambda _: None) -> Reference:
    """Measure this machine, in the form of a reference file. Takes a few seconds. tell: called with the name of the next step."""
    tell("ceilings")
    dtype = default_dtype(device)  # no other on a GPU: some have no fast bfloat16
    dtypes = (dtype,) if device == "cuda" else (dtype, "float32")
    bench = Bench(measure_limits(device, dtypes, quick=True), device, dtype, seed)
    tell("engine")
    plan = replace(plan_for(device, quick=True), mixed=(1, 4, 4), repeats=3)
    measure_model(bench, plan, plan.models[0], peers=False)
    tell("attention kernel")
    case, kernel = (CPU_DECODE, COMPILED)
    if device == "cuda":
        case, kernel = replace(DECODE_B64, dtype=bench.dtype), TRITON
    run_case(bench, case, [kernel])
    return as_reference(
        None, device, ask(), name="yours", title="your machine, a quick look",
        command="python phase5_real_gpu/compare_to_reference.py", limits=bench.limits,
        measurements=(*bench.limits.measurements(), *bench.found.values()), quick=True,
        parts=tuple(Part(what, "skipped", error=why) for what, why in bench.left_out.items()),
    )  # fmt: skip
