"""One user, GPT-2's size: tokens a second of our cached decode beside transformers' `generate`.

    python phase5_real_gpu/benchmarks/decode_benchmark.py --dtype bfloat16

Both get the same random weights, the same prompt, and write the same number of tokens greedily. They run
in turn, several rounds, so that a machine that slows down slows both. Quote the ratio, not the speed.
"""

import argparse
import time
from collections.abc import Sequence

from labkit.errors import LabError
from labkit.lab import Lab, run_lab
from labkit.machine import synchronize
from labkit.options import whole
from phase2_attention_kvcache.model import GPT2_124M, Transformer, generate_cached
from phase5_real_gpu.measuring.engine_peers import StaticBatches, to_transformers
from phase5_real_gpu.measuring.measurements import Spread


def story(lab: Lab) -> None:
    args, device, count = lab.args, lab.device, lab.args.new_tokens
    if args.prompt_tokens + count > 1024:
        raise LabError("prompt and new tokens may be 1,024 together")
    model = Transformer.random(GPT2_124M, args.dtype, device, lab.seed)
    static = StaticBatches(to_transformers(model))
    prompt = [(7 * i) % 8000 for i in range(args.prompt_tokens)]
    engines = {
        "transformers generate": lambda: static.run([(prompt, count)])[0],
        "ours, ContiguousKVCache": lambda: generate_cached(model, prompt, count).token_ids,
    }
    speeds: dict[str, list[float]] = {name: [] for name in engines}
    tokens: dict[str, list[int]] = {}
    for _ in lab.progress(range(args.rounds + 1), "rounds"):  # the first one warms up
        for name, run in engines.items():
            began = time.perf_counter()
            tokens[name] = run()
            synchronize(device)
            speeds[name].append(count / (time.perf_counter() - began))
    spreads = {name: Spread.of(values[1:]) for name, values in speeds.items()}
    lab.table(
        f"GPT-2 124M, {args.dtype}, {device}, one user, {count} tokens",
        ["engine", "tokens/s, median", "lowest", "highest"],
        [[name, *spread] for name, spread in spreads.items()],
    )
    theirs, ours = (spread.median for spread in spreads.values())
    same = next((i for i, (a, b) in enumerate(zip(*tokens.values())) if a != b), count)
    lab.say(f"""ours / transformers: {ours / theirs:.2f}x; the first {same} of {count} tokens are equal (rounding may
        part them in 16 bit)""")
    lab.record(tokens_per_second={name: v[1:] for name, v in speeds.items()}, ratio=ours / theirs)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--prompt-tokens", type=whole(1, 1023), default=20)
    parser.add_argument("--new-tokens", type=whole(1, 1023), default=100)
    parser.add_argument("--rounds", type=whole(1, 1000), default=5)


def main(argv: Sequence[str] | None = None) -> int:
    return run_lab(story, __doc__, ("device", "seed"), add_arguments, argv)


if __name__ == "__main__":
    raise SystemExit(main())
