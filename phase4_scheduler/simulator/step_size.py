"""What a step has to do, counted: the one thing that every cost model looks at."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import NamedTuple


class StepSize(NamedTuple):
    """How much a step has to do.

    Attributes:
        num_tokens: tokens that go through the model.
        num_requests: requests that take part (each needs a choice of its next token).
        context: tokens whose keys and values are read: for each request all that it has by then.
        pairs: pairs of a new token and a token that it attends to. Decode: as many as `context`. A prompt
            of n tokens: n (n + 1) / 2.
        chunks: (tokens computed before, tokens computed now) of each request that computes more than one: a
            prompt, or a piece of one. All others decode.
    """

    num_tokens: int
    num_requests: int
    context: int
    pairs: float
    chunks: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, parts: Iterable[tuple[int, int]]) -> StepSize:
        """From (tokens computed before, tokens computed now) of each request in the step."""
        tokens = requests = context = 0
        pairs, chunks = 0.0, []
        for before, n in parts:
            tokens += n
            requests += 1
            context += before + n
            pairs += n * (2 * before + n + 1) / 2
            if n > 1:
                chunks.append((before, n))
        return cls(tokens, requests, context, pairs, tuple(chunks))

    def beside(self, others: StepSize) -> StepSize:
        """Both in one step."""
        return StepSize(*map(operator.add, self, others))
