"""The parts of an engine, put together: the course's, or a learner's own in their place, with the features that are asked for."""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import torch

from labkit.machine import memory_bytes, pick_device
from labkit.models import find_model
from phase1_tokens_embeddings.tokens import Tokenizer
from phase1_tokens_embeddings.weights import gguf_model, kv_per_token
from phase2_attention_kvcache.model.transformer import Transformer
from phase3_paged_attention.paging import BlockManager, PagedCache
from phase4_scheduler.assembly.feature import (
    Feature,
    extended,
    feature_name,
    find_features,
    mixed,
    refuse_pairs,
)
from phase4_scheduler.engine.config import EngineConfig
from phase4_scheduler.engine.core import EngineCore
from phase4_scheduler.engine.model_runner import ModelRunner
from phase4_scheduler.engine.scheduler import Scheduler

GPU_SHARE = 0.8  # of a GPU's free memory
MEMORY_SHARE = 0.3  # of the machine's memory for keys and values, unless num_blocks says otherwise
RUNNERS = "inference_lab.runners"  # entry points of pyproject.toml: a runner's class, by device


def split_settings(settings: Mapping[str, Any]) -> tuple[EngineConfig, list[Feature]]:
    """The core's settings, and the features with theirs."""
    core = {f.name for f in fields(EngineConfig)}
    features = find_features({n: value for n, value in settings.items() if n not in core})
    return EngineConfig(**{n: value for n, value in settings.items() if n in core}), features


def load_engine(kind: type, folder: Path, dtype: str, device: str, settings: Mapping[str, Any]) -> Any:
    """An engine of this kind for a model in a folder. Raises: as `load_model`; ValueError: a setting out of range, or unknown."""
    config, features = split_settings(settings)
    model = load_model(folder, dtype, device, features)
    return kind(model, load_tokenizer(folder), config, features=features)


def load_model(
    path_or_name: str | Path, dtype: str = "bfloat16", device: str = "auto", features: Sequence[Feature] = ()
) -> Transformer:
    """A model, ready to serve. Raises: as `find_model` and `Transformer.from_pretrained`."""
    folder, device = find_model(path_or_name), pick_device(device)
    for feature in features:
        if (model := feature.load_model(folder, dtype, device)) is not None:
            return model
    model = Transformer.from_pretrained(folder, dtype, device)
    for feature in features:
        feature.prepare_model(model)
    return model


def load_tokenizer(path_or_name: str | Path) -> Tokenizer | None:
    """A model's tokenizer; None if its folder holds none. Raises: as `gguf_model.load_tokenizer`."""
    path = find_model(path_or_name)
    if path.is_dir() and not (path / "tokenizer.json").is_file():
        return None
    return gguf_model.load_tokenizer(path)


