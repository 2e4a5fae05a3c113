"""The results of small models that were trained without a choice, from `training/trained_without.json`.

The model was the course's own: Qwen3's choices at width 128, 2 layers, 4 query and 2 KV heads of 32 numbers, an MLP of 320, a
context of 128, a vocabulary of 1,024 tokens. Each recipe replaces one choice (GELU: an MLP of 480, so as many parameters; all of
2019: with biases as well). It was trained for 240 steps of 16 windows of 128 tokens, by Muon at a rate of 0.01 and AdamW at 0.005 on
the schedule of `training/train_model.py`. The same seed gives all recipes the same windows in the same order. `valid_loss` is the
mean over 512 windows of unseen text, in nats per token.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

RESULT = Path(__file__).resolve().parents[1] / "training" / "trained_without.json"
ALL = "all choices"


@dataclass(frozen=True)
class Trained:
    """Models of one recipe, one for each seed.

    Attributes:
        perplexities: of a token of the validation text, by seed.
        more: how much higher they are than with all choices and the same seed, in percent.
        losses: of each ten steps, in nats a token, mean over the seeds.
    """

    name: str
    parameters: int
    perplexities: list[float]
    more: list[float]
    losses: list[float]


def read_trained() -> dict[str, Trained]:
    """All recipes, by their names; first the one with all choices."""
    runs: dict[str, list[dict]] = {}
    for one in json.loads(RESULT.read_text(encoding="utf-8"))["runs"]:  # in the order of their seeds
        runs.setdefault(one["recipe"], []).append(one)
    perplexities = {name: [math.exp(one["valid_loss"]) for one in of_name] for name, of_name in runs.items()}
    return {
        name: Trained(
            name,
            of_name[0]["parameters"],
            perplexities[name],
            [100 * (p / full - 1) for p, full in zip(perplexities[name], perplexities[ALL], strict=True)],
            [mean(losses) for losses in zip(*(one["losses"] for one in of_name), strict=True)],
        )
        for name, of_name in runs.items()
    }
