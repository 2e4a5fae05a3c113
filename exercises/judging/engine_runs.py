"""For the cells "Into the engine": `LLMEngine` on the embedded model, with a learner's part and with the course's."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NoReturn

import torch
from torch import Tensor

from exercises.judging import boxes
from exercises.judging.comparing import verdict_of
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
    """Attributes: tokens: of every answer. text: the first answer's, with its prompt."""

    tokens: list[list[int]]
    text: str


@dataclass
class Run(Answers):
    """What came out of an engine. manager: its block manager. taken: blocks, in the order in which they were taken."""

    manager: BlockManager
    taken: list[int]


def run(
    waves: Waves = (PROMPTS,),
    params: SamplingParams = STORY,
    manager: BlockManager | None = None,
    kind: type[PagedKVCache] = PagedKVCache,
    part: Any = None,
) -> Run:
    """Answer the prompts. manager: by default one with memory for all. kind, part: see `cache_for`."""
    manager = manager or BlockManager(60)
    kv_cache = cache_for(manager, kind, part)
    engine = LLMEngine(*tales(), EngineConfig(), block_manager=manager, kv_cache=kv_cache)
    events: list[dict[str, Any]] = []
    record(engine, events.append)
    tokens, text = [], ""
    for prompts in waves:
        for output in engine.generate(list(prompts), params):
            if output.error:
                says = "With your part the engine could not go on."
                refuse(NotYet("fails-in-the-engine", says, prompts[0], output.error, "an answer"))
            tokens += [answer.token_ids for answer in output.outputs]
            text = text or f"{output.prompt}{output.outputs[0].text} ..."
    manager.check_integrity()
    return Run(tokens, text, manager, [block for event in events for block in event["taken"]])


def compare(mine: Answers, course: Answers, *also: tuple[str, Any, Any]) -> None:
    """Print what came out with the learner's part; raise NotYet where the tokens, or what is in `also`, differ."""
    for what, a, b in (("the tokens of all answers", mine.tokens, course.tokens), *also):
        if a != b:
            says = f"In the engine {what} are others than with the course's part."
            tried = f"{len(course.tokens)} answers on the embedded model"
            refuse(NotYet("other-than-the-course", says, tried, a, b))
    print(f"{sum(map(len, mine.tokens))} tokens with your part, and the same with the course's own.")
    for what, a, _ in also:
        print(f"{what}: {a}, as with the course's own")
    print(f"\n{course.text}")


def refuse(error: NotYet) -> NoReturn:
    """What the engine showed, in a box."""
    boxes.display(boxes.engine_box(verdict_of(error)))
    raise error
