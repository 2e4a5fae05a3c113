"""The parts of an engine: the course's, or those that somebody brings in their place, and whether they fit together."""

from __future__ import annotations

from dataclasses import fields

from phase2_attention_kvcache.model.transformer import Transformer
from phase3_paged_attention.paging import PagedCache
from phase3_paged_attention.paging.block_manager import BlockManager
from phase4_scheduler.engine.backends import make_runner
from phase4_scheduler.engine.config import EngineConfig, default_num_blocks
from phase4_scheduler.engine.model_runner import ModelRunner
from phase4_scheduler.engine.scheduler import Scheduler, SchedulerConfig


def build_parts(
    model: Transformer,
    config: EngineConfig,
    block_manager: BlockManager | None = None,
    scheduler: Scheduler | None = None,
    kv_cache: PagedCache | None = None,
) -> tuple[Scheduler, ModelRunner]:
    """A scheduler, with its block manager, and a runner, with its cache. What is None is made from `config`.

    Raises:
        ValueError: parts that do not fit together, or a limit beyond the model's context.
    """
    context = model.config.max_context
    longest = context if config.max_model_len is None else config.max_model_len
    if not 1 <= longest <= context:
        raise ValueError(f"max_model_len is {longest:,}: from 1 to the model's context, {context:,}")
    if scheduler is None:
        scheduler = _make_scheduler(model, config, longest, block_manager)
    elif block_manager not in (None, scheduler.block_manager):
        raise ValueError("scheduler and block_manager keep different books: give the scheduler's own")
    elif scheduler.config.max_model_len > context:
        raise ValueError(
            f"the scheduler's max_model_len is {scheduler.config.max_model_len:,}, the model's context "
            f"{context:,}: ask for no more"
        )
    manager, limits = scheduler.block_manager, scheduler.config
    if kv_cache is None:
        runner = make_runner(model, manager, config, limits.max_num_seqs, limits.max_model_len)
    else:
        runner = ModelRunner(model, kv_cache)
    cache = runner.kv_cache
    if cache.num_blocks < manager.num_blocks or cache.block_size != manager.block_size:
        raise ValueError(
            f"kv_cache has {cache.num_blocks} blocks of {cache.block_size}, the block manager gives out "
            f"{manager.num_blocks} of {manager.block_size}: make them equal"
        )
    return scheduler, runner


def _make_scheduler(
    model: Transformer, config: EngineConfig, longest: int, block_manager: BlockManager | None
) -> Scheduler:
    if block_manager is None:
        num_blocks = config.num_blocks
        block_manager = BlockManager(
            default_num_blocks(model, config, longest) if num_blocks is None else num_blocks,
            config.block_size,
            config.enable_prefix_caching,
            config.num_swap_blocks,
        )
    shared = {f.name for f in fields(SchedulerConfig)} & {f.name for f in fields(EngineConfig)}
    settings = {name: getattr(config, name) for name in shared} | {"max_model_len": longest}
    return Scheduler(SchedulerConfig(**settings), block_manager)
