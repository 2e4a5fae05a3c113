"""The way into the engine: `LLMEngine` on the embedded model, with one of its parts written by the learner."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NoReturn

from exercises.grading import NotYet, Verdict
from exercises.judging import boxes
from exercises.judging.side_by_side import passed, speed
from exercises.phase3.parts import (
    AllocatorManager,
    AttentionCache,
    CopyManager,
    OrderManager,
    PrefixManager,
    SlotsCache,
)
from labkit.models import find_model
from phase1_tokens_embeddings.tokens.tokenizer import BPETokenizer
from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase2_attention_kvcache.model.transformer import Transformer
from phase3_paged_attention.paging import BlockManager, PagedKVCache, PhysicalBlock
from phase4_scheduler.engine.config import EngineConfig
from phase4_scheduler.engine.engine import LLMEngine

STORY = SamplingParams(temperature=0.7, seed=11, max_tokens=24, ignore_eos=True)
PROMPTS = (
    "Once upon a time there was a king who",
    "The sea was calm, but",
    "Nobody knew where the old woman",
)
BEGINNING = (
    "In the middle of the great forest stood a little house, and in it lived an old woman with her three sons. The eldest "
    "was strong, the second was clever, and the youngest could talk to the birds. One morning the king's messenger came "
    "to the house and said:"
)
SHARED = tuple(BEGINNING + end for end in (" The king", " Your sons", " Who of you", " I bring"))


@cache
def tales() -> tuple[Transformer, BPETokenizer]:
    """The embedded model in float32, where sums in another order change no token. It has run once, so it is warm."""
    folder = find_model("tales")
    model, tokenizer = (
        Transformer.from_pretrained(folder, "float32"),
        BPETokenizer.from_file(folder / "tokenizer.json"),
    )
    manager = BlockManager(60)
    kv_cache = PagedKVCache(model.config, 60, manager.block_size, model.dtype, model.device, use_kernel=False)
    engine = LLMEngine(model, tokenizer, EngineConfig(), block_manager=manager, kv_cache=kv_cache)
    engine.generate(list(PROMPTS), SamplingParams(max_tokens=4))
    return model, tokenizer


@dataclass
class Run:
    """What came out: the tokens of every answer, the first answer's text, and how long it took."""

    tokens: list[list[int]]
    text: str
    seconds: float


def refuse(error: NotYet) -> NoReturn:
    """What the engine showed, in a box."""
    verdict = Verdict.of(error)
    parts = (
        ("", verdict.says, False),
        ("your part gave", verdict.got, True),
        ("the course's", verdict.expected, True),
    )
    boxes.display(boxes.Box("not yet", f"Not yet · {verdict.tried}", parts))
    raise error


def gathering(manager: BlockManager, kind: type[PagedKVCache] = PagedKVCache, *part: Any) -> PagedKVCache:
    """A cache for the manager's blocks. It copies blocks together: nothing has to be compiled first."""
    model, _ = tales()
    kv_cache = kind(
        model.config, manager.num_blocks, manager.block_size, model.dtype, model.device, use_kernel=False
    )
    if part:
        kv_cache.part = part[0]
    return kv_cache


def run(
    manager: BlockManager,
    kv_cache: PagedKVCache | None,
    waves: Sequence[Sequence[str]] = (PROMPTS,),
    params: SamplingParams = STORY,
) -> Run:
    """Answer some prompts; when all are done, the next wave of them."""
    model, tokenizer = tales()
    engine = LLMEngine(model, tokenizer, EngineConfig(), block_manager=manager, kv_cache=kv_cache)
    began, tokens, text = time.perf_counter(), [], ""
    for prompts in waves:
        for output in engine.generate(list(prompts), params):
            if output.error:
                refuse(
                    NotYet("fails-in-the-engine", "With your part the engine could not go on.", prompts[0], output.error, "an answer")
                )  # fmt: skip
            tokens += [answer.token_ids for answer in output.outputs]
            text = text or f"{output.prompt}{output.outputs[0].text} ..."
    seconds = time.perf_counter() - began
    manager.check_integrity()
    return Run(tokens, text, seconds)


def side_by_side(
    course: Callable[[], BlockManager],
    mine: Callable[[], BlockManager],
    kind: type[PagedKVCache] = PagedKVCache,
    *part: Any,
    waves: Sequence[Sequence[str]] = (PROMPTS,),
    params: SamplingParams = STORY,
    rounds: int = 3,
) -> tuple[Run, BlockManager, Run, BlockManager]:
    """(with the course's part, its manager, with the learner's, its manager).

    In turn, each a few times from the beginning; what comes back has the time of the fastest, since a single time is
    mostly noise.
    """
    seconds = [math.inf, math.inf]
    for _ in range(rounds):
        a, b = course(), mine()
        runs = run(a, gathering(a), waves, params), run(b, gathering(b, kind, *part), waves, params)
        seconds = [min(known, one.seconds) for known, one in zip(seconds, runs)]
    first, second = (replace(one, seconds=best) for one, best in zip(runs, seconds))
    return first, a, second, b


