"""Several answers to one prompt as in the paper of 2023: computed once, forked, and copied on the first write.

The engines of the course do not fork (n answers are n requests, which share full blocks through the prefix cache). So exercise
3.5 has this driver: the model and the cache of the small engine (`my_engine/`) run over tables that fork.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import torch

from exercises.capstone.parts import COMPLETE
from exercises.phase3.pool import Pool
from labkit.models import find_model

BLOCK_SIZE, NUM_ANSWERS, TOKENS = 16, 3, 24


class ModelPool(Pool):
    """A pool whose blocks hold keys and values of a model."""

    def __init__(self, num_blocks: int, cache: Any) -> None:
        super().__init__(num_blocks, BLOCK_SIZE)
        self.in_blocks = [
            kv.unflatten(1, (num_blocks, BLOCK_SIZE)) for kv in (cache.keys.zero_(), cache.values.zero_())
        ]

    def copy(self, source: int, target: int) -> None:
        super().copy(source, target)
        for kv in self.in_blocks:
            kv[:, target] = kv[:, source]


class Forked(NamedTuple):
    """What came out. tokens: of each answer. num_copied: blocks."""

    tokens: list[list[int]]
    text: str
    num_copied: int


@torch.inference_mode()
def forked_answers(fork: Callable, make_room: Callable, prompt: str) -> Forked:
    """Three answers, each with a seed of its own, to a prompt that is computed once."""
    own, cache_module = (import_module(f"{COMPLETE}.{name}") for name in ("engine", "cache"))
    folder = find_model("tales")
    tokenizer, model = own.Tokenizer(folder / "tokenizer.json"), own.Model(folder)
    cache = cache_module.PagedCache(model, 100, BLOCK_SIZE)
    pool, ids = ModelPool(100, cache), tokenizer.encode(prompt)

    def scores(parts: list[tuple[list[int], int, int]], token_ids: list[int]) -> torch.Tensor:
        """The scores behind each of these tokens. parts: of each table, the number of its first new token, how many are new."""
        cache.begin_step(parts)
        positions = [first + i for _, first, n in parts for i in range(n)]
        return model.logits(model.forward(torch.tensor(token_ids), torch.tensor(positions), cache.attend))

    first: list[int] = []
    for written in range(len(ids)):
        make_room(first, written, pool)
    logits = scores([(first, 0, len(ids))], ids)[-1:].expand(NUM_ANSWERS, -1)
    tables = [first, *(fork(first, pool) for _ in range(NUM_ANSWERS - 1))]
    generators = [torch.Generator().manual_seed(seed) for seed in range(NUM_ANSWERS)]
    answers: list[list[int]] = [[] for _ in tables]
    for length in range(len(ids), len(ids) + TOKENS):
        for answer, row, generator in zip(answers, logits, generators, strict=True):
            answer.append(own.choose(row, 1.0, 1.0, generator))
        for table in tables:
            make_room(table, length, pool)
        logits = scores([(table, length, 1) for table in tables], [answer[-1] for answer in answers])
    text = b"".join(tokenizer.token_bytes[token] for token in answers[0]).decode(errors="replace")
    return Forked(answers, f"{prompt}{text} ...", len(pool.copies))
