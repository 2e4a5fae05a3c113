"""What an answer must match, under vLLM's names, and how it is written down for llguidance."""

from __future__ import annotations

import json as json_format
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

from labkit.foreign import quoted, visible
from phase2_attention_kvcache.model.sampling_params import SamplingParams

KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


@dataclass(frozen=True)
class StructuredOutputsParams:
    """What an answer must match: exactly one of

    Attributes:
        json: a JSON schema, as a dict or as text.
        regex: a regular expression that the whole answer matches, without look-around and back references.
        choice: a list of texts, of which the answer is one.
        grammar: a context-free grammar, as EBNF (`root ::= ...`) or in Lark's form (`start: ...`).
        json_object: True: any JSON object.
        structural_tag: free text in which each begin tag, `<function=f>` for instance, is followed by JSON that matches its
            schema: {"structures": [{"begin", "schema", "end"}], "triggers": [...]}.

    and for JSON:
        disable_any_whitespace: no spaces and line ends between its parts.
        source: all of that in llguidance's form.

    Raises:
        ValueError: none of them or several, or no valid grammar. The message is one line.

    Source: vllm/sampling_params.py, StructuredOutputsParams; vllm/v1/structured_output/backend_guidance.py.
    """

    json: str | Mapping[str, Any] | bool | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    structural_tag: str | Mapping[str, Any] | None = None
    source: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError(
                f"structured_outputs has {' and '.join(given) or 'no constraint'}: give one of {', '.join(KINDS)}"
            )
        kind, value = given[0], getattr(self, given[0])
        try:
            source = self._source(kind, value)
            error = find_error(source)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as reason:
            error = str(reason) if type(reason) is ValueError else f"{type(reason).__name__}: {reason}"
        if error:
            raise ValueError(f"structured_outputs: {kind} is no valid grammar: {one_line(error)}")
        object.__setattr__(self, "source", source)

    def _source(self, kind: str, value: Any) -> str:
        import llguidance

        if kind == "json_object":
            if value is not True:
                raise ValueError("json_object must be true, or left out")
            return self._json_source({"type": "object"})
        if kind == "json":
            return self._json_source(json_format.loads(value) if isinstance(value, str) else value)
        if kind == "structural_tag":
            return self._tag_source(json_format.loads(value) if isinstance(value, str) else value)
        if kind == "choice":
            if not value or isinstance(value, str) or not all(isinstance(text, str) for text in value):
                raise ValueError("give a list of at least one text")
            return llguidance.grammar_from("choice", json_format.dumps(list(value)))
        if not isinstance(value, str):
            raise ValueError(f"{quoted(value)} is no text")
        if kind == "grammar" and not value.strip():
            raise ValueError("it is empty")
        return llguidance.grammar_from(kind, value)

    def _json_source(self, schema: Any) -> str:
        import llguidance

        if not isinstance(schema, (Mapping, bool)):
            raise ValueError(f"{quoted(schema)} is no schema: give an object")
        options = {"whitespace_flexible": not self.disable_any_whitespace}
        # A schema that is true or false is no object, and llguidance takes objects only.
        schema = schema if isinstance(schema, Mapping) else {"allOf": [schema]}
        return llguidance.LLMatcher.grammar_from_json_schema(json_format.dumps(schema), defaults=options)

    def _tag_source(self, tag: Mapping[str, Any]) -> str:
        import llguidance

        if not tag.get("structures"):
            raise ValueError('give "structures" and "triggers"')
        tags = []
        for part in tag["structures"]:
            trigger = next((t for t in tag["triggers"] if t and part["begin"].startswith(t)), None)
            if trigger is None:
                raise ValueError(f"{quoted(part['begin'])} begins with none of the triggers")
            inner = self._json_source(part.get("schema") or {})
            tags.append(
                llguidance.StructTag(trigger=trigger, begin=part["begin"], grammar=inner, end=part["end"])
            )
        return llguidance.StructTag.to_grammar(tags, assume_special=False)


@lru_cache(maxsize=256)
def find_error(source: str) -> str:
    """What is wrong with a grammar in llguidance's form; "" if nothing is. Other threads go on meanwhile."""
    import llguidance

    return llguidance.LLMatcher.validate_grammar(source)


def one_line(text: str, longest: int = 300) -> str:
    return visible(" ".join(text.split()), longest)


@dataclass(frozen=True)
class StructuredSamplingParams(SamplingParams):
    """Sampling parameters of a request whose answer must match something.

    >>> StructuredSamplingParams(structured_outputs=StructuredOutputsParams(choice=["yes", "no"]))

    Attributes:
        structured_outputs: what; also as a dict. Others: as in `SamplingParams`.
    """

    structured_outputs: StructuredOutputsParams | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(given := self.structured_outputs, Mapping):
            known = [f.name for f in fields(StructuredOutputsParams) if f.init]
            if unknown := [name for name in given if name not in known]:
                raise ValueError(
                    f"structured_outputs: unknown field {quoted(unknown[0])}: it has {', '.join(known)}"
                )
            object.__setattr__(self, "structured_outputs", StructuredOutputsParams(**given))
        elif not isinstance(self.structured_outputs, StructuredOutputsParams | None):
            raise ValueError(
                f"structured_outputs is {self.structured_outputs!r}: use StructuredOutputsParams or a dict"
            )
