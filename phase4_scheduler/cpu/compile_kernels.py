"""Compile the CPU kernels of a step, so that no program waits for that later.

    python -m phase4_scheduler.cpu.compile_kernels

numba compiles a kernel when it is first called, and keeps the machine code beside the source. `make` does it once for float32 and
bfloat16, at the end of the installation. Kernels for quantized weights are compiled when an engine first needs them.

If a kernel's own file changes, numba compiles it anew. It does not notice a change in a function that the kernel calls from
another file. So what was compiled before is thrown away first: run this again after you have changed a kernel.
"""

from multiprocessing import get_context

from labkit.paths import ROOT
from phase2_attention_kvcache.model import SamplingParams
from phase4_scheduler.cpu import choice
from phase4_scheduler.engine import LLMEngine

DTYPES = ("float32", "bfloat16")


def main() -> None:
    for compiled in ROOT.glob("phase*/**/__pycache__/*.nb[ic]"):
        compiled.unlink()
    with get_context("spawn").Pool(2) as pool:
        pool.map(compile_beside_others, DTYPES)
    # Each of the two may have overwritten the other's list of what is compiled: compile again what is missing in it.
    for dtype in DTYPES:
        run_engine(dtype)


def compile_beside_others(dtype: str) -> None:
    # Which way of multiplying is faster shows only while no other process computes: `run_engine` below measures it.
    choice.keep_measured = lambda times: None
    run_engine(dtype)


def run_engine(dtype: str) -> None:
    engine = LLMEngine.from_pretrained("tales", dtype=dtype, device="cpu")
    engine.generate(["Once upon a time"], SamplingParams(max_tokens=2))


if __name__ == "__main__":
    main()
