"""Every attention kernel against the limit of this machine, against its peers, and against plain Python.

A kernel's time in microseconds alone says little: is 300 good? The number of bytes and operations, and the measured speed of
*this* machine, give a floor that no kernel can beat, and each kernel reaches a share of it.

Each result is checked against Phase 2's attention before it is timed: a wrong kernel is easily
a fast one. On a GPU this runs the Triton kernels, each rung of the ladder, PyTorch's SDPA,
FlashInfer where it is installed, and plain Python at a small size. On a CPU it runs Phase 3's
compiled kernel and its peers at GPT-2's shape. (Triton's interpreter checks results there and says nothing about
speed, so it is not timed.)

Source: Williams, Waterman, Patterson, "Roofline" (2009), for the floor; Phase 2's roofline.py builds it.
"""

import argparse
import time

from labkit.lab import Lab, run_lab
from phase5_real_gpu.measuring.engine_cases import default_dtype
from phase5_real_gpu.measuring.machine_limits import open_bench
from phase5_real_gpu.story.kernel_story import on_cpu, on_gpu, show_limits

PEERS_UNTIL = 120  # seconds: no peer that has to be compiled first begins later


def story(lab: Lab) -> None:
    began = time.monotonic()
    device = lab.device
    dtype = "float32" if device == "cpu" else default_dtype(device)
    lab.title("The ceilings of this machine")
    lab.say("""How fast does it read, copy, multiply, and start an operation? All later figures are compared with these
        four measurements, not with a data sheet.""")
    bench = open_bench(device, dtype, lab.quick, lab.seed, lab.args.json if lab.args.resume else None)
    bench.seconds = 0.03 if lab.quick else 0.15 if device == "cuda" else 0.3
    bench.until, bench.tell = began + PEERS_UNTIL, lab.show
    bench.save = lambda bench: lab.save(**bench.results())
    show_limits(lab, bench.limits)
    (on_gpu if device == "cuda" else on_cpu)(lab, bench)
    lab.record(**bench.results())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--resume", action="store_true", help="keep the figures that the file of --json holds already"
    )


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, ("device", "seed", "quick"), add_arguments, argv)


if __name__ == "__main__":
    raise SystemExit(main())
