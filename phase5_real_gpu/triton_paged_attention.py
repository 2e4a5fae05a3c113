"""Paged attention on a GPU: three kernels in Triton, and what can be checked about them without a GPU.

A kernel is a function that runs as many programs at once. Each program computes from its number which
part of the work is its own: here one request, one KV head, one split of the context. The multiprocessors of a GPU
run hundreds of programs at the same time. A kernel therefore needs enough programs, each of which should
fetch its keys and values from memory exactly once.

You will see that the kernels' results equal Phase 3's except for rounding, the rule that divides a context
into splits, and the engine of Phase 4 with these kernels.

Without a GPU the kernels run in Triton's interpreter: the same code, slowly, on the CPU, one program after the other. This
checks formulas, masks, block tables and the merging. It shows no race between programs and no speed.
`compile_report.py` reads the machine code and lists what only a GPU can show; `kernel_benchmark.py` measures.

Sources: Kwon et al. (2023), section 4.1; Dao, "Flash-Decoding" (2023); Tillet et al., "Triton" (2019).
"""

from labkit.lab import Lab, run_lab
from phase5_real_gpu.story import triton_story as chapters


def story(lab: Lab) -> None:
    device = lab.device
    chapters.where_kernels_run(lab, device)
    chapters.same_numbers(lab, device)
    chapters.how_many_splits(lab)
    chapters.engine_on_kernels(lab, device)


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, options=("device", "seed", "quick"), argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
