"""The settings of speculative decoding, under vLLM's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from labkit.checks import check_fields, whole
from labkit.foreign import quoted

METHODS = ("ngram", "draft_model", "custom")
OF_METHOD = {"model": "draft_model", "prompt_lookup_min": "ngram", "prompt_lookup_max": "ngram"}
DEFAULT_LOOKUP = 5  # tokens, where neither bound is given


@dataclass(frozen=True)
class SpeculativeConfig:
    """What guesses the next tokens of a request, and how many.

    Attributes:
        num_speculative_tokens: most drafts for a request in a step: k.
        method: "ngram" (copy what followed the same words before), "draft_model" (a small model), or "custom" (a
            proposer of your own, given to the engine); None: "draft_model" where a model is named.
        prompt_lookup_min, prompt_lookup_max: how many tokens must have occurred before ("ngram"). Where one is None
            it equals the other; where both are, 5.
        model: name or folder of the small model.
        draft_sample_method: "greedy" (its likeliest tokens) or "probabilistic" (drawn from its own distribution).

    Raises:
        ValueError: a value out of its range.

    Source: vllm/config/speculative.py.
    """

    num_speculative_tokens: Annotated[int, whole(1)]
    method: str | None = None
    prompt_lookup_min: Annotated[int | None, whole(1, optional=True)] = None
    prompt_lookup_max: Annotated[int | None, whole(1, optional=True)] = None
    model: str | Path | None = None
    draft_sample_method: str = "greedy"

    def __post_init__(self) -> None:
        if self.method is None and self.model is not None:
            object.__setattr__(self, "method", "draft_model")
        if self.method not in METHODS:
            raise ValueError(
                f"speculative_config: method is {quoted(self.method)}: use {', '.join(METHODS[:-1])} or {METHODS[-1]}"
            )
        check_fields(self)
        if self.draft_sample_method not in ("greedy", "probabilistic"):
            raise ValueError(
                f"speculative_config: draft_sample_method is {quoted(self.draft_sample_method)}: "
                "use greedy or probabilistic"
            )
        for name, method in OF_METHOD.items():
            if getattr(self, name) is not None and self.method != method:
                raise ValueError(
                    f"speculative_config: {name} belongs to the method {method}, and method is {self.method}: leave one out"
                )
        if self.method == "draft_model" and self.model is None:
            raise ValueError(
                "speculative_config: method draft_model needs a model: name one, such as tales-draft"
            )
        if self.method == "ngram":
            least = self.prompt_lookup_min or self.prompt_lookup_max or DEFAULT_LOOKUP
            most = self.prompt_lookup_max or self.prompt_lookup_min or DEFAULT_LOOKUP
            if least > most:
                raise ValueError(
                    f"speculative_config: prompt_lookup_min is {least}, prompt_lookup_max {most}: "
                    "the first must not be larger"
                )
            object.__setattr__(self, "prompt_lookup_min", least)
            object.__setattr__(self, "prompt_lookup_max", most)

    @classmethod
    def of(cls, value: SpeculativeConfig | Mapping[str, Any] | None) -> SpeculativeConfig | None:
        """The settings as users give them: made already, or as a dict as in `--speculative-config`."""
        if value is None or isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise ValueError(f"speculative_config is {quoted(value)}: give a dict, or SpeculativeConfig(...)")
        known = [f.name for f in fields(cls)]
        if unknown := [name for name in value if name not in known]:
            raise ValueError(
                f"speculative_config: unknown field {quoted(unknown[0])}: it has {', '.join(known)}"
            )
        if "num_speculative_tokens" not in value:
            raise ValueError("speculative_config: num_speculative_tokens is missing: give 1 or more")
        return cls(**value)

    @property
    def num_draft_slots(self) -> int:
        """What a scheduled request costs of the token budget beyond its tokens.

        A draft model sees one token more than the model in the same step: the one that has just been sampled.
        """
        return 1 if self.method == "draft_model" else 0
