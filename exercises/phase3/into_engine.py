"""The way into the engine for phase 3: `LLMEngine` with a block manager or a cache that calls the learner's part."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from exercises.judging.engine_runs import (
    PROMPTS,
    STORY,
    Answers,
    Run,
    Waves,
    cache_for,
    compare,
    side_by_side,
    warm_up,
)
from exercises.judging.side_by_side import passed
from exercises.phase3.forked_answers import forked_answers
from exercises.phase3.parts import (
    AllocatorManager,
    AttentionCache,
    CopyManager,
    OrderManager,
    PrefixManager,
    SlotsCache,
)
from phase2_attention_kvcache.model import SamplingParams
from phase3_paged_attention.paging import BlockManager, PagedKVCache
from phase3_paged_attention.sharing import ForkingBlockManager

BEGINNING = (
    "In the middle of the great forest stood a little house, and in it lived an old woman with her three sons. The eldest "
    "was strong, the second was clever, and the youngest could talk to the birds. One morning the king's messenger came "
    "to the house and said:"
)
THREE_ANSWERS = SamplingParams(temperature=1.0, seed=5, n=3, max_tokens=24, ignore_eos=True)
SHARED = tuple(BEGINNING + end for end in (" The king", " Your sons", " Who of you", " I bring"))


def with_manager(make: Callable[[], BlockManager], *cache: Any) -> Callable[[], dict[str, Any]]:
    """Parts of an engine: a block manager, and a cache for its blocks. `cache`: its class, the learner's part."""

    def parts() -> dict[str, Any]:
        manager = make()
        return {"block_manager": manager, "kv_cache": cache_for(manager, *cache)}

    return parts


def managers_side_by_side(
    mine: Callable[[], BlockManager],
    course: Callable[[], BlockManager],
    waves: Waves = (PROMPTS,),
    params: SamplingParams = STORY,
) -> tuple[Run, BlockManager, Run, BlockManager]:
    """(with the learner's manager, that manager, with the course's, that manager)."""
    a, b = side_by_side(with_manager(mine), with_manager(course), waves, params)
    return a, a.engine.core.block_manager, b, b.engine.core.block_manager


def caches_side_by_side(
    make: Callable[[], BlockManager], kind: type[PagedKVCache], part: Callable, waves: Waves = (PROMPTS,)
) -> None:
    compare(*side_by_side(with_manager(make, kind, part), with_manager(make), waves))


def forks_side_by_side(
    mine: Callable[[], ForkingBlockManager], course: Callable[[], ForkingBlockManager]
) -> tuple[Answers, int, Answers, int]:
    """(three answers with the learner's manager, blocks copied, with the course's, blocks copied)."""
    warm_up()
    pairs = [[forked_answers(make(), PROMPTS[0], THREE_ANSWERS) for make in (mine, course)] for _ in range(2)]
    result: list[Any] = []
    for (first, _), (last, copied) in zip(*pairs, strict=True):
        result += [replace(last, seconds=min(first.seconds, last.seconds)), copied]
    return tuple(result)


def allocator_in_the_engine(Allocator: type, num_blocks: int = 16) -> None:
    """Exercise 3.1: three prompts, three answers each; memory is short, so requests have to wait. Then three answers
    that share the blocks of their prompt.
    """
    passed("p3e1_allocate", Allocator)

    def make() -> AllocatorManager:
        return AllocatorManager(Allocator(num_blocks), num_blocks)

    mine, manager, course, plain = managers_side_by_side(
        make, lambda: BlockManager(num_blocks, enable_prefix_caching=False), params=THREE_ANSWERS
    )
    compare(mine, course, ("blocks free at the end", manager.learners.num_free, plain.num_free_blocks))
    shared, manager = [], make()
    for each in (manager, ForkingBlockManager(num_blocks, enable_prefix_caching=False)):
        shared.append(forked_answers(each, PROMPTS[0], THREE_ANSWERS)[0])
    print("\n--- three answers that share the blocks of one prompt")
    compare(*shared, ("blocks free at the end", manager.learners.num_free, num_blocks - 1))


def slots_in_the_engine(slots: Callable) -> None:
    """Exercise 3.2: two waves of prompts, so that the blocks of the second lie scattered."""
    passed("p3e2_block_table", slots)
    waves = (PROMPTS, SHARED[:3])
    caches_side_by_side(lambda: BlockManager(24, enable_prefix_caching=False), SlotsCache, slots, waves)


def prefix_in_the_engine(block_names: Callable, find_prefix: Callable) -> None:
    """Exercise 3.3: four prompts that begin alike, twice. The second time nearly everything is there."""
    passed("p3e3_prefix", block_names, find_prefix)
    mine, manager, course, plain = managers_side_by_side(
        lambda: PrefixManager(200, block_names, find_prefix), lambda: BlockManager(200), (SHARED, SHARED)
    )
    hits = ("prompt tokens found in the cache", manager.stats.hit_tokens, plain.stats.hit_tokens)
    compare(mine, course, hits)


def order_in_the_engine(FreeList: type) -> None:
    """Exercise 3.4: the same prompts come again and again, and memory is too small to keep everything."""
    passed("p3e4_eviction", FreeList)
    waves = (SHARED[:2], PROMPTS, SHARED[2:], PROMPTS[:2], SHARED)
    mine, manager, course, plain = managers_side_by_side(
        lambda: OrderManager(24, FreeList), lambda: BlockManager(24), waves
    )
    agree = sum(x == y for x, y in zip(mine.taken, course.taken))
    compare(
        mine,
        course,
        ("blocks taken in the course's order", agree, len(course.taken)),
        ("cached blocks that had to go", manager.stats.evicted_blocks, plain.stats.evicted_blocks),
        ("prompt tokens found in the cache", manager.stats.hit_tokens, plain.stats.hit_tokens),
    )


def copy_on_write_in_the_engine(fork: Callable, make_room: Callable) -> None:
    """Exercise 3.5: three answers that share the blocks of one prompt."""
    passed("p3e5_copy_on_write", fork, make_room)
    mine, copied, course, copied_by_course = forks_side_by_side(
        lambda: CopyManager(100, fork, make_room), lambda: ForkingBlockManager(100)
    )
    compare(mine, course, ("blocks copied", copied, copied_by_course))


def attention_in_the_engine(paged_attention: Callable) -> None:
    """Exercise 3.6: the learner's loop, beside the course's attention."""
    passed("p3e6_paged_attention", paged_attention)
    caches_side_by_side(lambda: BlockManager(60), AttentionCache, paged_attention)
