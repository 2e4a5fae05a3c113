"""The tables that kernel_benchmark.py shows."""

from collections.abc import Sequence

from labkit.lab import Lab
from phase5_real_gpu.measuring.kernel_measure import Result
from phase5_real_gpu.measuring.machine_limits import MachineLimits


def show_limits(lab: Lab, limits: MachineLimits, dtype: str) -> None:
    rate = limits.matmul_tflops[dtype]
    rows = [
        ["read memory", limits.read_gb_s, "GB/s"],
        ["copy memory (read + written)", limits.copy_gb_s, "GB/s"],
        [f"large matrix product, {dtype}", *((rate, "TFLOP/s") if rate >= 1 else (1000 * rate, "GFLOP/s"))],
        ["start an operation on one number", limits.launch_us, "us"],
    ]
    if limits.h2d_gb_s:
        rows.append(["main memory to GPU (pinned)", limits.h2d_gb_s, "GB/s"])
    lab.table(limits.device_name, ["ceiling", "value", "unit"], rows)


def show_results(lab: Lab, title: str, results: Sequence[Result], in_tera: bool) -> None:
    rows = []
    for before, r in zip([None, *results], results):
        m = r.measurement
        case = "" if before and before.case == r.case else r.case
        share = "-" if m.share_of_limit is None else f"{m.share_of_limit:.1%} of {m.limit}"
        rows.append([case, r.runner, m.value, r.gb_s, r.tflop_s * (1 if in_tera else 1000), share])
    if rows:
        lab.table(
            title, ["case", "kernel", "us", "GB/s", "TFLOP/s" if in_tera else "GFLOP/s", "reached"], rows,
            note="Medians. GB/s counts each key and value once, whatever a kernel really reads. Reached: the shortest "
            "time that this machine allows, divided by the time taken. Each answer was checked first.",
        )  # fmt: skip