def compare(mine: Run, course: Run, *also: tuple[str, Any, Any], note: str = "") -> None:
    """Tokens and speed side by side; raise NotYet where the tokens, or what is in `also`, differ.

    `note`: what has to be known of the speed.
    """
    wanted = [("the tokens of all answers", mine.tokens, course.tokens), *also]
    for what, a, b in wanted:
        if a != b:
            refuse(
                NotYet(
                    "other-than-the-course", f"In the engine {what} are others than with the course's part.",
                    f"{len(course.tokens)} answers on the embedded model", a, b,
                )
            )  # fmt: skip
    print(f"{sum(map(len, mine.tokens))} tokens with your part, and the same with the course's own.")
    for what, a, _ in also:
        print(f"{what}: {a}, as with the course's own")
    print(speed(mine.seconds, course.seconds) + note)
    print(f"\n{course.text}")


def allocator_in_the_engine(Allocator: type, num_blocks: int = 16) -> None:
    """Exercise 3.1: three prompts, three answers each; memory is short, so somebody has to wait."""
    passed("p3e1_allocate", Allocator)
    params = SamplingParams(temperature=1.0, seed=5, n=3, max_tokens=24, ignore_eos=True)
    course, plain, mine, manager = side_by_side(
        lambda: BlockManager(num_blocks, enable_prefix_caching=False),
        lambda: AllocatorManager(Allocator(num_blocks), num_blocks),
        params=params,
    )
    compare(mine, course, ("blocks free at the end", manager.learners.num_free, plain.num_free_blocks))


def slots_in_the_engine(slots: Callable) -> None:
    """Exercise 3.2: two waves of prompts, so that the blocks of the second lie scattered."""
    passed("p3e2_block_table", slots)
    waves = (PROMPTS, SHARED[:3])

    def make() -> BlockManager:
        return BlockManager(24, enable_prefix_caching=False)

    course, _, mine, _ = side_by_side(make, make, SlotsCache, slots, waves=waves)
    compare(mine, course)


def prefix_in_the_engine(block_names: Callable, find_prefix: Callable) -> None:
    """Exercise 3.3: four prompts that begin alike, twice. The second time nearly everything is there."""
    passed("p3e3_prefix", block_names, find_prefix)
    course, plain, mine, manager = side_by_side(
        lambda: BlockManager(200),
        lambda: PrefixManager(200, block_names, find_prefix),
        waves=(SHARED, SHARED),
    )
    compare(
        mine, course, ("prompt tokens found in the cache", manager.stats.hit_tokens, plain.stats.hit_tokens)
    )


def takes_of(manager: BlockManager) -> list[int]:
    """A list to which every block that the manager takes from now on is added."""
    taken, take = [], manager.allocator.take

    def noted() -> PhysicalBlock:
        block = take()
        taken.append(block.block_id)
        return block

    manager.allocator.take = noted
    return taken


def order_in_the_engine(FreeList: type) -> None:
    """Exercise 3.4: the same prompts come again and again, and memory is too small to keep everything."""
    passed("p3e4_eviction", FreeList)
    waves = (SHARED[:2], PROMPTS, SHARED[2:], PROMPTS[:2], SHARED)
    orders: list[list[int]] = []

    def noted(manager: BlockManager) -> BlockManager:
        orders.append(takes_of(manager))
        return manager

    course, plain, mine, manager = side_by_side(
        lambda: noted(BlockManager(24)), lambda: noted(OrderManager(24, FreeList)), waves=waves, rounds=2
    )
    right_order, order = orders[-2:]
    a, b = manager.stats, plain.stats
    agree = sum(x == y for x, y in zip(order, right_order))
    compare(
        mine,
        course,
        ("blocks taken in the course's order", agree, len(right_order)),
        ("cached blocks that had to go", a.evicted_blocks, b.evicted_blocks),
        ("prompt tokens found in the cache", a.hit_tokens, b.hit_tokens),
    )


def copy_on_write_in_the_engine(fork: Callable, make_room: Callable) -> None:
    """Exercise 3.5: three answers to each prompt."""
    passed("p3e5_copy_on_write", fork, make_room)
    params = SamplingParams(temperature=1.0, seed=3, n=3, max_tokens=24, ignore_eos=True)
    course, plain, mine, manager = side_by_side(
        lambda: BlockManager(100), lambda: CopyManager(100, fork, make_room), params=params
    )
    compare(mine, course, ("blocks copied", manager.stats.copied_blocks, plain.stats.copied_blocks))


def attention_in_the_engine(paged_attention: Callable) -> None:
    """Exercise 3.6: the learner's loop, beside the course's attention."""
    passed("p3e6_paged_attention", paged_attention)
    course, _, mine, _ = side_by_side(
        lambda: BlockManager(60), lambda: BlockManager(60), AttentionCache, paged_attention
    )
    compare(mine, course)
