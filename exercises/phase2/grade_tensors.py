"""Grader of the primer: scores by a product, probabilities by softmax. The reference counts in plain loops."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from exercises.grading import Diagnoses, Exercise, guard, same
from exercises.judging.judge import judge


def right_probabilities(hidden: Tensor, table: Tensor) -> Tensor:
    """In plain loops and Python's own numbers."""
    rows = []
    for vector in hidden.tolist():
        scores = [sum(a * b for a, b in zip(vector, word)) for word in table.tolist()]
        powers = [math.exp(score - max(scores)) for score in scores]
        rows.append([power / sum(powers) for power in powers])
    return torch.tensor(rows)


def _over_all(hidden: Tensor, table: Tensor) -> Tensor:
    scores = hidden @ table.T
    return scores.flatten().softmax(0).view_as(scores)


MISTAKES = {
    "tensor-no-softmax": lambda hidden, table: hidden @ table.T,
    "tensor-softmax-over-tokens": lambda hidden, table: (hidden @ table.T).softmax(0),
    "tensor-softmax-over-all": _over_all,
    "tensor-turned": (
        lambda hidden, table: right_probabilities(hidden, table).T.contiguous(),
        lambda hidden, table: (table @ hidden.T).softmax(-1),
    ),
    "tensor-not-transposed": lambda hidden, table: (hidden @ table).softmax(-1),
    "tensor-only-the-last": (
        lambda hidden, table: right_probabilities(hidden, table)[-1:],
        lambda hidden, table: right_probabilities(hidden, table)[-1],
    ),
    "tensor-shares-of-scores": lambda hidden, table: (
        hidden @ table.T / (hidden @ table.T).sum(-1, keepdim=True)
    ),
    "tensor-likeliest": lambda hidden, table: right_probabilities(hidden, table).argmax(-1),
    "tensor-scaled": lambda hidden, table: (hidden @ table.T / hidden.shape[-1] ** 0.5).softmax(-1),
    "tensor-logarithms": lambda hidden, table: right_probabilities(hidden, table).log(),
}
SAYS = Diagnoses.of("p2e0_tensors")


def grade_tensors(next_probabilities: Callable) -> None:
    random = torch.Generator().manual_seed(1)
    table = torch.tensor([[0.0, 5.0], [math.log(2), 0.0], [math.log(5), 7.0]])
    cases = [(torch.tensor([[1.0, 0.0]]), table)]
    for n, d, words in ((3, 4, 6), (1, 8, 16), (4, 4, 4), (5, 3, 2)):
        cases.append((torch.randn(n, d, generator=random), torch.randn(words, d, generator=random)))
    judge(
        next_probabilities, cases, right_probabilities, MISTAKES, SAYS,
        show=lambda hidden, table: f"next_probabilities with hidden {list(hidden.shape)}, table {list(table.shape)}",
    )  # fmt: skip

    large = torch.tensor([[300.0, -300.0]])
    words = torch.tensor([[3.0, 1.0], [3.0, 1.001], [-3.0, 2.0]])
    tried = "next_probabilities with scores of 600 and of -1,500"
    got, want = guard(next_probabilities, large, words, tried=tried), right_probabilities(large, words)
    if not same(got, want, 1e-3):
        raise SAYS.no("tensor-overflows", tried, got, want)


EXERCISES = [
    Exercise("p2e0_tensors", ("next_probabilities",), grade_tensors),
]
