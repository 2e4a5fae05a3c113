"""From a grammar to the tokens that may come next: `llguidance` compiles it for a vocabulary and keeps track of each answer.

For each answer llguidance keeps a state: a lexer (an automaton over bytes, for the regular parts) and an Earley parser
over it (for what nests). To mask, it walks the trie of all tokens' bytes and stops at each byte that the automaton refuses:
a whole branch of the vocabulary at once, so that a mask over 100,000 tokens takes some 50 microseconds.

Source: https://github.com/guidance-ai/llguidance, docs/toktrie.md.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from copy import copy
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from phase1_tokens_embeddings.tokens import Tokenizer
from phase2_attention_kvcache.model.transformer import Transformer
from phase4_scheduler.assembly import load_tokenizer
from phase4_scheduler.features.structured_output.params import one_line

if TYPE_CHECKING:
    import llguidance

    Consume = Callable[[llguidance.LLMatcher, int], bool]

KEPT = 256  # compiled grammars
SLOW = 0.001  # seconds of a mask. With 1,500 alternatives it takes 5 ms, and a step may need 16 of them.
# Parts of the vocabulary whose masks llguidance has ready: if all words may come next, it need not look at each. Its own parts
# are made for JSON. With this one 16 masks of `[A-Za-z ,.]{600,900}` over 8,192 tokens take 0.07 ms in place of 1.1 ms.
WORDS = "[a-zA-Z ]{1,12}"


class RequestGrammar:
    """The state of one answer in its grammar.

    Attributes:
        ended: whether the answer holds its end of text; what follows (with `ignore_eos`) is free.
        slow: whether the last mask took longer than a step should: a thread makes the next one.
        mask: of the next token, if the thread has made it.
    """

    def __init__(self, matcher: llguidance.LLMatcher, eos_token_ids: Collection[int]) -> None:
        self.matcher, self.eos_token_ids = matcher, eos_token_ids
        self.num_read = 0
        self.ended = self.slow = False
        self.mask: np.ndarray | None = None

    def read(self, output_token_ids: Sequence[int], consume: Consume | None = None) -> None:
        """Take in what is new of an answer. Raises ValueError: the grammar refuses it."""
        consume = consume or (lambda matcher, token: matcher.consume_token(token))
        for token in output_token_ids[self.num_read :]:
            self.num_read += 1
            self.mask = None
            if not self.ended and not consume(self.matcher, token):
                raise ValueError(f"the grammar refuses token {token}: {one_line(self.matcher.get_error())}")
            self.ended = self.ended or token in self.eos_token_ids

    def num_allowed(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens, from the first on, may follow."""
        return len(token_ids) if self.ended else self.matcher.validate_tokens(list(token_ids))

    def fill(self, drafts: Sequence[int], address: int, width: int) -> None:
        """Write what may come next, and behind each draft, as rows of bits.

        Args:
            drafts: those from the first on that is refused or ends the text are left out.
            address, width: of the first row; bytes of a row.
        """
        began = time.thread_time()
        for i, token in enumerate([*drafts[: self.num_allowed(drafts) if drafts else 0], None]):
            self.matcher.unsafe_compute_mask_ptr(address + i * width, width)
            if token is None or token in self.eos_token_ids:
                break  # the matcher does not count an end of text as consumed
            self.matcher.consume_token(token)
        self.matcher.rollback(i)
        self.slow = time.thread_time() - began > SLOW * (1 + i)


