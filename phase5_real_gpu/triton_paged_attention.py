"""Paged attention on a GPU: three kernels in Triton, and what can be proven about them without one.

A kernel is one small program, started thousands of times at once. Each copy knows its number and finds its own
piece of the work: here one request, one KV head, one split of the context. A GPU is fast because its
multiprocessors work on hundreds of such copies side by side, so the art is to have enough of them, and to let
each fetch its keys and values from memory exactly once.

You will see that the kernels' results equal Phase 3's to the last bit that rounding leaves, by what rule a context
is divided into splits, and the engine of Phase 4 running on them.

Without a GPU the kernels run in Triton's interpreter: the same lines, slowly, on the CPU, one program after the other. That
proves formulas, masks, the walk over the tables and the merging. It shows no race between programs, and says nothing of speed.
`compile_report.py` looks at the machine code and lists what only a card can tell; `kernel_benchmark.py` measures.

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
