"""The parts of a measurement in their order, and the expected range of each figure on a known card.

A range extends from a share of a data sheet's limit, which a working setup reaches, to the limit itself (for GEMMs a tenth more,
because cards boost above the clock of their data sheet). A figure outside its range shows where to look first.

Sources of the ceilings (`CARDS`, phase 1): NVIDIA's data sheets of H200 (nvidia.com/en-us/data-center/h200), H100
(.../h100), A100 (.../a100), L4 (.../l4) and T4 (.../tesla-t4), and the whitepaper of the Ada architecture for the RTX 4090.
"""

import re
from typing import NamedTuple

from phase1_tokens_embeddings.weights import CARDS
from phase1_tokens_embeddings.weights.cards import Card
from phase5_real_gpu.measuring.engine_cases import bench_model, step_floor
from phase5_real_gpu.measuring.kernel_cases import DECODE_B64, PREFILL_8K
from phase5_real_gpu.measuring.measurements import Limits
from phase5_real_gpu.measuring.steps import Step

TOTAL_SECONDS = 590
TESTS = "tests/phase5_real_gpu"
REPORT = ("--device", "cuda", "--json", "{report}")
QUICK = (*REPORT, "--quick", "--resume")

FIRST_CONTACT = (
    Step("doctor", "driver, compiler and packages are there", 20, ("-m", "labkit.command", "doctor")),
    Step("graphs", "CUDA graphs give what plain steps give, in 32 and 16 bits", 60,
         ("-m", "pytest", "-q", "-p", "no:cacheprovider", f"{TESTS}/test_gpu_runner.py", "-k", "cuda_graphs")),
    Step("proof", "the three kernels against plain attention, and the engine on them", 60,
         ("phase5_real_gpu/triton_paged_attention.py", "--device", "cuda", "--quick")),
    Step("kernels", "read bandwidth, and every kernel once", 90, ("phase5_real_gpu/kernel_benchmark.py", *QUICK)),
    Step("engine", "TTFT, ITL and throughput of TinyLlama's shape", 80,
         ("phase5_real_gpu/engine_benchmark.py", *QUICK, "--no-peers")),
    Step("memory", "caches and memory", 40, ("phase5_real_gpu/memory_hierarchy.py", *REPORT)),
    Step("tests", "all kernels in all number formats, against plain torch", 60,
         ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "4", f"{TESTS}/fused", f"{TESTS}/kernels")),
    Step("kernels-in-full", "every kernel, timed longer", 80,
         ("phase5_real_gpu/kernel_benchmark.py", *REPORT, "--resume")),
    Step("llama", "the shape of Llama-3 8B", 80,
         ("phase5_real_gpu/engine_benchmark.py", *QUICK, "--no-peers", "--models", "llama3-8b")),
    Step("compare", "beside published figures", 20, ("phase5_real_gpu/compare_to_reference.py", "{gathered}")),
)  # fmt: skip


def everything(device: str, quick: bool) -> tuple[Step, ...]:
    """All measurements of a machine. device: "auto", "cpu" or "cuda"."""

    def step(name: str, shows: str, seconds: float, script: str, *more: str) -> Step:
        options = ("--device", device, "--json", "{report}", *["--quick"] * quick, *more)
        return Step(name, shows, seconds, (f"phase5_real_gpu/{script}", *options))

    parts = (
        ("memory", "caches and memory", 70, "memory_hierarchy.py"),
        ("kernels", "attention kernels and their peers", 200, "kernel_benchmark.py", "--resume"),
        ("engine", "TTFT, ITL and throughput of the engine", 320, "engine_benchmark.py", "--resume"),
    )
    return tuple(step(*part) for part in parts)


T4_TFLOPS = 8.1  # in float32: Triton writes no matrix instructions before sm_80 (`compile_report.py`)


class Expected(NamedTuple):
    """From `low` to `high`; `low` is None where the model does not fit into the card's memory."""

    low: float | None
    high: float
    unit: str


def card_of(name: str) -> Card | None:
    """The data sheet for a driver's name, such as "NVIDIA H100 80GB HBM3"; None if it is another card, or another form of one."""
    found = [(r"\bH200", "h200"), ("H100.*HBM3", "h100"), ("A100.*80GB", "a100-80"), ("A100.*40GB", "a100-40"),
             ("RTX 4090$", "rtx4090"), (r"\bL4$", "l4"), (r"\bT4$", "t4")]  # fmt: skip
    other_form = re.search("PCIe|NVL|Laptop|MIG", name)
    return next((CARDS[key] for text, key in found if re.search(text, name) and not other_form), None)


def expected_on(card: Card) -> dict[str, Expected]:
    """By the name of the figure."""
    dtype, of_kernels = ("float16", T4_TFLOPS) if card.name == "t4" else ("bfloat16", card.tensor_tflops)
    limits = Limits(card.bandwidth_gb_s, card.bandwidth_gb_s, {dtype: of_kernels})
    rates = {
        "read-bandwidth": (card.bandwidth_gb_s, 0.75, "GB/s"),
        f"matmul-{dtype}": (card.tensor_tflops, 0.5, "TFLOP/s"),
    }
    boost = {"TFLOP/s": 1.1}
    found = {
        name: Expected(share * most, boost.get(unit, 1) * most, unit)
        for name, (most, share, unit) in rates.items()
    }
    for case, share in ((DECODE_B64, 0.6), (PREFILL_8K, 0.2)):
        us = 1e6 * limits.floor(case.work, dtype).seconds
        found[case.name] = Expected(us, us / share, "us")
    for name, share in (("tinyllama", 0.3), ("llama3-8b", 0.5)):
        config = bench_model(name).config
        ms = 1e3 * step_floor(config, 1, limits, dtype, context=144).seconds
        fits = 2 * config.num_parameters < 0.9 * card.memory_bytes
        found[f"itl-{name}-b1"] = Expected(ms if fits else None, ms / share, "ms")
    return found
