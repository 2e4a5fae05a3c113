"""The way into the engine for phase 3: `LLMEngine` with a block manager or a cache that calls the learner's part."""

from collections.abc import Callable
from typing import Any

from exercises.judging.engine_runs import PROMPTS, STORY, Run, Waves, cache_for, compare, side_by_side
from exercises.judging.side_by_side import passed
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

BEGINNING = (
    "In the middle of the great forest stood a little house, and in it lived an old woman with her three sons. The eldest "
    "was strong, the second was clever, and the youngest could talk to the birds. One morning the king's messenger came "
    "to the house and said:"
)
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
    return a, a.engine.block_manager, b, b.engine.block_manager


def caches_side_by_side(
    make: Callable[[], BlockManager], kind: type[PagedKVCache], part: Callable, waves: Waves = (PROMPTS,)
) -> None:
    compare(*side_by_side(with_manager(make, kind, part), with_manager(make), waves))


def allocator_in_the_engine(Allocator: type, num_blocks: int = 16) -> None:
    """Exercise 3.1: three prompts, three answers each; memory is short, so requests have to wait."""
    passed("p3e1_allocate", Allocator)
    mine, manager, course, plain = managers_side_by_side(
        lambda: AllocatorManager(Allocator(num_blocks), num_blocks),
        lambda: BlockManager(num_blocks, enable_prefix_caching=False),
        params=SamplingParams(temperature=1.0, seed=5, n=3, max_tokens=24, ignore_eos=True),
    )
    compare(mine, course, ("blocks free at the end", manager.learners.num_free, plain.num_free_blocks))


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
    """Exercise 3.5: three answers to each prompt."""
    passed("p3e5_copy_on_write", fork, make_room)
    mine, manager, course, plain = managers_side_by_side(
        lambda: CopyManager(100, fork, make_room),
        lambda: BlockManager(100),
        params=SamplingParams(temperature=1.0, seed=3, n=3, max_tokens=24, ignore_eos=True),
    )
    compare(mine, course, ("blocks copied", manager.stats.copied_blocks, plain.stats.copied_blocks))


def attention_in_the_engine(paged_attention: Callable) -> None:
    """Exercise 3.6: the learner's loop, beside the course's attention."""
    passed("p3e6_paged_attention", paged_attention)
    caches_side_by_side(lambda: BlockManager(60), AttentionCache, paged_attention)
