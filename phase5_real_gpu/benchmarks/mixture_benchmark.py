"""A block of experts: ours, which groups tokens by expert, beside that of transformers, on this CPU, in turn.

    python phase5_real_gpu/benchmarks/mixture_benchmark.py

Both have the same random weights, of the shape of one block of OLMoE 1B-7B (64 experts, 8 a token). A step for few tokens
reads few experts, and its time is that of reading them; in a step for many tokens every expert is read once, for all
tokens that chose it.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from labkit.lab import Lab, run_lab
from labkit.machine import time_calls
from labkit.options import whole
from phase1_tokens_embeddings.weights import SHAPES
from phase2_attention_kvcache.model import ModelConfig
from phase2_attention_kvcache.model.layers import Experts
from phase5_real_gpu.measuring.engine_peers import quiet_transformers
from phase5_real_gpu.measuring.measurements import Spread, in_turn

SHAPE = SHAPES["olmoe-1b-7b"]
WAYS = ("eager", "grouped_mm")  # a loop over the experts, as ours; all experts in one call of torch


def story(lab: Lab) -> None:
    args = lab.args
    quiet_transformers()
    ours = random_experts(ModelConfig(**vars(SHAPE) | dict(attention_bias=False, mlp_bias=False)), args.dtype)
    blocks = {"ours": ours} | {f"transformers, {way}": as_transformers(ours, way) for way in WAYS}
    seconds: dict[int, dict[str, list[float]]] = {}
    for tokens in lab.progress(args.tokens, "numbers of tokens"):
        x = torch.randn(tokens, SHAPE.d_model, generator=torch.Generator().manual_seed(lab.seed)).to(
            ours.router.weight.dtype
        )
        seconds[tokens] = {name: [] for name in blocks}
        for name in in_turn(blocks, args.rounds):
            call = partial(blocks[name], x if name == "ours" else x[None])
            seconds[tokens][name] += time_calls(call, repeats=3)
    lab.table(
        f"One block of {SHAPE.name}'s experts, {args.dtype}, {torch.get_num_threads()} CPU threads: milliseconds",
        ["tokens", *blocks, "ours is faster than the better one by"],
        [
            [tokens, *(1e3 * Spread.of(times[name]).median for name in blocks),
             Spread.of([min(others) / ours for ours, *others in zip(*times.values(), strict=True)]).show("x")]
            for tokens, times in seconds.items()
        ],
    )  # fmt: skip
    lab.record(seconds=seconds)


@torch.inference_mode()
def random_experts(config: ModelConfig, dtype: str) -> Experts:
    experts = Experts(config).to(getattr(torch, dtype)).eval()
    generator = torch.Generator().manual_seed(0)
    for weights in experts.parameters():
        weights.normal_(0.0, 0.02, generator=generator)
    return experts.requires_grad_(False)


@torch.inference_mode()
def as_transformers(experts: Experts, way: str) -> Any:
    """transformers' block with the same weights. `way`: one of WAYS."""
    from transformers import OlmoeConfig
    from transformers.models.olmoe.modeling_olmoe import OlmoeSparseMoeBlock

    down = torch.stack([expert.down.weight for expert in experts.experts])  # [experts, d_model, d_ff]
    config = OlmoeConfig(
        hidden_size=down.shape[1], intermediate_size=down.shape[2], num_experts=len(down),
        num_experts_per_tok=experts.per_token, norm_topk_prob=experts.norm_topk_prob,
    )  # fmt: skip
    config._experts_implementation = way
    block = OlmoeSparseMoeBlock(config).to(down.dtype).eval().requires_grad_(False)
    block.gate.weight.copy_(experts.router.weight)
    block.experts.gate_up_proj.copy_(torch.stack([expert.gate_up.weight for expert in experts.experts]))
    block.experts.down_proj.copy_(down)
    return block


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=whole(1, 1000), default=3)
    parser.add_argument("--tokens", type=whole(1, 4096), nargs="+", default=[1, 4, 16, 64, 256])


def main(argv: Sequence[str] | None = None) -> int:
    return run_lab(story, __doc__, ("seed",), add_arguments, argv)


if __name__ == "__main__":
    raise SystemExit(main())
