"""Attention in plain Python, every intermediate matrix kept: three words, vectors of three numbers.

No library, no batch, one head. `model/attention.py` computes the same with tensors.

    X  one row for each word                        the input
    Q = X W_Q   K = X W_K   V = X W_V               three views of each word
    S = Q K^T                                       how well does each query fit each key?
    S / sqrt(d)                                     keep the numbers small
    mask                                            a word attends to itself and to earlier words
    A = softmax of each row                         weights that add up to 1
    O = A V                                         each word's mixture of values

Source: Vaswani et al., "Attention Is All You Need" (2017), section 3.2.1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

Matrix = list[list[float]]

WORDS = ["I", "love", "dogs"]
# Small whole numbers, so that you can follow with pencil and paper. In a model, training finds them.
EMBEDDINGS: Matrix = [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
W_Q: Matrix = [[2, 0, 0], [-1, 1, 1], [1, 0, 1]]
W_K: Matrix = [[2, 0, 0], [0, 1, 1], [1, 1, 1]]
W_V: Matrix = [[1, 0, 2], [0, 2, 0], [1, 0, 0]]


@dataclass(frozen=True)
class Steps:
    """Every matrix on the way, for N words with vectors of d numbers."""

    q: Matrix  # [N, d]
    k: Matrix  # [N, d]
    v: Matrix  # [N, d]
    raw: Matrix  # [N, N]: row = the word that looks, column = the word it looks at
    scaled: Matrix  # [N, N]
    masked: Matrix  # [N, N]: minus infinity above the diagonal
    weights: Matrix  # [N, N]: each row adds up to 1
    output: Matrix  # [N, d]


def matmul(a: Matrix, b: Matrix) -> Matrix:
    """Rows of `a` times columns of `b`.

    >>> matmul([[1, 2]], [[3], [4]])
    [[11]]
    """
    return [[sum(x * y for x, y in zip(row, column, strict=True)) for column in zip(*b)] for row in a]


def softmax(row: Sequence[float]) -> list[float]:
    """Weights that add up to 1: e to the power of each number, divided by the sum of these.

    The largest number is subtracted first. The weights stay the same, and e to a large power cannot
    overflow: exp(1000) is too large for a computer's numbers, exp(0) is 1.
    """
    largest = max(row)
    powers = [math.exp(x - largest) for x in row]
    return [p / sum(powers) for p in powers]


def attention_by_hand(x: Matrix, w_q: Matrix, w_k: Matrix, w_v: Matrix) -> Steps:
    """One attention head over the words `x` [N, d_model], step by step."""
    return steps_from(matmul(x, w_q), matmul(x, w_k), matmul(x, w_v))


def steps_from(q: Matrix, k: Matrix, v: Matrix) -> Steps:
    """The steps from queries, keys and values, [N, d] each, to the output."""
    raw = matmul(q, list(zip(*k)))  # zip(*k): the columns of K as rows
    scaled = [[s / math.sqrt(len(q[0])) for s in row] for row in raw]
    masked = [[s if j <= i else -math.inf for j, s in enumerate(row)] for i, row in enumerate(scaled)]
    weights = [softmax(row) for row in masked]
    return Steps(q, k, v, raw, scaled, masked, weights, matmul(weights, v))


def percent(weights: Sequence[float]) -> list[int]:
    """Weights as whole percentages: [0.39, 0.39, 0.22] -> [39, 39, 22]."""
    return [round(100 * w) for w in weights]


def side_by_side(titled: Sequence[tuple[str, Matrix]], labels: Sequence[str], decimals: int = 0) -> str:
    """Matrices with the same number of rows as text, next to one another.

    >>> print(side_by_side([("Q", [[1, 2]]), ("K", [[3, 4]])], ["I"]))
       Q      K
    I  1  2   3  4
    """

    def cell(x: float) -> str:
        return "-inf" if x == -math.inf else f"{x:.{decimals}f}"

    margin = max(len(name) for name in labels) + 2
    blocks = []
    for title, matrix in titled:
        width = max(len(cell(x)) for row in matrix for x in row)
        lines = ["  ".join(cell(x).rjust(width) for x in row) for row in matrix]
        block_width = max(len(title), len(lines[0]))
        blocks.append([line.ljust(block_width) for line in (title, *lines)])
    rows = ["   ".join(parts).rstrip() for parts in zip(*blocks, strict=True)]
    return "\n".join(f"{label:{margin}}{row}" for label, row in zip(["", *labels], rows, strict=True))
