"""A conversation with one engine: what was said, and what each turn took.

A turn's prompt is the whole conversation so far, written down by the model's chat template. It begins as the prompt of the turn
before did, so the prefix cache (Phase 3) holds most of it already: only what is new has to be computed.

Three things end that. A forgotten turn or another system message changes the beginning. A template may leave out parts
of earlier answers (Qwen3's leaves out what the model thought). And an answer that is encoded again may fall into other
tokens than the model wrote.
"""

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from phase1_tokens_embeddings.chat import ChatTemplate
from phase1_tokens_embeddings.tokens import Tokenizer
from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase4_scheduler.engine.engine import LLMEngine
from phase4_scheduler.engine.outputs import RequestOutput

ROOM = 16  # tokens that an answer must have at least, or something old is forgotten


@dataclass(frozen=True)
class Turn:
    """What one answer took, by the engine's own counters.

    Attributes:
        prompt_tokens: the whole conversation so far. cached_tokens: those that the prefix cache saved.
        tokens: of the answer. ttft: seconds to its first token; None if there was none. seconds: to its end.
        finish_reason: "stop", "length", or "abort" if it was interrupted.
        forgotten: messages that were left out, because the conversation was too long.
    """

    prompt_tokens: int
    cached_tokens: int
    tokens: int
    ttft: float | None
    seconds: float
    finish_reason: str
    forgotten: int


def ends_of_answers(template: ChatTemplate, tokenizer: Tokenizer) -> dict[str, Any]:
    """What ends an answer beside the end of text that the model's config.json names, in the fields of `SamplingParams`.

    The template says: it writes something after each answer. Mostly that is a special token. `tales` knows none for it;
    there an answer is a speech in a story, and a quotation mark ends it.
    """
    after, special = template.after_answer(), tokenizer.special_tokens
    names = {template.special_tokens.get("eos_token"), *(name for name in special if after.startswith(name))}
    mark = after[:1] if unicodedata.category(after[:1] or " ") in ("Po", "Pf", "Pe") else ""
    return {
        "stop_token_ids": sorted(special[name] for name in names if name in special),
        "stop": [mark] if mark else [],
    }


class Conversation:
    """Messages, and an engine that answers them.

    Args:
        params: of the answers. Its max_tokens is the most that an answer may have.
        variables: more that the template asks for, such as `enable_thinking`.

    Attributes:
        messages: what was said, as a chat template takes it. turns: what each answer took.
    """

    def __init__(
        self, engine: LLMEngine, template: ChatTemplate, params: SamplingParams, **variables: Any
    ) -> None:
        self.engine, self.template, self.params, self.variables = engine, template, params, variables
        self.messages: list[dict[str, str]] = []
        self.turns: list[Turn] = []

    @property
    def system(self) -> str:
        first = self.messages[0] if self.messages else {}
        return first["content"] if first.get("role") == "system" else ""

    @system.setter
    def system(self, text: str) -> None:
        rest = [message for message in self.messages if message["role"] != "system"]
        self.messages = ([{"role": "system", "content": text}] if text else []) + rest

    def prompt(self, messages: list[dict[str, str]] | None = None) -> tuple[str, list[int]]:
        """The conversation as the model reads it: one text, and its tokens. The template's special tokens are real ones.

        Raises:
            ValueError: the template refuses these messages, or fails.
        """
        text = self.template.render(self.messages if messages is None else messages, **self.variables)
        return text, self.engine.tokenizer.encode(text, "all")

    def ask(self, text: str) -> Iterator[str]:
        """Say something; yield the answer as it is written. A caller that stops reading interrupts it; what was written stays.

        Raises:
            ValueError: the template refuses the conversation, or this message alone is too long. Nothing was said then.
        """
        messages, ids, forgotten = self._fitting([*self.messages, {"role": "user", "content": text}])
        limit = self.engine.core.scheduler.max_model_len
        params = replace(self.params, max_tokens=min(self.params.max_tokens or limit, limit - len(ids)))
        request = self.engine.stream(ids, params)
        answer = RequestOutput("", None, ids, [])
        self.messages = messages
        began = self.engine.clock()
        try:
            for new in request:
                answer.add(new)
                yield new.text
        finally:
            request.close()
            self._note(answer, forgotten, self.engine.clock() - began)
        if answer.error is not None:
            raise ValueError(answer.error)

    def _fitting(self, messages: list[dict[str, str]]) -> tuple[list[dict[str, str]], list[int], int]:
        """The messages that the context has room for, their tokens, and how many had to be forgotten."""
        limit = self.engine.core.scheduler.max_model_len
        kept = int(messages[0]["role"] == "system")
        # A question and its answer at a time, the oldest first.
        for forgotten in range(0, len(messages) - kept, 2):
            left = messages[:kept] + messages[kept + forgotten :]
            _, ids = self.prompt(left)
            if len(ids) + ROOM <= limit:
                return left, ids, forgotten
        raise ValueError(
            f"the message takes {len(ids):,} tokens, the context holds {limit:,} with {ROOM} of an answer: shorten it"
        )

    def _note(self, answer: RequestOutput, forgotten: int, seconds: float) -> None:
        said, metrics = (answer.text, answer.metrics) if answer.outputs else ("", None)
        self.messages = [*self.messages, {"role": "assistant", "content": said}]
        self.turns.append(
            Turn(
                prompt_tokens=len(answer.prompt_token_ids),
                cached_tokens=metrics.num_cached_tokens if metrics else 0,
                tokens=len(answer.token_ids) if metrics else 0,
                ttft=metrics.ttft if metrics else None,
                seconds=seconds,
                finish_reason=(answer.finish_reason if metrics else None) or "abort",
                forgotten=forgotten,
            )
        )
