"""One user, GPT-2's size: tokens a second of our cached decode beside transformers' `generate`.

    python phase5_real_gpu/benchmarks/decode_benchmark.py --dtype bfloat16

Both get the same random weights, the same prompt, and write the same number of tokens greedily. They run
in turn, several rounds, so that a machine that slows down slows both. Quote the ratio, not the speed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.utils import logging

from labkit.errors import LabError
from labkit.machine import environment, pick_device, synchronize
from phase2_attention_kvcache.model.generation import generate_cached
from phase2_attention_kvcache.model.transformer import Transformer


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--prompt-tokens", type=int, default=20)
    parser.add_argument("--new-tokens", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write all figures here")
    args = parser.parse_args()
    if (
        min(args.prompt_tokens, args.new_tokens, args.rounds) < 1
        or args.prompt_tokens + args.new_tokens > 1024
    ):
        parser.error("tokens and rounds must be 1 or more, prompt and new tokens together at most 1,024")
    try:
        device, dtype = pick_device(args.device), getattr(torch, args.dtype)
    except LabError as error:
        parser.error(str(error))

    logging.disable_progress_bar()
    torch.manual_seed(0)
    theirs = GPT2LMHeadModel(GPT2Config()).to(device, dtype).eval()
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = Transformer.from_pretrained(folder, args.dtype, device)
    prompt = [(7 * i) % 8000 for i in range(args.prompt_tokens)]
    ids = torch.tensor([prompt], device=device)

    def run_ours() -> list[int]:
        return generate_cached(ours, prompt, args.new_tokens).token_ids

    def run_theirs() -> list[int]:
        out = theirs.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=args.new_tokens,
            min_new_tokens=args.new_tokens, do_sample=False, pad_token_id=0, eos_token_id=None,
        )  # fmt: skip
        return out[0, len(prompt) :].tolist()

    speeds: dict[str, list[float]] = {"transformers generate": [], "ours, ContiguousKVCache": []}
    tokens = {}
    for _ in range(args.rounds + 1):  # the first round warms up
        for name, run in zip(speeds, (run_theirs, run_ours), strict=True):
            began = time.perf_counter()
            tokens[name] = run()
            synchronize(device)
            speeds[name].append(args.new_tokens / (time.perf_counter() - began))
    speeds = {name: values[1:] for name, values in speeds.items()}

    table = Table(
        title=f"GPT-2 124M, {args.dtype}, {device}, one user, {args.new_tokens} tokens",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    for column in ("engine", "tokens/s, median", "lowest", "highest"):
        table.add_column(column, justify="left" if column == "engine" else "right")
    for name, values in speeds.items():
        table.add_row(name, *(f"{v:.1f}" for v in (statistics.median(values), min(values), max(values))))
    Console(width=100).print(table)
    medians = [statistics.median(values) for values in speeds.values()]
    first, second = tokens.values()
    same = next((i for i, (a, b) in enumerate(zip(first, second)) if a != b), args.new_tokens)
    print(f"ours / transformers: {medians[1] / medians[0]:.2f}x; the first {same} of {args.new_tokens} tokens are equal"
          " (rounding may part them in 16 bit)")  # fmt: skip
    if args.json:
        args.json.write_text(
            json.dumps(dict(environment=environment(), arguments={k: str(v) for k, v in vars(args).items()},
                            tokens_per_second=speeds, ratio=medians[1] / medians[0]), indent=1)
        )  # fmt: skip


if __name__ == "__main__":
    main()