def build_core(
    model: Transformer,
    config: EngineConfig,
    *,
    block_manager: BlockManager | None = None,
    scheduler: Scheduler | None = None,
    kv_cache: PagedCache | None = None,
    clock: Callable[[], float] = time.perf_counter,
    features: Sequence[Feature] | None = None,
    **settings: Any,
) -> EngineCore:
    """An engine's core. Parts that are None are made from `config`.

    Args:
        features: those to use; None: the installed ones, with these `settings`.
        settings: of features, and fields of `EngineConfig` that replace those of `config`.

    Raises:
        ValueError: parts or features that do not fit together, or a limit beyond the model's context
            (that of a scheduler of your own is lowered to it).
    """
    features = find_features(settings) if features is None else features
    config = replace(config, **{f.name: settings[f.name] for f in fields(EngineConfig) if f.name in settings})
    context = model.config.max_context
    longest = context if config.max_model_len is None else config.max_model_len
    if not 1 <= longest <= context:
        raise ValueError(f"max_model_len is {longest:,}: from 1 to the model's context, {context:,}")
    config = replace(config, max_model_len=longest)
    features = [feature for feature in features if feature.is_on(model, config, features)]
    refuse_pairs(features)

    if scheduler is None:
        if block_manager is None:
            num_blocks = config.num_blocks or default_num_blocks(model, config, features)
            sizes = (num_blocks, config.block_size, config.enable_prefix_caching)
            block_manager = extended(BlockManager, "block_manager", features, *sizes)
        scheduler = extended(Scheduler, "scheduler", features, config, block_manager)
    elif block_manager not in (None, scheduler.block_manager):
        raise ValueError("scheduler and block_manager do not belong together: give the scheduler's own")
    scheduler.max_model_len = min(scheduler.max_model_len, context)
    manager = scheduler.block_manager
    for feature in features:
        for part, given in (("scheduler", scheduler), ("block_manager", manager)):
            needed = getattr(feature, part)
            if needed is not None and not isinstance(given, needed) and not feature.optional:
                raise ValueError(
                    f"{feature_name(feature)} needs a {part} that is a {needed.__name__}: leave yours out"
                )

    config = replace(config, block_size=manager.block_size, max_num_seqs=scheduler.config.max_num_seqs)
    for feature in features:
        kv_cache = kv_cache or feature.kv_cache(model, config, manager.num_blocks)
    runner = make_runner(model, config, manager.num_blocks, features, kv_cache)
    cache = runner.kv_cache
    if cache.num_blocks < manager.num_blocks or cache.block_size != manager.block_size:
        raise ValueError(
            f"kv_cache has {cache.num_blocks} blocks of {cache.block_size}, the block manager gives out "
            f"{manager.num_blocks} of {manager.block_size}: make them equal"
        )
    return extended(EngineCore, "core", features, scheduler, runner, clock)


def make_runner(
    model: Transformer,
    config: EngineConfig,
    num_blocks: int,
    features: Sequence[Feature] = (),
    kv_cache: PagedCache | None = None,
) -> ModelRunner:
    """A runner: the device's own, where one is installed and can run, with a cache of its own unless one is given."""
    if kv_cache is not None:
        return mixed(ModelRunner, "runner", features)(model, kv_cache, config.seed)
    storage = None
    for feature in features:
        storage = storage or feature.kv_storage(model, config, num_blocks)
    device = model.device.type
    own = tuple(entry_points(group=RUNNERS, name=device))
    if own:
        runner = mixed(own[0].load(), "runner", features).create(model, config, num_blocks, storage)
        if runner is not None:
            return runner
    elif device != "cpu":
        slower = f"no runner for {device!r} is installed, so keys are gathered with torch, which is slower"
        warnings.warn(f"{slower}: pip install -e . in the course's folder", stacklevel=2)
    return mixed(ModelRunner, "runner", features).create(model, config, num_blocks, storage)


def default_num_blocks(model: Transformer, config: EngineConfig, features: Sequence[Feature] = ()) -> int:
    """Enough for `max_num_seqs` requests of `max_model_len` (not None) tokens, if the memory holds them.

    Raises:
        ValueError: it does not even hold one.
    """
    longest = config.max_model_len
    blocks_each = -(-longest // config.block_size)
    wanted = config.max_num_seqs * blocks_each
    if model.device.type == "cuda":
        torch.cuda.empty_cache()  # what torch has kept of an engine that is gone
        available = torch.cuda.mem_get_info()[0] * GPU_SHARE
        for found in entry_points(group=RUNNERS, name="cuda"):
            available -= found.load().work_bytes(model, config)
    else:
        available = memory_bytes() * MEMORY_SHARE
    token_bytes = kv_per_token(model.config, model.dtype.itemsize)
    for feature in features:
        token_bytes = feature.kv_bytes_per_token(model, token_bytes)
    block_bytes = config.block_size * token_bytes
    if blocks_each > available // block_bytes:
        fits = int(available // block_bytes) * config.block_size
        remedy = (
            f"max_model_len to {fits:,} or less"
            if fits > 0
            else "max_num_seqs or max_num_batched_tokens lower"
        )
        raise ValueError(
            f"a request of {longest:,} tokens needs {blocks_each * block_bytes / 2**30:.1f} GiB of KV cache, and "
            f"{max(0, available) / 2**30:.1f} may be used: set {remedy}, or num_blocks to what you want to give it"
        )
    return max(blocks_each, min(wanted, int(available // block_bytes))) + 1
