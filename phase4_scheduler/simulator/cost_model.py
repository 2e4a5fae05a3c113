"""How long does a step take? A clock for a server that has no model.

The scheduler decides steps without ever looking at a tensor. So a server can be simulated with its real
scheduler and its real block manager, if somebody says how long each step would take. Two ways to say it:

- Fitted: measure steps of the real engine, and find the price of each part of the work.
- Computed: from a data sheet. A step reads the weights and the cache, and does some arithmetic; the slower
  of the two decides. No program on that card is faster, most are slower.

Source: Williams, Waterman, Patterson, "Roofline" (2009), for the computed one.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from labkit.errors import LabError
from phase1_tokens_embeddings.weights.memory_math import bytes_for_kv, kv_per_token
from phase1_tokens_embeddings.weights.model_shapes import Card, ModelShape, find_card, find_shape
from phase2_attention_kvcache.model.roofline import Ceilings, Work
from phase4_scheduler.simulator.latency import percentiles

# Dense matrix products in 16 bit with 32-bit sums, in 10^12 operations a second: the cards' data sheets.
PEAK_TFLOPS = {"t4": 65, "l4": 121, "rtx4090": 165, "a100-40": 312, "a100-80": 312, "h100": 989, "h200": 989}


class StepWork(NamedTuple):
    """What a step has to do.

    Attributes:
        tokens: tokens that go through the model.
        requests: requests that take part (each needs a choice of its next token).
        context: tokens whose keys and values are read: for each request all that it has by then.
        pairs: pairs of a new token and a token that it looks at. Decode: as many as `context`. A prompt of
            n tokens: n (n + 1) / 2.
    """

    tokens: int
    requests: int
    context: int
    pairs: float

    @classmethod
    def of(cls, parts: Sequence[tuple[int, int]]) -> StepWork:
        """From (tokens computed before, tokens computed now) of each request in the step."""
        return cls(
            sum(n for _, n in parts),
            len(parts),
            sum(before + n for before, n in parts),
            sum(n * (2 * before + n + 1) / 2 for before, n in parts),
        )


class CostModel(Protocol):
    def seconds(self, work: StepWork) -> float: ...
    def describe(self) -> str: ...


# ---------------------------------------------------------------------- fitted

TERMS = ("step", "token", "request", "context token", "pair")


def nonnegative_least_squares(rows: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The x >= 0 for which rows @ x is closest to target.

    Work cannot cost less than nothing, but plain least squares may say so when two kinds of work come
    together. The best x has some entries at 0 and is the plain solution in the others. With five columns
    there are 31 choices of "others": try them all.
    """
    count = rows.shape[1]
    best, error = np.zeros(count), float(target @ target)
    for size in range(1, count + 1):
        for chosen in itertools.combinations(range(count), size):
            some = list(chosen)
            x = np.linalg.lstsq(rows[:, some], target, rcond=None)[0]
            if (x < 0).any() or not np.isfinite(x).all():
                continue
            residual = rows[:, some] @ x - target
            if residual @ residual < error * (1 - 1e-12):
                error = float(residual @ residual)
                best = np.zeros(count)
                best[some] = x
    return best


@dataclass(frozen=True)
class FittedCost:
    """Seconds = step + token x tokens + request x requests + context x context tokens + pair x pairs.

    Attributes:
        prices: seconds a unit, in the order of TERMS.
        source: what was measured.
        median_error, p90_error: relative errors on steps that the fit had not seen.
        steps: steps it was fitted to.
        longest: longest context among them: beyond it the straight line is a guess.
    """

    prices: tuple[float, ...]
    source: str = ""
    median_error: float = math.nan
    p90_error: float = math.nan
    steps: int = 0
    longest: int = 0

    def seconds(self, work: StepWork) -> float:
        step, token, request, context, pair = self.prices
        return (
            step + token * work.tokens + request * work.requests + context * work.context + pair * work.pairs
        )

    def describe(self) -> str:
        return f"fitted to {self.steps:,} steps: {self.source}"

    def save(self, path: str | Path) -> None:
        """Write it as JSON. Raises LabError if that cannot be done."""
        data = vars(self) | {"kind": "fitted cost of a step, seconds", "terms": TERMS}
        try:
            Path(path).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise LabError(
                f"cannot write {path} ({error.strerror}): choose a file you may write to"
            ) from None

    @classmethod
    def load(cls, path: str | Path) -> FittedCost:
        """Read what `save` wrote. Raises LabError if it is anything else."""
        wrong = f"{path} is no cost model: write one with --save-cost"
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            prices = tuple(float(price) for price in data["prices"])
            rest = {name: data[name] for name in ("source", "median_error", "p90_error", "steps", "longest")}
        except OSError as error:
            raise LabError(f"cannot read the cost model {path} ({error.strerror})") from None
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
            raise LabError(wrong) from None
        if len(prices) != len(TERMS) or not all(0 <= p < math.inf for p in prices) or not any(prices):
            raise LabError(f"{wrong} (it needs {len(TERMS)} prices, none below 0 and not all 0)")
        whole = all(type(rest[name]) is int for name in ("steps", "longest"))
        if not whole or not all(type(rest[name]) in (int, float) for name in ("median_error", "p90_error")):
            raise LabError(wrong)
        return cls(prices, **rest | {"source": str(rest["source"])})