class GrammarCompiler:
    """Compiles grammars for a vocabulary, and fills masks over it.

    Args:
        vocab_size: the model's: tokens that the tokenizer does not know are never allowed.
        eos_token_ids: allowed where the grammar is complete.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Collection[int]) -> None:
        import llguidance

        self.vocab_size, self.eos_token_ids = vocab_size, eos_token_ids
        self._vocabulary = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_Vocabulary(tokenizer, vocab_size, eos_token_ids)),
            eos_token=list(eos_token_ids),
            slices=[*llguidance.LLTokenizer.general_slices(), WORDS],
        )
        known = self._vocabulary.vocab_size
        width = -(-max(vocab_size, known) // 32) * 32  # llguidance writes words of 32 bits
        self._everything = np.packbits(np.arange(width) < known, bitorder="little")
        self._executor = llguidance.LLExecutor(1)
        self._failed = llguidance.LLMatcher(self._vocabulary, "", log_level=0)
        self._compiled = lru_cache(maxsize=KEPT)(self._compile)

    def _compile(self, source: str) -> RequestGrammar:
        import llguidance

        matcher = llguidance.LLMatcher(self._vocabulary, source, log_level=0)
        grammar = RequestGrammar(matcher, self.eos_token_ids)
        self.look_ahead(grammar, ())  # the first mask takes the longest: the lexer is built for it
        return grammar

    def start(self, source: str) -> RequestGrammar:
        """The grammar for an answer that begins. Raises ValueError: it is invalid, or too complex."""
        grammar = copy(self._compiled(source))
        if error := grammar.matcher.get_error():
            raise ValueError(f"structured_outputs: the grammar cannot be used: {one_line(error)}")
        grammar.matcher = grammar.matcher.deep_copy()
        return grammar

    def allowed(self, asked: Sequence[tuple[RequestGrammar, Sequence[int]]]) -> np.ndarray:
        """What may come next.

        Args:
            asked: answers, each with the draft tokens that its step verifies.

        Returns:
            uint8 [rows, bytes], a bit for each token, the lowest first: of each answer a row, and one behind each of its
            drafts. Rows behind a draft that is refused, or ends the text, allow everything: they do not count.
        """
        masks = np.tile(self._everything, (sum(1 + len(drafts) for _, drafts in asked), 1))
        address, width, row = masks.ctypes.data, masks.shape[1], 0
        for grammar, drafts in asked:
            if grammar.mask is not None and not drafts:
                masks[row] = grammar.mask
            elif not grammar.ended:
                grammar.fill(drafts, address + row * width, width)
            row += 1 + len(drafts)
        for grammar, _ in asked:  # one that failed would allow the end of text only, from here on
            if grammar.matcher.is_error():
                error = one_line(grammar.matcher.get_error())
                raise ValueError(f"structured_outputs: the grammar failed: {error}")
        return masks

    def look_ahead(self, grammar: RequestGrammar, output_token_ids: Sequence[int]) -> None:
        """Take in what is new of an answer, and keep the mask of what may come next. Raises: as `RequestGrammar.read`."""
        grammar.read(output_token_ids, self._consume_aside)
        if not grammar.ended:
            mask = self._everything.copy()
            grammar.fill((), mask.ctypes.data, mask.nbytes)
            grammar.mask = mask

    def _consume_aside(self, matcher: llguidance.LLMatcher, token: int) -> bool:
        """As `consume_token`, which holds the GIL: for 1 ms with 1,500 alternatives, and longer in a thread that gives way.

        The executor releases it, but only for two matchers or more.
        """
        return self._executor.consume_token_par([(matcher, token), (self._failed.deep_copy(), token)])[0]


class LazyCompiler:
    """A `GrammarCompiler` that is made when it is first needed, in threads of its own. Steps go before them.

    Args:
        tokenizer: or the folder from which it is loaded then.
    """

    def __init__(self, tokenizer: Tokenizer | Path, model: Transformer) -> None:
        self._tokenizer, self._config = tokenizer, model.config
        self._threads: ThreadPoolExecutor | None = None

    def __call__(self) -> GrammarCompiler:
        return self._made.result()

    def _make(self) -> GrammarCompiler:
        tokenizer, config = self._tokenizer, self._config
        tokenizer = load_tokenizer(tokenizer) if isinstance(tokenizer, Path) else tokenizer
        return GrammarCompiler(tokenizer, config.vocab_size, config.eos_token_ids)

    @property
    def is_possible(self) -> bool:
        return self._tokenizer is not None and bool(self._config.eos_token_ids)

    def prepare(self) -> None:
        """Make it now: with a large vocabulary that takes a second, in which a step would wait at every operation."""
        self._start_threads()
        wait([self._made])  # what went wrong is told to the requests that need it

    def submit(self, source: str) -> Future[RequestGrammar]:
        """Have a grammar compiled. Raises ValueError: the model has no tokenizer, or no end of text."""
        if self._tokenizer is None:
            raise ValueError(
                "structured_outputs need the tokenizer: use LLMEngine.from_pretrained, or give the engine "
                "structured_tokenizer=..."
            )
        if not self._config.eos_token_ids:
            raise ValueError("structured_outputs need an end-of-text token, and this model has none")
        self._start_threads()
        return self._threads.submit(lambda: self().start(source))

    def look_ahead(self, grammar: RequestGrammar, output_token_ids: Sequence[int]) -> Future[None]:
        """`GrammarCompiler.look_ahead`, in a thread: until it is done, the grammar is that thread's."""
        return self._threads.submit(lambda: self().look_ahead(grammar, output_token_ids))

    def _start_threads(self) -> None:
        if self._threads is None:
            threads = ThreadPoolExecutor(((os.cpu_count() or 1) + 1) // 2, "grammar", give_way)
            self._made = threads.submit(self._make)
            self._threads = threads  # last: another thread may be here, too


def give_way() -> None:
    """Let other threads have the processor first. (Elsewhere than in Linux, a thread has no priority of its own.)

    A thread at the lowest "nice" value still keeps a core for milliseconds, while all threads of a step wait for that core.
    """
    if sys.platform == "linux":
        try:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        except OSError:  # some sandboxes and C libraries have no such policy
            os.nice(19)


class _Vocabulary:
    """A tokenizer as llguidance asks for it."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = next(iter(eos_token_ids))
        self.tokens = tokenizer.token_bytes[:vocab_size]
        self.special_token_ids = [i for i in tokenizer.special_tokens.values() if i < vocab_size]

    def __call__(self, text: bytes | str) -> list[int]:
        text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return self._tokenizer.encode(text)
