"""The first ten minutes on a card: what is run, in which order, and what each part should bring.

Expected values are a data sheet's ceilings times a share. The upper end is the ceiling itself, which no program passes; the
lower end is what a sound setup still reaches. A figure outside is no verdict: it says where to look first.

Sources of the ceilings (`CARDS`, phase 1): NVIDIA's data sheets of H200 (nvidia.com/en-us/data-center/h200), H100
(.../h100), A100 (.../a100), L4 (.../l4) and T4 (.../tesla-t4), and the whitepaper of the Ada architecture for the RTX 4090.
"""

import json
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from labkit.paths import ROOT, write_whole
from phase1_tokens_embeddings.weights import CARDS
from phase1_tokens_embeddings.weights.cards import Card
from phase5_real_gpu.measuring.engine_cases import bench_model, decode_floor
from phase5_real_gpu.measuring.gpu_watch import watch_card
from phase5_real_gpu.measuring.kernel_cases import DECODE_B64, PREFILL_8K
from phase5_real_gpu.measuring.machine_limits import MachineLimits
from phase5_real_gpu.measuring.measure_all import Gathered, last_words, run_until
from phase5_real_gpu.measuring.reference_files import Part

TOTAL_SECONDS = 590
TESTS = "tests/phase5_real_gpu"
BENCHMARK = ("--device", "cuda", "--quick", "--resume", "--json", "{report}")


@dataclass(frozen=True)
class Step:
    """A part: a command for Python, and the seconds after which it is stopped.

    Attributes:
        shows: what it shows. command: "{report}" is the file of its figures, "{gathered}" that of all so far.
    """

    name: str
    shows: str
    seconds: float
    command: tuple[str, ...]


STEPS = (
    Step("doctor", "driver, compiler and packages are there", 20, ("-m", "labkit.command", "doctor")),
    Step("graphs", "CUDA graphs give what plain steps give", 60,
         ("-m", "pytest", "-q", "-p", "no:cacheprovider", f"{TESTS}/test_gpu_runner.py", "-k", "cuda_graphs")),
    Step("proof", "the three kernels against plain attention, and the engine on them", 60,
         ("phase5_real_gpu/triton_paged_attention.py", "--device", "cuda", "--quick")),
    Step("kernels", "read bandwidth, and every kernel once", 90, ("phase5_real_gpu/kernel_benchmark.py", *BENCHMARK)),
    Step("engine", "TTFT, ITL and throughput of TinyLlama's shape", 80,
         ("phase5_real_gpu/engine_benchmark.py", *BENCHMARK, "--no-peers")),
    Step("machine", "memories and kernels in full", 150,
         ("phase5_real_gpu/measure_machine.py", "--device", "cuda", "--parts", "memory,kernels", "--resume", "--seconds", "145",
          "--out", "{report}")),
    Step("llama", "the shape of Llama-3 8B", 90,
         ("phase5_real_gpu/engine_benchmark.py", *BENCHMARK, "--no-peers", "--models", "llama3-8b")),
    Step("compare", "beside published figures", 20, ("phase5_real_gpu/compare_to_reference.py", "{gathered}")),
)  # fmt: skip


class Expected(NamedTuple):
    """From `low` to `high`; `low` is None where the model does not fit into the card's memory."""

    low: float | None
    high: float
    unit: str


def card_of(name: str) -> Card | None:
    """The data sheet for a driver's name, such as "NVIDIA H100 80GB HBM3"; None if it is another card, or another form of one."""
    found = [("H200", "h200"), ("H100.*HBM3", "h100"), ("A100.*80GB", "a100-80"), ("A100.*40GB", "a100-40"),
             ("RTX 4090$", "rtx4090"), (r"\bL4$", "l4"), (r"\bT4$", "t4")]  # fmt: skip
    other_form = re.search("PCIe|NVL|Laptop", name)
    return next((CARDS[key] for text, key in found if re.search(text, name) and not other_form), None)


def expected_on(card: Card) -> dict[str, Expected]:
    """By the name of the figure."""
    dtype = "float16" if card.name == "t4" else "bfloat16"
    limits = MachineLimits(card.bandwidth_gb_s, card.bandwidth_gb_s, {dtype: card.tensor_tflops})
    rates = {
        "read-bandwidth": (card.bandwidth_gb_s, 0.75, "GB/s"),
        f"matmul-{dtype}": (card.tensor_tflops, 0.5, "TFLOP/s"),
    }
    found = {name: Expected(share * most, most, unit) for name, (most, share, unit) in rates.items()}
    for case, share in ((DECODE_B64, 0.6), (PREFILL_8K, 0.2)):
        us = 1e6 * limits.floor(case.work, dtype).seconds
        found[case.name] = Expected(us, us / share, "us")
    for name, share in (("tinyllama", 0.3), ("llama3-8b", 0.5)):
        config = bench_model(name).config
        ms = 1e3 * decode_floor(config, 1, 144, limits, dtype).seconds
        fits = 2 * config.num_parameters < 0.9 * card.memory_bytes
        found[f"itl-{name}-b1"] = Expected(ms if fits else None, ms / share, "ms")
    return found


def run_steps(
    folder: Path,
    save: Callable[[Gathered], None],
    tell: Callable[[Step, Part | None, Gathered], None],
    seconds: float = TOTAL_SECONDS,
    again: bool = False,
) -> Gathered:
    """Run all parts, one after the other, each in a process of its own. Parts that an earlier run has finished are kept.

    Args:
        folder: for logs, reports and `done.json`. save: called after each part.
        tell: called before each part, with None, and after it. again: forget the earlier run.
    """
    done_file, gathered, deadline = folder / "done.json", Gathered(), time.monotonic() + seconds
    if again:
        for file in folder.glob("*.json"):
            file.unlink()
    done: dict[str, dict] = {}
    with suppress(OSError, ValueError):
        done = json.loads(done_file.read_text(encoding="utf-8"))
    with watch_card() as gathered.card:
        for step in STEPS:
            report = folder / f"{step.name}.json"
            part = Part(**done[step.name]) if step.name in done else None
            if part is None or part.outcome != "ok":
                tell(step, None, gathered)
                part = run_step(step, folder, report, min(step.seconds, deadline - time.monotonic()))
            with suppress(OSError, ValueError):
                found = json.loads(report.read_text(encoding="utf-8"))
                found = (
                    found if "results" in found else {"results": found}
                )  # a reference file is the figures alone
                for measured in found["results"].get("measurements", ()):
                    gathered.measurements.pop(
                        measured["name"], None
                    )  # what is measured later, is measured longer
                gathered.merge(found)
            gathered.parts.append(part)
            done[step.name] = vars(part)
            write_whole(done_file, json.dumps(done, indent=1))
            save(gathered)
            tell(step, part, gathered)
    return gathered


def run_step(step: Step, folder: Path, report: Path, seconds: float) -> Part:
    """One part, and how it went. Its output is in the folder."""
    if seconds < 1:
        return Part(step.name, "skipped", error="no time was left for it")
    log, began = folder / f"{step.name}.txt", time.monotonic()
    names = {"report": str(report), "gathered": str(folder / "machine.json")}
    command = [sys.executable, *(word.format(**names) for word in step.command)]
    with log.open("wb") as said:
        code = run_until(command, said, seconds, ROOT)
    took = round(time.monotonic() - began, 1)
    if code is None:
        return Part(step.name, "timed out", took, f"stopped after {seconds:.0f} s")
    if code:
        return Part(step.name, "failed", took, f"it ended with code {code}: {last_words(log)}")
    return Part(step.name, "ok", took)