def fit_cost(
    work: Sequence[StepWork], seconds: Sequence[float], source: str = "", seed: int = 0
) -> FittedCost:
    """Prices that explain measured steps. A quarter of the steps is kept aside to see how well they do.

    Errors are relative: 1 ms too much matters in a step of 3 ms and not in one of 300. It also keeps a step
    that was disturbed by something else on the machine from bending everything.

    Raises:
        ValueError: fewer than 20 steps, or a step that took no time.
    """
    if len(work) < 20 or min(seconds) <= 0:
        raise ValueError(f"{len(work)} measured steps: at least 20 are needed, each longer than 0 s")
    took = np.asarray(seconds, dtype=float)
    rows = np.column_stack([np.ones(len(work)), np.asarray(work, dtype=float)])
    aside = np.random.default_rng(seed).permutation(len(work)) < len(work) // 4
    scale = rows.max(axis=0)  # columns of like size: better numbers in the least squares
    relative = rows / scale / took[:, None]
    prices = nonnegative_least_squares(relative[~aside], np.ones(int((~aside).sum()))) / scale
    errors = np.abs(rows[aside] @ prices - took[aside]) / took[aside]
    median, p90 = percentiles(errors, (50, 90))
    longest = max(w.context // w.requests for w in work)
    return FittedCost(tuple(prices.tolist()), source, median, p90, int((~aside).sum()), int(longest))


# ---------------------------------------------------------------------- computed


@dataclass(frozen=True)
class ComputedCost:
    """The shortest time that a card can take for a step: computed from its data sheet, not measured.

    Attributes:
        weights: matrix entries that every step reads, without the output head.
        head: entries of the output head.
        attention: operations for each pair of tokens.
        kv_bytes: bytes of keys and values of one token.
    """

    name: str
    ceilings: Ceilings
    weights: int
    head: int
    attention: int
    kv_bytes: int
    num_blocks: int  # what the card has room for beside the weights, in blocks of 16 tokens
    max_context: int
    dollars_per_hour: float

    @classmethod
    def of(cls, shape: ModelShape, card: Card) -> ComputedCost:
        """A published model in 16 bit on one card. Raises LabError if it does not fit."""
        room = bytes_for_kv(shape, card)
        blocks = room // (kv_per_token(shape) * 16)
        if blocks < 2:
            raise LabError(f"{shape.name} does not fit on one {card.title} in 16 bit: choose another card")
        parts = shape.parameters_by_part()
        return cls(
            f"{shape.name} on {card.title}",
            Ceilings(card.bandwidth_gb_s * 1e9, PEAK_TFLOPS[card.name] * 1e12),
            parts["attention"] + parts["MLP"],
            shape.vocab_size * shape.d_model,
            4 * shape.num_layers * shape.num_heads * shape.head_dim,
            kv_per_token(shape),
            int(blocks),
            shape.max_context,
            card.dollars_per_hour,
        )

    def work(self, work: StepWork) -> Work:
        """Operations and bytes, counted as in phase 2 (`work_of_step`), for all requests of the step."""
        operations = 2 * work.tokens * self.weights + 2 * work.requests * self.head
        operations += self.attention * work.pairs
        return Work(operations, 2 * (self.weights + self.head) + self.kv_bytes * work.context)

    def seconds(self, work: StepWork) -> float:
        return self.ceilings.seconds(self.work(work))

    def describe(self) -> str:
        return f"computed, not measured: {self.name}, 16 bit, at the limits of its data sheet"


def find_cost(text: str) -> FittedCost | ComputedCost:
    """A cost model by name: a JSON file, "CARD:MODEL" such as "l4:llama-3-8b", or "CARD" (with llama-3-8b).

    Raises:
        LabError: none of these.
    """
    if text.endswith(".json") or Path(text).is_file():
        return FittedCost.load(text)
    card, _, model = text.partition(":")
    return ComputedCost.of(find_shape(model or "llama-3-8b"), find_card(card))


def price_list(cost: FittedCost) -> list[list[Any]]:
    """Rows for a table: the terms and their prices in microseconds."""
    return [[f"a {term}", 1e6 * price] for term, price in zip(TERMS, cost.prices, strict=True)]
