"""The way into the engine for exercise 4.11: the learner's mask in place of llguidance's."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future

import numpy as np

from exercises.judging.engine_runs import passed, same_or_stop, tales
from phase4_scheduler.engine import EngineConfig, LLMEngine
from phase4_scheduler.features.structured_output import StructuredSamplingParams

DIGITS = "0123456789"
# Hours 0 to 23, a colon, minutes 00 to 59.
MOVES = {
    0: dict.fromkeys("01", 1) | {"2": 2} | dict.fromkeys(DIGITS[3:], 3),
    1: dict.fromkeys(DIGITS, 3) | {":": 4},
    2: dict.fromkeys(DIGITS[:4], 3) | {":": 4},
    3: {":": 4},
    4: dict.fromkeys(DIGITS[:6], 5),
    5: dict.fromkeys(DIGITS, 6),
    6: {},
}
TIME = "([01]?[0-9]|2[0-3]):[0-5][0-9]"


def mask_in_the_engine(mask: Callable) -> None:
    """Exercise 4.11: answers under the learner's mask, beside those under the engine's."""
    passed("p4e11_mask", mask)
    model, tokenizer = tales()
    end, special = max(model.config.eos_token_ids), set(tokenizer.special_tokens.values())
    # A character for each byte: those of other scripts have no moves.
    texts = ["" if i in special else t.decode("latin-1") for i, t in enumerate(tokenizer.token_bytes)]

    class Answer:
        """An answer's state in the automaton."""

        ended = False

        def read(self, token_ids: Sequence[int]) -> None:
            self.state = 0
            for character in "".join(texts[token] for token in token_ids):
                self.state = MOVES[self.state][character]

    class Yours:
        def __call__(self) -> "Yours":
            return self

        def submit(self, source: str) -> Future:
            ready: Future = Future()
            ready.set_result(Answer())
            return ready

        def banned(self, asked: Sequence[tuple[Answer, Sequence[int]]]) -> np.ndarray:
            return ~np.array([mask(MOVES, {6}, answer.state, texts, end) for answer, _ in asked])

    def answers(compiler: Yours | None) -> list[list[int]]:
        engine = LLMEngine(model, tokenizer, EngineConfig(num_blocks=100), structured_tokenizer=tokenizer)
        if compiler is not None:
            engine.core.compiler = engine.core.runner.compiler = compiler
        wanted = {"regex": TIME}
        params = [StructuredSamplingParams(seed=i, max_tokens=8, structured_outputs=wanted) for i in range(6)]
        return [output.token_ids for output in engine.generate(["They will meet at"] * 6, params)]

    yours, course = answers(Yours()), answers(None)
    for one, other in zip(yours, course, strict=True):
        same_or_stop(one, other, says="under your mask other tokens came out")
    print(
        "They will meet at:", ", ".join(tokenizer.decode(ids).removesuffix("<|endoftext|>") for ids in yours)
    )
