"""Proposers guess the next tokens. A guess costs little and may be wrong: the model verifies it in its next step.

`NgramProposer` copies what followed the same words before. A draft model (`draft_model.py`) asks a smaller model.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Protocol

from torch import Tensor

from labkit.foreign import quoted
from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase3_paged_attention.paging.block_table import BlockTable


class Proposer(Protocol):
    """Guesses from the text alone. Put your own in: `LLMEngine(..., proposer=..., speculative_config=...)`."""

    def propose(self, token_ids: Sequence[int], num_drafts: int) -> Sequence[int]:
        """The tokens that may follow these: at most `num_drafts`, or none."""
        ...


class NgramProposer:
    """Prompt lookup: find the last words of a text earlier in it, and propose what followed them there.

    That is often right where a text repeats itself: code, quotations, a summary, a corrected copy of the prompt.

    Args:
        lookup_min, lookup_max: how many of the last tokens must be found; the more the better.

    >>> NgramProposer(lookup_min=2, lookup_max=3).propose([7, 1, 2, 3, 4, 5, 9, 2, 3], num_drafts=2)
    [4, 5]

    Sources: Saxena, "Prompt Lookup Decoding" (2023); vllm/v1/spec_decode/ngram_proposer.py, whose answers it gives.
    """

    def __init__(self, lookup_min: int, lookup_max: int) -> None:
        self.lookup_min, self.lookup_max = lookup_min, lookup_max

    def propose(self, token_ids: Sequence[int], num_drafts: int) -> list[int]:
        """What followed the longest of the text's endings that occurred before, where it did so first."""
        # Each token as one character: Python's search in a text is a fast one.
        text = "".join(map(chr, token_ids))
        for length in range(min(self.lookup_max, len(text) - 1), self.lookup_min - 1, -1):
            found = text.find(text[-length:])
            if found < len(text) - length:  # not the ending itself
                return list(token_ids[found + length :][:num_drafts])
        return []


@dataclass
class DraftInput:
    """A request as it will be after this step: what there is to guess from.

    Attributes:
        token_ids: all its tokens, those just sampled included. A draft model adds its own.
        num_computed: tokens that a draft model has seen; the others are new to it.
        num_drafts: most drafts that are of use; 0: none, but a draft model has to keep up.
        block_table: where a draft model finds room for its keys and values.
    """

    request_id: str
    token_ids: list[int]
    num_computed: int
    num_drafts: int
    params: SamplingParams
    block_table: BlockTable


@dataclass
class Drafts:
    """Guesses for one request.

    Attributes:
        token_ids: in their order.
        probs: [len(token_ids), vocab], the distributions that they were drawn from; None: each was a choice without
            chance, so its distribution is a single 1.
    """

    token_ids: list[int]
    probs: Tensor | None = None

    def first(self, count: int) -> Drafts:
        """The first of them."""
        return Drafts(self.token_ids[:count], None if self.probs is None else self.probs[:count])


class Drafter(Protocol):
    """Guesses for all requests of a step at once."""

    def draft(self, inputs: Sequence[DraftInput]) -> list[Drafts]:
        """Drafts for each input, some of them empty."""
        ...


class DraftOneByOne:
    """A `Proposer` as a `Drafter`. What goes wrong in it costs the request its drafts, and nothing else."""

    def __init__(self, proposer: Proposer, vocab_size: int) -> None:
        self._proposer, self._vocab_size = proposer, vocab_size

    def draft(self, inputs: Sequence[DraftInput]) -> list[Drafts]:
        return [Drafts(self._draft(given) if given.num_drafts else []) for given in inputs]

    def _draft(self, given: DraftInput) -> list[int]:
        try:
            drafts = list(self._proposer.propose(given.token_ids, given.num_drafts))[: given.num_drafts]
        except Exception as error:
            complain(f"the proposer failed ({type(error).__name__}: {error})", given.request_id)
            return []
        for i, token in enumerate(drafts):
            whole = isinstance(token, Integral) and not isinstance(token, bool)
            if not whole or not 0 <= token < self._vocab_size:
                known = f"token ids are 0 to {self._vocab_size - 1}"
                complain(f"the proposer proposed {quoted(token)} ({known})", given.request_id)
                return drafts[:i]
        return drafts


def complain(what: str, request_id: str) -> None:
    warnings.warn(f"{what}: request {request_id!r} goes on without these drafts", stacklevel=2)
