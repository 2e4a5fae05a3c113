"""An ablation: train one small model several times, each time without one choice of 2025, and record the perplexity.

    python phase2_attention_kvcache/training/train_without.py --text TEXTS --valid VALID.txt --out OUT.json

With the same seed all of them read the same windows of the text in the same order. From seed to seed these differ, and where
the initial weights, which shows the effect of chance. The model is the course's own, with an object for training behind `kv.attend`.
`families_lab.py` shows the results.
"""

import json
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.machine import environment
from labkit.options import whole
from labkit.paths import write_whole
from labkit.terminal import run
from phase1_tokens_embeddings.tokens import BPETokenizer
from phase1_tokens_embeddings.weights.families import FAMILIES, Family
from phase2_attention_kvcache.measuring.evaluation import read_documents
from phase2_attention_kvcache.model import ModelConfig, Transformer
from phase2_attention_kvcache.training.train_model import (
    encode_documents,
    learning_rate_scale,
    make_optimizers,
    parser_of_training,
    windows_of_epoch,
)

WINDOW = 128  # tokens that are read together: the context of these models
WINDOWS_PER_STEP = 16
VOCABULARY = 1024  # tokens: a small table, so that most of the work is in the blocks
# Learning rates of Muon and of AdamW, the same for all: of three pairs the best for the first and for the last recipe.
RATES = 1e-2, 5e-3
VALID_WINDOWS = 512


@dataclass(frozen=True)
class Recipe(ModelConfig):
    """A model of no family: its choices are a row of its own."""

    row: Family = FAMILIES["qwen3"]

    @property
    def choices(self) -> Family:
        return self.row


ALL = Recipe(
    "all choices", "qwen3", VOCABULARY, d_model=128, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=32, d_ff=320,
    max_context=WINDOW, tied=True, norm_eps=1e-6, attention_bias=False, mlp_bias=False,
)  # fmt: skip
"""Qwen3's choices, at a thousandth of its size."""


def without(name: str, d_ff: int = ALL.d_ff, num_kv_heads: int = ALL.num_kv_heads, **choices: Any) -> Recipe:
    return replace(ALL, name=name, d_ff=d_ff, num_kv_heads=num_kv_heads, row=replace(ALL.row, **choices))


GELU = dict(mlp="gelu", d_ff=ALL.d_ff * 3 // 2)  # two wider matrices in place of three: as many parameters
RECIPES = [
    ALL,
    without("a learned table of positions", positions="learned"),
    without("LayerNorm", norm="layer"),
    without("GELU", **GELU),
    without("a KV head for each query head", num_kv_heads=ALL.num_heads),
    without("q and k without a norm", qk_norm=None),
    replace(ALL, name="a head that is not tied", tied=False),
    replace(
        without("all of 2019", positions="learned", norm="layer", num_kv_heads=ALL.num_heads, qk_norm=None, **GELU),
        attention_bias=True,
        mlp_bias=True,
    ),
]  # fmt: skip
"""The replacement of each choice. "All of 2019" has biases as well."""


class Windows:
    """The object behind `kv.attend` in training: each window of a step attends to itself, and nothing is stored."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        share = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(share, dim=1) for x in (k, v))
        q, k, v = (x.unflatten(0, (-1, WINDOW)).transpose(1, 2) for x in (q, k, v))
        # out: [windows, num_heads, WINDOW, head_dim]
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return out.transpose(1, 2).flatten(0, 1)


def loss_of(model: Transformer, windows: Tensor) -> Tensor:
    """Mean loss a token, in nats. windows: [windows, WINDOW + 1] ids."""
    positions = torch.arange(WINDOW).repeat(len(windows))
    hidden = model(windows[:, :-1].flatten(), positions, Windows())
    return F.cross_entropy(model.logits(hidden), windows[:, 1:].flatten())


def cut(ids: np.ndarray, starts: np.ndarray) -> Tensor:
    return torch.from_numpy(np.stack([ids[s : s + WINDOW + 1] for s in starts]))


def train(recipe: Recipe, seed: int, ids: np.ndarray, valid: Tensor, steps: int) -> dict[str, Any]:
    """Train one model from its first step to its last. Returns its losses, in nats per token."""
    model = Transformer.random(recipe, seed=seed).requires_grad_(True).train()
    optimizers = make_optimizers(model, "blocks.")
    starts = windows_of_epoch(ids, WINDOW, np.random.default_rng(seed))
    losses = []
    for step in range(steps):
        for optimizer, rate in zip(optimizers, RATES, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * learning_rate_scale(step, steps)
        loss = loss_of(model, cut(ids, starts[step * WINDOWS_PER_STEP : (step + 1) * WINDOWS_PER_STEP]))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    with torch.no_grad():
        valid_loss = np.mean([loss_of(model, part).item() for part in valid.split(WINDOWS_PER_STEP)])
    return dict(
        recipe=recipe.name,
        seed=seed,
        parameters=sum(p.numel() for p in model.parameters()),
        valid_loss=round(float(valid_loss), 4),
        losses=[round(float(np.mean(losses[i : i + 10])), 3) for i in range(0, steps, 10)],
    )


def main() -> None:
    parser = parser_of_training(__doc__)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="file for the results (JSON)")
    add("--steps", type=whole(10, 10**6), default=240, help=f"of {WINDOWS_PER_STEP * WINDOW} tokens (240)")
    add("--seeds", type=whole(1, 100), default=3, help="runs of each model (3)")
    args = parser.parse_args()

    documents, valid_documents = read_documents(args.text), read_documents(args.valid)
    tok = BPETokenizer.train(documents, VOCABULARY)
    ids, valid_ids = encode_documents(tok, documents), encode_documents(tok, valid_documents)
    needed = (args.steps * WINDOWS_PER_STEP + 1) * WINDOW
    if len(ids) <= needed:
        raise SystemExit(
            f"{args.text} gives {len(ids):,} tokens, {needed:,} are needed: give more, or fewer --steps"
        )
    valid = cut(valid_ids, np.arange(0, len(valid_ids) - WINDOW, WINDOW)[:VALID_WINDOWS])
    result = dict(
        environment=environment(),
        steps=args.steps,
        tokens_per_step=WINDOWS_PER_STEP * WINDOW,
        tokens_of_text=len(ids),
        valid_tokens=valid[:, 1:].numel(),
        runs=[],
    )
    for seed in range(args.seeds):
        for recipe in RECIPES:
            began = time.perf_counter()
            found = train(recipe, seed, ids, valid, args.steps)
            result["runs"].append(found)
            write_whole(args.out, json.dumps(result, indent=1))
            seconds, perplexity = time.perf_counter() - began, math.exp(found["valid_loss"])
            print(f"{recipe.name:32} seed {seed}  perplexity {perplexity:.2f}  {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    raise SystemExit(run(main))
