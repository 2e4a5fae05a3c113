"""Every attention kernel against the limit of this machine, against its peers, and against plain Python.

A kernel's time in microseconds says little: is 300 good? So two questions come before it. How many bytes have
to be moved, and how many operations done? And how fast does *this* machine move bytes and multiply, measured?
Together they give a floor that no kernel can get under, and a share of it that each one reaches.

Nothing is timed before its answer was checked against Phase 3's vectorised attention: a wrong kernel is easily
a fast one. On a GPU this runs the Triton kernels, each rung of the ladder, PyTorch's SDPA and flex attention,
FlashInfer where it is installed, and the pure-Python reference at a size it can bear. On a CPU it runs Phase 3's
compiled kernel and its peers at GPT-2's shape. (Triton's interpreter would run its kernels there, line by line.
That proves them right and says nothing about speed, so it is not timed.)

Source: Williams, Waterman, Patterson, "Roofline" (2009), for the floor; Phase 2's roofline.py builds it.
"""

import time

from labkit.lab import Lab, run_lab
from phase5_real_gpu.measuring.engine_cases import default_dtype
from phase5_real_gpu.measuring.kernel_measure import Bench
from phase5_real_gpu.measuring.machine_limits import measure_limits
from phase5_real_gpu.measuring.measurements import as_records
from phase5_real_gpu.story.kernel_on_cpu import on_cpu
from phase5_real_gpu.story.kernel_on_gpu import on_gpu
from phase5_real_gpu.story.kernel_tables import show_limits

PEERS_UNTIL = 120  # seconds: no peer that has to be compiled first begins later


def story(lab: Lab) -> None:
    began = time.monotonic()
    device = lab.device
    dtype = "float32" if device == "cpu" else default_dtype(device)
    lab.title("The ceilings of this machine")
    lab.say("""How fast can it read, copy, multiply, start? Whatever follows is held against these four figures,
        measured just now, and not against a data sheet.""")
    limits = measure_limits(device, (dtype,), lab.quick)
    show_limits(lab, limits, dtype)
    seconds = 0.03 if lab.quick else 0.15 if device == "cuda" else 0.3
    bench = Bench(limits, device, seconds, 3 if lab.quick else 5, lab.seed, lab.show, began + PEERS_UNTIL)
    (on_gpu if device == "cuda" else on_cpu)(lab, bench, dtype)
    measurements = as_records([*limits.measurements(), *bench.measurements()])
    lab.record(limits=vars(limits), measurements=measurements, left_out=bench.left_out)


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, options=("device", "seed", "quick"), argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
