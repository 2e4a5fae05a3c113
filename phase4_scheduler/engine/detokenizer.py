"""Tokens to text while they arrive, and stop strings found in it.

Source: vllm/v1/engine/detokenizer.py.
"""

from collections.abc import Sequence

from phase1_tokens_embeddings.tokens import StreamDecoder, Tokenizer
from phase2_attention_kvcache.model.sampling_params import SamplingParams


class IncrementalDetokenizer:
    """Turns an answer's tokens into text that is certain, and finds stop strings in it.

    A stop string may begin in one token and end three tokens later. So text that might be the beginning of
    one is held back until it is clear: a user must never see half of it. Nothing else waits.

    >>> detokenizer = IncrementalDetokenizer(tokenizer, SamplingParams(stop="END"))
    >>> [detokenizer.push(i) for i in tokenizer.encode("the E")], detokenizer.stopped_by
    (['the', ' '], None)

    Source: vllm/v1/engine/detokenizer.py.
    """

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self._decoder = StreamDecoder(tokenizer, params.skip_special_tokens, continues=True)
        self._vocab_size = tokenizer.vocab_size
        self._stop: Sequence[str] = params.stop
        self._keep_stop = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._num_tokens = 0
        self._held = ""  # decoded, not shown yet
        self.stopped_by: str | None = None

    def push(self, token_id: int) -> str:
        """Take one token; return the text that is certain now."""
        self._num_tokens += 1
        if token_id >= self._vocab_size:  # tables are often padded: such a token stands for no text
            return self._release("")
        return self._release(self._decoder.push(token_id))

    def update(self, token_id: int, finish_reason: str | None) -> tuple[str, str | None]:
        """Take a token, and why the sequence ends with it, if it does.

        Returns:
            the text that is certain now, and the stop string that is complete with it, if one is.
        """
        text = ""
        if finish_reason != "stop" or self._keep_stop:  # a stop token's own text is not shown
            text = self.push(token_id)
        if finish_reason is not None and self.stopped_by is None:
            text += self.finish()
        return text, self.stopped_by

    def finish(self) -> str:
        """No more tokens will come: return what waits."""
        rest = self._release(self._decoder.finish())
        if self.stopped_by is None:
            rest, self._held = rest + self._held, ""
        return rest

    def _release(self, new: str) -> str:
        if self.stopped_by is not None:
            return ""
        text = self._held + new
        if not self._stop:
            return text
        if self._num_tokens > self._min_tokens:
            # It has to end in the new text: what is held back was searched before, or came too early to count.
            old = len(self._held)
            found = [
                (at, -len(s), s) for s in self._stop if (at := text.find(s, max(0, old + 1 - len(s)))) >= 0
            ]
            if found:  # the first to begin; of two that begin together the longer one
                at, _, self.stopped_by = min(found)
                self._held = ""
                return text[: at + len(self.stopped_by)] if self._keep_stop else text[:at]
        waiting = max(_overlap(text, s) for s in self._stop)
        self._held = text[len(text) - waiting :]
        return text[: len(text) - waiting]


def _overlap(text: str, stop: str) -> int:
    """Characters at the end of `text` that may be the beginning of `stop`, but not all of it."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
