"""The whole engine on this machine: TTFT, ITL and throughput beside their floors and beside transformers.

Three figures matter to users and operators:

- TTFT, time to first token. Prefill determines it, so it depends on ISL, the
  prompt's length: flat while reading the weights takes longer than computing, then in proportion to ISL.
- ITL, inter-token latency: the time from one token to the next. At batch 1 every weight must be read for every
  token, so bytes of the weights / bandwidth is a floor for every program.
- Throughput, tokens per second of all requests together. The weights are read once for the whole batch: more
  requests cost little, until keys and values or arithmetic take longer.

Each figure is compared with its floor, computed from limits measured just before, and with static batches of
transformers on a model of the same shape. On a GPU the script runs the shapes of GPT-2,
TinyLlama-1.1B and Llama-3-8B in 16 bit; on a CPU `tales` and GPT-2. Weights are random: speed is not affected.
"""

import argparse

from labkit.lab import Lab, run_lab
from phase5_real_gpu.measuring.engine_cases import MODEL_NAMES, bench_model, default_dtype, plan_for
from phase5_real_gpu.measuring.engine_runs import measure_model
from phase5_real_gpu.measuring.machine_limits import open_bench
from phase5_real_gpu.story.engine_story import check_claims, draw, show_model, show_t4


def story(lab: Lab) -> None:
    device = lab.device
    dtype = default_dtype(device) if lab.args.dtype == "auto" else lab.args.dtype
    plan = plan_for(device, lab.quick)
    models = [bench_model(name) for name in lab.args.models or plan.models]
    bench = open_bench(device, dtype, lab.quick, lab.seed, lab.args.json if lab.args.resume else None)
    bench.save = lambda bench: lab.save(**bench.results())
    limits = bench.limits
    lab.say(f"""Every step reads all weights once. {limits.device_name} reads {limits.read_gb_s:,.0f} GB/s
        and multiplies {limits.matmul_tflops[dtype]:,.3g} TFLOP/s in {dtype}, measured just now. These limits give the shortest
        time of every step before it runs.""")
    for bm in lab.progress(models, "models, a minute or so each" if not lab.quick else "models"):
        measure_model(bench, plan, bm, peers=not lab.args.no_peers)

    measured = [bm for bm in models if f"ttft-{bm.name}-isl{plan.isls[0]}" in bench.found]
    show_t4(lab)
    check_claims(lab, bench, plan, measured)
    for bm in measured:
        show_model(lab, bench, plan, bm)
    if bench.left_out:
        lab.title("Left out")
        lab.show("\n".join(f"{what}: {why}" for what, why in bench.left_out.items()))
    lab.record(**bench.results())
    if measured:
        lab.figure(draw(bench, plan, measured), "engine_benchmark")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add, dtypes = parser.add_argument, ["auto", "float32", "bfloat16", "float16"]
    add("--dtype", default="auto", choices=dtypes, help="auto: bfloat16, on a GPU older than Ampere float16")
    add("--models", nargs="+", choices=MODEL_NAMES, help="which models (default: by machine)")
    add("--resume", action="store_true", help="keep the figures that the file of --json holds already")
    add("--no-peers", action="store_true", help="leave transformers out")


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, ("device", "seed", "quick"), add_arguments, argv)


if __name__ == "__main__":
    raise SystemExit(main())
