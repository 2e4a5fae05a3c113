"""The memories of a machine: how fast each delivers the numbers of a model, and how long one number takes.

A large model has gigabytes of weights, and no cache holds that: for each token of a request, all weights come from main
memory. So one figure decides how fast a model can decode: the bytes that memory delivers per second.

You will see bandwidth and latency measured on this machine (on a GPU: L1, L2, its own memory, the bus to the main
memory; on a CPU: L1, L2, L3, main memory), then where the bytes of one decode step are, how long each part takes to
move, and the tokens per second that follow. The floor of every decode kernel of this phase comes from here.
"""

from dataclasses import asdict

from labkit.lab import Lab, run_lab
from phase5_real_gpu.measuring.engine_cases import default_dtype
from phase5_real_gpu.measuring.machine_limits import measure_limits
from phase5_real_gpu.measuring.measurements import Measurement, as_records
from phase5_real_gpu.story.memory_story import levels_of, where_bytes_live


def story(lab: Lab) -> None:
    device = lab.device
    dtype = "float32" if device == "cpu" else default_dtype(device)
    lab.say("""A processor computes faster than its memory can deliver. Caches between the two, small and fast
        memories, keep the data that was used last. How much faster are they?""")
    limits = measure_limits(device, (dtype,), lab.quick)
    levels = levels_of(lab, limits, device)
    measurements = limits.measurements()
    for name in ("L1", "L2", "L3"):
        if name in levels:
            point = levels[name]
            who = "all multiprocessors" if device == "cuda" else "one core"
            details = {"bytes": point.size, "jump_ns": point.jump_ns, "who": who}
            measurements.append(
                Measurement(f"cache-{name.lower()}", point.gb_s, "GB/s", "higher", details=details)
            )
    lab.record(limits=asdict(limits), measurements=as_records(measurements))
    where_bytes_live(lab, limits, levels)


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, options=("device", "quick"), argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
