"""The whole engine on this machine: TTFT, ITL and throughput beside their floors and beside transformers.

Three figures are what users and operators feel:

- TTFT, time to first token: how long until the answer begins. Set by prefill, so it depends on ISL, the
  prompt's length: flat while reading the weights takes longer than computing, then in proportion to ISL.
- ITL, inter-token latency: the time from one token to the next. At batch 1 every weight must be read for every
  token, so bytes of the weights / bandwidth is a floor that no program gets below.
- Throughput, tokens a second for all users together. The weights are read once for the whole batch: more
  users cost little, until keys and values or arithmetic take over.

Each figure stands beside the floor worked out from ceilings measured just before, and beside transformers with
the same weights: static batches, and its own continuous batching. On a GPU it runs the shapes of GPT-2,
TinyLlama-1.1B and Llama-3-8B in 16 bit; on a CPU `tales` and GPT-2. Weights are random: speed is not affected.
"""

import time
from typing import Any

from labkit.lab import Lab, run_lab
from phase5_real_gpu.measuring.engine_bench import Bench
from phase5_real_gpu.measuring.engine_cases import MODEL_NAMES, bench_model, default_dtype, plan_for
from phase5_real_gpu.measuring.engine_runs import PEERS_UNTIL, measure_model
from phase5_real_gpu.measuring.machine_limits import measure_limits
from phase5_real_gpu.measuring.measurements import as_records
from phase5_real_gpu.story.engine_story import beats_its_floor, check_claims, draw, show_model, show_t4


def story(lab: Lab) -> None:
    began, device = time.monotonic(), lab.device
    dtype = default_dtype(device) if lab.args.dtype == "auto" else lab.args.dtype
    plan = plan_for(device, lab.quick)
    names = tuple(lab.args.models or plan.models)
    limits = measure_limits(device, (dtype,), quick=lab.quick)
    lab.say(f"""Every token costs one reading of the weights. {limits.device_name} reads {limits.read_gb_s:,.0f} GB/s
        and multiplies {limits.matmul_tflops[dtype]:,.3g} TFLOP/s in {dtype}, measured just now. So the shortest
        time of every step is known before it runs.""")
    peers_until = began + PEERS_UNTIL if device == "cuda" else float("inf")
    bench = Bench(device, dtype, plan, limits, lab.seed, peers_until)
    for name in lab.progress(names, "models, a minute or so each" if not lab.quick else "models"):
        measure_model(bench, name, peers=not lab.args.no_peers)

    measured = [bench_model(n) for n in names if bench.value(f"ttft-{n}-isl{plan.isls[0]}") is not None]
    show_t4(lab)
    check_claims(lab, bench, [m.name for m in measured])
    for bm in measured:
        show_model(lab, bench, bm)
    if beaten := beats_its_floor(bench):
        lab.say(f"""{len(beaten)} figures beat their bound, such as {beaten[0]}. So a ceiling was measured too low:
            something else kept this machine busy at that moment. Close it and run again.""")
    if bench.left_out:
        lab.title("Left out")
        lab.show("\n".join(bench.left_out))
    measurements = as_records(bench.by_name.values())
    lab.record(limits=vars(limits), left_out=bench.left_out, measurements=measurements)
    if measured:
        lab.figure(draw(bench, measured), "engine_benchmark")


def add_arguments(parser: Any) -> None:
    parser.add_argument(
        "--dtype", default="auto", choices=["auto", "float32", "bfloat16", "float16"],
        help="number format (auto: bfloat16, on a GPU older than Ampere float16)",
    )  # fmt: skip
    parser.add_argument("--models", nargs="+", choices=MODEL_NAMES, help="which models (default: by machine)")
    parser.add_argument("--no-peers", action="store_true", help="leave transformers out")


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, ("device", "seed", "quick"), add_arguments, argv)


if __name__ == "__main__":
    raise SystemExit(main())
