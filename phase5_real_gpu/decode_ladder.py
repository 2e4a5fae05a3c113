"""Decode attention as a ladder: seven versions of one kernel, one change at a time, and the expected gain of each.

In a decode step a GPU reads every key and value of every request once and multiplies each with a query: a few
microseconds of arithmetic, and a long wait for memory. So a good kernel requests each byte once, requests
many at a time and before it needs them, and keeps all multiprocessors requesting. The ladder adds one of these at a
time. Each rung is a small kernel to read (ladder_kernels.py); the engine uses the last one.

You will see that all rungs give the same result, the counted bytes that each requests, and the gain that follows.
Without a GPU the kernels run in Triton's interpreter, which is slow. `kernel_benchmark.py` times them on a GPU.
"""

from labkit.lab import Lab, run_lab
from phase5_real_gpu.kernels.triton_setup import INTERPRETED, require_triton
from phase5_real_gpu.story.ladder_figures import draw_work
from phase5_real_gpu.story.ladder_story import rungs, same_answer


def story(lab: Lab) -> None:
    require_triton()
    device = lab.device
    if device == "cpu" and not INTERPRETED:
        device = "cuda"  # compiled kernels cannot read the CPU's memory
    rungs(lab)
    same_answer(lab, device)
    if device == "cuda":
        lab.say("kernel_benchmark.py times the rungs on this card.")
    else:
        lab.cannot_measure(
            claim="ladder-speed",
            question="what each rung gains in time, in microseconds and in GB/s of keys and values",
            needs="GPU",
            remedy="The interpreter shows what a kernel computes and loads, not its speed. Run "
            "kernel_benchmark.py on a machine with a CUDA GPU; reference/ holds published figures.",
        )
    lab.figure(draw_work(), "decode_ladder")


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, options=("device", "seed", "quick"), argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
