"""The sampling parameters of a request: vLLM's names and defaults, checked when they are created."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch

from labkit.checks import allowed_ids, biases, check_fields, flag, real, text, texts, token_ids, whole

# A temperature below this is greedy. vLLM has the same limit, but first raises anything between 0 and 0.01
# to 0.01: there only 0 itself is greedy.
GREEDY_BELOW = 1e-5
MOST_ANSWERS = 16_384  # to one prompt: VLLM_MAX_N_SEQUENCES


@dataclass(frozen=True)
class SamplingParams:
    """The sampling parameters and stop conditions of one request.

    Attributes:
        n: how many answers to the same prompt.
        temperature: logits are divided by it. Below 1 it sharpens the distribution, above 1 it flattens it;
            0: always the most probable token (greedy).
        top_p: keep the most probable tokens until together they have this probability.
        top_k: keep this many of the most probable tokens; 0 or -1: all.
        min_p: drop tokens with less than this times the probability of the most probable one.
        presence_penalty: subtracted from the logit of every token that the answer already contains.
        frequency_penalty: the same, once for each occurrence in the answer.
        repetition_penalty: logits of tokens in prompt or answer are divided by it (multiplied if negative).
        logit_bias: token id -> added to its logit, -100 to 100.
        seed: the same seed draws the same random numbers, whatever else is in the batch. So it gives the same
            answer in float32, except for a rare tie. In 16 bits the model's own sums depend slightly on the batch.
        max_tokens: maximum number of tokens of an answer; None: as many as fit the context.
        min_tokens: no end-of-text token and no stop token before this many tokens.
        stop: strings that end the answer; given as one or several, kept as a tuple.
        stop_token_ids: tokens that end the answer, kept as a tuple, each once.
        allowed_token_ids: only these tokens may be chosen, kept as a tuple, each once; None: all.
        bad_words: texts that the answer must not contain. `fitted` computes their tokens.
        include_stop_str_in_output: True: the text keeps the string that ended it.
        ignore_eos: continue after the end-of-text token (for benchmarks).
        logprobs: report the log probability of the chosen token and of this many of the most probable ones.
        prompt_logprobs: the same for each token of the prompt.
        skip_special_tokens: leave special tokens out of the text.
        cache_salt: only requests with the same salt share cached blocks. (In vLLM a field of the request.)

    Raises:
        ValueError: a value out of its range; the message names the field, the value and the range.

    Source: vllm/sampling_params.py. (vLLM also takes logprobs=-1 for "the whole vocabulary".)
    """

    n: Annotated[int, whole(1, MOST_ANSWERS, f"a whole number from 1 to {MOST_ANSWERS:,}")] = 1
    temperature: Annotated[float, real(0, math.inf, "0 or above (0 is greedy)")] = 1.0
    top_p: Annotated[float, real(0, 1, "above 0 and at most 1", above_low=True)] = 1.0
    top_k: Annotated[int, whole(-1, allowed="1 or above, or 0 (or -1) for all tokens")] = 0
    min_p: Annotated[float, real(0, 1, "from 0 to 1")] = 0.0
    presence_penalty: Annotated[float, real(-2, 2, "from -2 to 2")] = 0.0
    frequency_penalty: Annotated[float, real(-2, 2, "from -2 to 2")] = 0.0
    repetition_penalty: Annotated[float, real(1e-20, 1e20, "above 0, from 1e-20 to 1e20 (1 is none)")] = 1.0
    logit_bias: Annotated[dict[int, float] | None, biases] = None
    seed: Annotated[int | None, whole(-(2**63), 2**64 - 1, "a whole number of 64 bits, or None", True)] = None
    max_tokens: Annotated[int | None, whole(1, optional=True)] = 16
    min_tokens: Annotated[int, whole(0)] = 0
    stop: Annotated[str | Sequence[str] | None, texts(blank=True)] = None
    stop_token_ids: Annotated[Sequence[int] | None, token_ids] = None
    allowed_token_ids: Annotated[Sequence[int] | None, allowed_ids] = None
    bad_words: Annotated[Sequence[str] | None, texts(blank=False)] = None
    include_stop_str_in_output: Annotated[bool, flag] = False
    ignore_eos: Annotated[bool, flag] = False
    logprobs: Annotated[int | None, whole(0, optional=True)] = None
    prompt_logprobs: Annotated[int | None, whole(0, optional=True)] = None
    skip_special_tokens: Annotated[bool, flag] = True
    cache_salt: Annotated[str | None, text] = None
    bad_words_token_ids: tuple[tuple[int, ...], ...] = field(default=(), init=False)
    cache: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(
                f"min_tokens is {self.min_tokens}: it must be at most max_tokens, {self.max_tokens}"
            )
        if self.greedy and self.n > 1:
            raise ValueError(f"n is {self.n} at temperature 0: greedy gives one answer only, so n must be 1")

    @property
    def greedy(self) -> bool:
        """True if the most probable token is always taken."""
        return self.temperature < GREEDY_BELOW

    def changes_logits(self, num_output: int) -> bool:
        """True if `logits_processors.py` changes the logits of an answer that has `num_output` tokens."""
        penalised = self.repetition_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0
        banned = self.allowed_token_ids is not None or bool(self.bad_words_token_ids)
        return penalised or banned or bool(self.logit_bias) or num_output < self.min_tokens

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise a ValueError if a token id named here is not in a vocabulary of this size."""
        for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
            self.cache[name] = token = self.cache.get(name) or max(getattr(self, name) or [0])
            if token > (last := vocab_size - 1):
                raise ValueError(f"{name} holds the token {token}: this vocabulary goes from 0 to {last}")

    def fitted(self, vocab_size: int, encode: Callable[[str], list[int]] | None) -> SamplingParams:
        """These parameters with the tokens of `bad_words`, from a tokenizer's `encode`. Raises ValueError: this model cannot serve them."""
        self.check_vocabulary(vocab_size)
        if (self.stop or self.bad_words) and encode is None:
            raise ValueError("stop strings and bad_words need text: give the engine a tokenizer")
        found: list[tuple[int, ...]] = []
        for word in self.bad_words:  # as they stand at the beginning of a text and behind a space
            first, behind_space = (tuple(encode(text + word.lstrip())) for text in ("", " "))
            found.append(first)
            if behind_space[0] != first[0] and len(behind_space) == len(first):
                found.append(behind_space)
        return self._with(bad_words_token_ids=tuple(found), cache={}) if found else self

    def for_answer(self, index: int) -> SamplingParams:
        """The parameters of answer `index` of n: seed + index, as in vLLM; only the first answer has `prompt_logprobs`."""
        seed = None if self.seed is None else (self.seed + index) % 2**64
        return self._with(n=1, seed=seed, prompt_logprobs=None if index else self.prompt_logprobs)

    def _with(self, **changes: Any) -> SamplingParams:
        vars(other := copy(self)).update(changes)
        return other

    def make_generator(self) -> torch.Generator | None:
        """The request's own random generator; None without a seed."""
        return None if self.seed is None else torch.Generator().manual_seed(self.seed % 2**64)
