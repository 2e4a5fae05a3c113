"""For the cells "Into the engine": `LLMEngine` on the embedded model, with a learner's part and with the course's."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NoReturn

import torch
from torch import Tensor

from exercises.judging import boxes
from exercises.judging.comparing import verdict_of
from exercises.judging.side_by_side import speed
from exercises.judging.verdict import NotYet
from labkit.models import find_model
from phase1_tokens_embeddings.tokens import BPETokenizer
from phase2_attention_kvcache.model import SamplingParams, Transformer
from phase3_paged_attention.paging import BlockManager, PagedKVCache
from phase4_scheduler.engine import EngineConfig, LLMEngine
from phase4_scheduler.features.recording import record

STORY = SamplingParams(temperature=0.7, seed=11, max_tokens=24, ignore_eos=True)
PROMPTS = (
    "Once upon a time there was a king who",
    "The sea was calm, but",
    "Nobody knew where the old woman",
)
Waves = Sequence[Sequence[str]]  # when all prompts of a wave are answered, the next wave comes


@cache
def tales() -> tuple[Transformer, BPETokenizer]:
    """The embedded model in float32, where sums in another order change no token, and its tokenizer."""
    folder = find_model("tales")
    model = Transformer.from_pretrained(folder, "float32")
    return model, BPETokenizer.from_file(folder / "tokenizer.json")


@cache
def warm_up() -> None:
    """The first run of a process is slower than all later ones: it would spoil the comparison."""
    manager = BlockManager(60)
    run((PROMPTS,), SamplingParams(max_tokens=4), block_manager=manager, kv_cache=cache_for(manager))


def cache_for(
    manager: BlockManager, kind: type[PagedKVCache] = PagedKVCache, part: Any = None
) -> PagedKVCache:
    """A cache for the manager's blocks. It copies blocks together: nothing has to be compiled first.

    Args:
        kind: a class that calls the learner's part, which it finds as `self.part`.
    """
    model, _ = tales()
    kv_cache = kind(model.config, manager.num_blocks, manager.block_size, use_kernel=False)
    kv_cache.part = part
    return kv_cache


class TokenByToken(PagedKVCache):
    """New tokens of an answer attend one after the other, by a method that a subclass writes."""

    part: Callable

    def decode(self, layer: int, q: Tensor) -> Tensor:
        layout = self.layout
        return torch.stack(
            [
                self.attend_token(layer, q[row], layout.block_tables[i], length)
                for row, (i, length) in enumerate(zip(layout.decodes, layout.decode_lens, strict=True))
            ]
        )

    def attend_token(self, layer: int, q: Tensor, table: list[int], length: int) -> Tensor:
        """q: [num_heads, head_dim], the last of `length` tokens, which lie in the blocks of `table`."""
        raise NotImplementedError

    def keys_and_values(self, layer: int, table: list[int], length: int) -> tuple[Tensor, Tensor]:
        """[length, num_kv_heads, head_dim] each: those of one request, copied together."""
        blocks = torch.tensor(table[: -(-length // self.storage.block_size)])
        return self.storage.gather(layer, blocks, length)


# ---------------------------------------------------------------------- runs, and two of them side by side


@dataclass
class Answers:
    """Attributes: tokens: of every answer. text: the first answer's, with its prompt. seconds: for all of them."""

    tokens: list[list[int]]
    text: str
    seconds: float


@dataclass
class Run(Answers):
    """What came out of an engine.

    Attributes:
        steps: of each step, how many tokens of which request. taken: blocks, in the order in which they were taken.
        Others: see `Answers`.
    """

    engine: LLMEngine
    steps: list[dict[str, int]]
    taken: list[int]


def run(waves: Waves, params: SamplingParams, **parts: Any) -> Run:
    """Answer the prompts. `parts`: what `LLMEngine` is to be built of (block_manager, kv_cache, scheduler)."""
    engine = LLMEngine(*tales(), EngineConfig(), **parts)
    events: list[dict[str, Any]] = []
    record(engine, events.append)
    began, tokens, text = time.perf_counter(), [], ""
    for prompts in waves:
        for output in engine.generate(list(prompts), params):
            if output.error:
                says = "With your part the engine could not go on."
                refuse(NotYet("fails-in-the-engine", says, prompts[0], output.error, "an answer"))
            tokens += [answer.token_ids for answer in output.outputs]
            text = text or f"{output.prompt}{output.outputs[0].text} ..."
    seconds = time.perf_counter() - began
    engine.core.block_manager.check_integrity()
    taken = [block for event in events for block in event["taken"]]
    return Run(tokens, text, seconds, engine, [dict(event["tokens"]) for event in events], taken)


def side_by_side(
    mine: Callable[[], dict[str, Any]],
    course: Callable[[], dict[str, Any]],
    waves: Waves = (PROMPTS,),
    params: SamplingParams = STORY,
) -> tuple[Run, Run]:
    """(with the learner's part, with the course's). `mine` and `course` make the parts of an engine.

    In turn, each twice from the beginning; what comes back has the time of the faster one, since a single time is
    mostly noise.
    """
    warm_up()
    runs = [(run(waves, params, **mine()), run(waves, params, **course())) for _ in range(2)]
    return tuple(replace(last, seconds=min(first.seconds, last.seconds)) for first, last in zip(*runs))


def compare(mine: Answers, course: Answers, *also: tuple[str, Any, Any], note: str = "") -> None:
    """Tokens and speed side by side; raise NotYet where the tokens, or what is in `also`, differ.

    `note`: what has to be known of the speed.
    """
    for what, a, b in (("the tokens of all answers", mine.tokens, course.tokens), *also):
        if a != b:
            says = f"In the engine {what} are others than with the course's part."
            tried = f"{len(course.tokens)} answers on the embedded model"
            refuse(NotYet("other-than-the-course", says, tried, a, b))
    print(f"{sum(map(len, mine.tokens))} tokens with your part, and the same with the course's own.")
    for what, a, _ in also:
        print(f"{what}: {a}, as with the course's own")
    print(speed(mine.seconds, course.seconds) + note)
    print(f"\n{course.text}")


def refuse(error: NotYet) -> NoReturn:
    """What the engine showed, in a box."""
    boxes.display(boxes.engine_box(verdict_of(error)))
    raise error
