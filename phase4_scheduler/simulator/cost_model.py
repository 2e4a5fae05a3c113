"""How long does a step take? A clock for a server that has no model.

The scheduler decides steps without ever looking at a tensor. So a server can be simulated with its real
scheduler and its real block manager, if it is known how long each step would take. Three ways to know it:

- Linear: so many seconds per step, token, request. For what is worked out by hand.
- Measured kernels: add up the times of the kernels that a step starts, from tables (`kernel_table.py`).
- Computed: from a data sheet. A step reads the weights and the cache, and does some arithmetic; the slower
  of the two decides. No program on that card is faster, most are slower.

What each leaves out: the linear one knows only sums, so it cannot tell ten short contexts from one long one; the tables know
kernels, and not the gaps between them; the data sheet knows no program at all.

Source: Williams, Waterman, Patterson, "Roofline" (2009), for the computed one.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from labkit.errors import LabError
from phase1_tokens_embeddings.weights import Card, ModelShape, bytes_for_kv, kv_per_token, weight_bytes
from phase1_tokens_embeddings.weights.memory_math import KV_BYTES, USABLE
from phase2_attention_kvcache.measuring.roofline import Ceilings, Work


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


class CostModel(Protocol):
    def seconds(self, size: StepSize) -> float: ...
    def describe(self) -> str: ...


@dataclass(frozen=True)
class LinearCost:
    """Seconds = step + token x num_tokens + request x num_requests + context token x context + pair x pairs.

    Attributes:
        prices: seconds a unit, in this order.
    """

    prices: tuple[float, ...]

    def seconds(self, size: StepSize) -> float:
        return sum(map(operator.mul, self.prices, (1, *size[:4])))


# ---------------------------------------------------------------------- computed


@dataclass(frozen=True)
class ComputedCost:
    """The shortest time that a card can take for a step: computed from its data sheet, not measured.

    Attributes:
        weights: matrix entries that every step computes with, without the output head.
        head: entries of the output head.
        weight_bytes: what every step reads of both.
        attention: operations for each pair of tokens.
        kv_bytes: bytes of keys and values of one token.
        speed_up: of the matrix multiplications with weights, over 16 bit: 2 in FP8 on a card that has such arithmetic.
            (Attention and the output head stay in 16 bit, as in vLLM.)
    """

    name: str
    ceilings: Ceilings
    weights: int
    head: int
    weight_bytes: float
    attention: int
    kv_bytes: int
    num_blocks: int  # what the card has room for beside the weights, in blocks of 16 tokens
    max_context: int
    dollars_per_hour: float
    speed_up: float = 1.0

    @classmethod
    def of(
        cls,
        shape: ModelShape,
        card: Card,
        precision: str = "FP16",
        efficiency: float = 1.0,
        num_cards: int = 1,
        kv_precision: str = "FP16",
    ) -> ComputedCost:
        """A published model on one card. Fewer bits are fewer bytes to read and more room for the cache, and less
        arithmetic where the card computes in them: FP8 and NVFP4.

        Args:
            efficiency: share of the data sheet's bandwidth and arithmetic that programs reach.
            num_cards: so many hold the model together. They have room and cost as many do; they are no faster than one
                here (`ParallelCost` divides the work).

        Raises:
            LabError: too small for the weights and a cache of at least 2 blocks.
        """

        kv_bytes = kv_per_token(shape, KV_BYTES[kv_precision])

        def room(number: int) -> int:
            together = replace(card, memory_mib=number * card.memory_mib)
            return bytes_for_kv(shape, together, precision) // (kv_bytes * 16)

        stored = weight_bytes(shape, precision)
        cards = card.title if num_cards == 1 else f"{num_cards} x {card.title}"
        if room(num_cards) < 2:
            enough = next((n for n in (2, 4, 8) if shape.num_kv_heads % n == 0 and room(n) >= 2), None)
            share = f", or let {enough} cards share it (tensor_parallel_size={enough})" if enough else ""
            raise LabError(
                f"{shape.name} in {precision} takes {stored / 1e9:.1f} GB, and {'one ' * (num_cards == 1)}{cards} has "
                f"{num_cards * USABLE * card.memory_bytes / 1e9:.1f} to give: choose a larger card or fewer bits{share}"
            )
        parts = shape.parameters_by_part()
        weights, head = parts["attention"] + parts["MLP"], shape.vocab_size * shape.d_model
        # A mixture: read by some token, but not by each.
        idle = shape.num_parameters - shape.active_parameters
        few_bits = {"FP8": card.fp8_tflops, "NVFP4": card.fp4_tflops}.get(precision, 0)
        cache = "" if kv_precision == "FP16" else f" with a cache in {kv_precision}"
        return cls(
            f"{shape.name} in {precision}{cache} on {cards}, at {efficiency:.0%} of its data sheet",
            Ceilings(card.bandwidth_gb_s * 1e9 * efficiency, card.tensor_tflops * 1e12 * efficiency),
            weights - idle,
            head,
            stored * (weights + head) / shape.num_parameters,
            4 * shape.num_layers * shape.num_heads * shape.head_dim,
            kv_bytes,
            room(num_cards),
            shape.max_context,
            num_cards * card.dollars_per_hour,
            max(1.0, few_bits / card.tensor_tflops),
        )

    def work(self, size: StepSize) -> Work:
        """Operations and bytes, counted as in phase 2 (`work_of_step`), for all requests of the step. Operations in few bits count
        as the 16-bit operations that take as long."""
        operations = 2 * size.num_tokens * self.weights / self.speed_up + 2 * size.num_requests * self.head
        operations += self.attention * size.pairs
        return Work(operations, self.weight_bytes + self.kv_bytes * size.context)

    def seconds(self, size: StepSize) -> float:
        return self.ceilings.seconds(self.work(size))

    def describe(self) -> str:
        return f"computed, not measured: {self.name}"
