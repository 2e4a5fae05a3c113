"""What a request may ask of the sampler: vLLM's names, vLLM's defaults, checked when they are made."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any

import torch

from labkit.foreign import quoted

# A temperature below this is greedy. vLLM has the same limit, but first raises anything between 0 and 0.01
# to 0.01: there only 0 itself is greedy.
GREEDY_BELOW = 1e-5


@dataclass(frozen=True)
class SamplingParams:
    """How to pick the tokens of one request, and when to stop.

    Attributes:
        n: how many answers to the same prompt.
        temperature: logits are divided by it. Below 1 bold differences, above 1 flat ones; 0: always the
            likeliest token (greedy).
        top_p: keep the likeliest tokens until together they hold this much probability.
        top_k: keep this many of the likeliest tokens; 0 or -1: all.
        min_p: drop tokens less than this times as likely as the likeliest one.
        presence_penalty: taken off the logit of every token that the answer already holds.
        frequency_penalty: the same, once for each time that the answer holds it.
        repetition_penalty: logits of tokens in prompt or answer are divided by it (multiplied if negative).
        logit_bias: token id -> added to its logit, -100 to 100.
        seed: the same seed draws the same random numbers, whatever else is in the batch. So it gives the same
            answer in float32, but for a rare tie. In 16 bit the model's own sums depend a little on the batch.
        max_tokens: most tokens of an answer; None: as many as the context holds.
        min_tokens: no end of text and no stop token before this many.
        stop: strings that end the answer; given as one or several, kept as a tuple.
        stop_token_ids: tokens that end the answer, kept as a tuple.
        allowed_token_ids: only these tokens may be picked; None: all.
        bad_words: texts that the answer must not hold. Their tokens come with `with_bad_words`.
        include_stop_str_in_output: whether the text keeps the string that ended it.
        ignore_eos: go on after the end-of-text token (for benchmarks).
        logprobs: report the log probability of the token picked and of this many of the likeliest ones.
        prompt_logprobs: the same for each token of the prompt.
        skip_special_tokens: leave special tokens out of the text.

    Raises:
        ValueError: a value out of its range; the message names the field, the value and the range.

    Source: vllm/sampling_params.py. (vLLM also takes logprobs=-1 for "the whole vocabulary".)
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    bad_words_token_ids: tuple[tuple[int, ...], ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        infinity = math.inf
        self._whole("n", 1)
        self._real("temperature", 0, infinity, "0 or above (0 is greedy)")
        self._real("top_p", 0, 1, "above 0 and at most 1", above_lowest=True)
        self._whole("top_k", -1, meaning="1 or above, or 0 (or -1) for all tokens")
        self._real("min_p", 0, 1, "from 0 to 1")
        self._real("presence_penalty", -2, 2, "from -2 to 2")
        self._real("frequency_penalty", -2, 2, "from -2 to 2")
        self._real("repetition_penalty", 0, infinity, "above 0 (1 is none)", above_lowest=True)
        self._whole("seed", -(2**63), 2**64 - 1, optional=True, meaning="a whole number of 64 bits, or None")
        self._whole("max_tokens", 1, optional=True)
        self._whole("min_tokens", 0)
        self._whole("logprobs", 0, optional=True)
        self._whole("prompt_logprobs", 0, optional=True)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(
                f"min_tokens is {self.min_tokens}: it must be at most max_tokens, {self.max_tokens}"
            )

        if self.greedy and self.n > 1:
            raise ValueError(f"n is {self.n} at temperature 0: greedy gives one answer only, so n must be 1")
        self._check_collections()

    def _check_collections(self) -> None:
        lists = ("stop", "stop_token_ids", "allowed_token_ids", "bad_words")
        for name, kinds in (*((name, Iterable) for name in lists), ("logit_bias", Mapping)):
            if (value := getattr(self, name)) is not None and not isinstance(value, kinds):
                needed = "a dict from token id to bias" if name == "logit_bias" else "a list"
                raise ValueError(f"{name} is {quoted(value)}: it must be {needed}, or None")
        for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"):
            if not isinstance(value := getattr(self, name), bool):
                raise ValueError(f"{name} is {quoted(value)}: it must be True or False")
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        if wrong := [s for s in stop if not isinstance(s, str) or not s]:
            raise ValueError(f"stop holds {quoted(wrong[0])}: each stop string needs at least one character")
        bad_words = (self.bad_words,) if isinstance(self.bad_words, str) else tuple(self.bad_words or ())
        if wrong := [s for s in bad_words if not isinstance(s, str) or not s.strip()]:
            raise ValueError(f"bad_words holds {quoted(wrong[0])}: each needs at least one character")
        ids = _token_ids("stop_token_ids", self.stop_token_ids)
        allowed = _token_ids("allowed_token_ids", self.allowed_token_ids)
        if self.allowed_token_ids is not None and not allowed:
            raise ValueError("allowed_token_ids is empty: allow at least one token, or give None")
        bias_of = None if self.logit_bias is None else {}
        for token, bias in (self.logit_bias or {}).items():
            if not _is_whole(token) or token < 0:
                raise ValueError(
                    f"logit_bias holds the token {quoted(token)}: token ids are whole numbers from 0"
                )
            if not -100 <= _as_float(bias) <= 100:
                raise ValueError(
                    f"logit_bias of token {token} is {quoted(bias)}: it must be from -100 to 100"
                )
            bias_of[int(token)] = float(bias)
        # A frozen dataclass guards its fields; this is the documented way around it while it is being made.
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", ids)
        object.__setattr__(self, "allowed_token_ids", None if self.allowed_token_ids is None else allowed)
        object.__setattr__(self, "bad_words", bad_words)
        object.__setattr__(self, "logit_bias", bias_of)

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature < GREEDY_BELOW

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise a ValueError if a token id named here is not in a vocabulary of this size."""
        for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
            for token in getattr(self, name) or ():
                if token >= vocab_size:
                    raise ValueError(
                        f"{name} holds the token {token}: this vocabulary goes from 0 to {vocab_size - 1}"
                    )

    def with_bad_words(self, encode: Callable[[str], list[int]]) -> SamplingParams:
        """The same, with the tokens of `bad_words`: as they stand at the beginning of a text and behind a space."""
        if not self.bad_words:
            return self
        found: list[tuple[int, ...]] = []
        for word in self.bad_words:
            first = tuple(encode(word.lstrip()))
            behind_space = tuple(encode(" " + word.lstrip()))
            found.append(first)
            if behind_space[0] != first[0] and len(behind_space) == len(first):
                found.append(behind_space)
        copy = replace(self)
        object.__setattr__(copy, "bad_words_token_ids", tuple(found))
        return copy

    def with_seed(self, seed: int) -> SamplingParams:
        """The same with this seed."""
        copy = replace(self, seed=seed)
        object.__setattr__(copy, "bad_words_token_ids", self.bad_words_token_ids)  # `replace` leaves them out
        return copy

    def make_generator(self, answer: int = 0) -> torch.Generator | None:
        """The request's own source of chance; None without a seed. Answer i of n uses seed + i, as in vLLM."""
        if self.seed is None:
            return None
        return torch.Generator().manual_seed((self.seed + answer) % 2**64)

    # ------------------------------------------------------------------ checks

    def _whole(
        self, name: str, lowest: int, highest: int | None = None, *, optional: bool = False, meaning: str = ""
    ) -> None:
        value = getattr(self, name)
        if value is None and optional:
            return
        if not _is_whole(value) or value < lowest or (highest is not None and value > highest):
            allowed = meaning or f"a whole number, {lowest} or above" + (", or None" if optional else "")
            raise ValueError(f"{name} is {quoted(value)}: it must be {allowed}")
        # numpy's numbers pass as well, and torch does not take them.
        object.__setattr__(self, name, int(value))

    def _real(
        self, name: str, lowest: float, highest: float, meaning: str, above_lowest: bool = False
    ) -> None:
        value = getattr(self, name)
        number = _as_float(value)
        if not (math.isfinite(number) and lowest <= number <= highest) or (above_lowest and number == lowest):
            raise ValueError(f"{name} is {quoted(value)}: it must be {meaning}")
        object.__setattr__(self, name, number)


def _token_ids(name: str, ids: Iterable[int] | None) -> tuple[int, ...]:
    ids = tuple(ids or ())
    if wrong := [i for i in ids if not _is_whole(i) or i < 0]:
        raise ValueError(f"{name} holds {quoted(wrong[0])}: token ids are whole numbers from 0")
    return tuple(map(int, ids))


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _as_float(value: Any) -> float:
    """NaN if it is no number, or too large for one."""
    try:
        return float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return math.nan
