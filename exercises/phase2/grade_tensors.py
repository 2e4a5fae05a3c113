"""Grader of the primer: scores by a product, probabilities by softmax."""

import math
from collections.abc import Callable

import torch

from exercises.judging.judge import When
from exercises.judging.solutions import Solution

SOFTMAX, SCORES = "torch.softmax(hidden @ table.T, dim=-1)", "hidden @ table.T"
EXERCISE = Solution(
    "p2e0_tensors",
    next_probabilities={
        "tensor-no-softmax": {SOFTMAX: SCORES},
        "tensor-softmax-over-tokens": {"dim=-1": "dim=0"},
        "tensor-softmax-over-all": {SOFTMAX: f"torch.exp({SCORES}) / torch.exp({SCORES}).sum()"},
        "tensor-turned": (
            {SOFTMAX: "torch.softmax(table @ hidden.T, dim=0)"},
            {SOFTMAX: "torch.softmax(table @ hidden.T, dim=1)"},
        ),
        "tensor-not-transposed": {"table.T": "table"},
        "tensor-only-the-last": ({"hidden @": "hidden[-1:] @"}, {"hidden @": "hidden[-1] @"}),
        "tensor-shares-of-scores": {SOFTMAX: f"(scores := {SCORES}) / scores.sum(1, keepdim=True)"},
        "tensor-likeliest": {SOFTMAX: f"{SOFTMAX}.argmax(dim=1)"},
        "tensor-scaled": {SCORES: f"{SCORES} / table.shape[1] ** 0.5"},
        "tensor-logarithms": {"torch.softmax": "torch.log_softmax"},
        "tensor-overflows": (
            {SOFTMAX: f"(powers := torch.exp({SCORES})) / powers.sum(dim=-1, keepdim=True)"},
            When(lambda got, want, *_: got.shape == want.shape and not got.isfinite().all()),
        ),
    },
)


@EXERCISE.grader
def grade_tensors(next_probabilities: Callable) -> None:
    random = torch.Generator().manual_seed(1)
    table = torch.tensor([[0.0, 5.0], [math.log(2), 0.0], [math.log(5), 7.0]])
    cases = [(torch.tensor([[1.0, 0.0]]), table)]
    for n, d, words in ((3, 4, 6), (1, 8, 16), (4, 4, 4), (5, 3, 2)):
        cases.append((torch.randn(n, d, generator=random), torch.randn(words, d, generator=random)))
    large = torch.tensor([[300.0, -300.0]]), torch.tensor([[3.0, 1.0], [3.0, 1.001], [-3.0, 2.0]])
    EXERCISE.judge("next_probabilities", next_probabilities, [*cases, large], tolerance=2e-4)
