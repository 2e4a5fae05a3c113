"""The parts of an engine: the course's, or a learner's own in their place, and whether they fit together."""

import ctypes
import sys
import warnings
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path

import torch

from labkit.foreign import visible
from labkit.machine import memory_bytes, pick_device
from labkit.models import find_model
from phase1_tokens_embeddings.tokens import Tokenizer
from phase1_tokens_embeddings.weights import gguf_model
from phase2_attention_kvcache.model.caches import widest_window
from phase2_attention_kvcache.model.kv_formats import kv_bytes_of_token
from phase2_attention_kvcache.model.quantized_linear import is_quantized, quantize_model
from phase2_attention_kvcache.model.transformer import Transformer
from phase3_paged_attention.paging import PagedCache, PagedKVCache, compiled_kernel
from phase3_paged_attention.paging.block_manager import BlockManager
from phase4_scheduler.engine.config import EngineConfig
from phase4_scheduler.engine.executor import Executor
from phase4_scheduler.engine.model_runner import ModelRunner
from phase4_scheduler.engine.scheduler import Scheduler

GPU_SHARE = 0.8  # of a GPU's free memory
MEMORY_SHARE = 0.3  # of the machine's memory for keys and values, unless num_blocks says otherwise
RUNNERS = "inference_lab.runners"  # entry points of pyproject.toml, by device


def load_model(
    path_or_name: str | Path, dtype: str = "bfloat16", device: str = "auto", quantization: str | None = None
) -> Transformer:
    """A model, ready to serve.

    Raises:
        LabError, ValueError: as `find_model`, `Transformer.from_pretrained` and `quantize_model`.
    """
    folder, device = find_model(path_or_name), pick_device(device)
    model = Transformer.from_pretrained(folder, dtype, device)
    if quantization is not None:
        if is_quantized(model):
            raise ValueError(f"{visible(path_or_name)} is quantised already: leave quantization out")
        quantize_model(model, quantization)
    return prepare_weights(model)


def prepare_weights(model: Transformer) -> Transformer:
    """On a CPU, lay out a model's weights as its products read them fastest, and let decode steps run as one compiled call,
    as far as that works here. In place; returns the model.
    """
    if model.device.type != "cpu":
        return model
    keep_freed_memory()
    if compiled_kernel() is None:
        return model
    # numba takes half a second to import: not before it is needed
    from phase2_attention_kvcache.model.packed_quantized import pack_quantized_layers
    from phase2_attention_kvcache.model.tiled_linear import tile_linear_layers
    from phase3_paged_attention.paging.fused_decode import can_fuse, fuse_blocks

    pack_quantized_layers(tile_linear_layers(model))
    return fuse_blocks(model) if can_fuse(model) else model


def keep_freed_memory() -> None:
    """Let this process keep memory that a step has freed for the next one. As it comes, C's library on Linux hands large pieces
    back to the system. Who asks for them anew gets them in pages of 4 KB, each cleared and entered in a table: a quarter of
    the time that a step with 2,048 tokens of prompts took.

    Source: mallopt(3).
    """
    trim_threshold, mmap_threshold = -1, -3  # names of the two limits, in bytes
    if sys.platform == "linux" and hasattr(c_library := ctypes.CDLL(None), "mallopt"):
        # An older library refuses more than 32 MB. To set only the other limit would keep this one low for good.
        if c_library.mallopt(mmap_threshold, 128 << 20) or c_library.mallopt(mmap_threshold, 32 << 20):
            c_library.mallopt(trim_threshold, 1 << 30)


def load_tokenizer(path_or_name: str | Path) -> Tokenizer | None:
    """A model's tokenizer; None if its folder holds none. Raises: as `gguf_model.load_tokenizer`."""
    path = find_model(path_or_name)
    if path.is_dir() and not (path / "tokenizer.json").is_file():
        return None
    return gguf_model.load_tokenizer(path)


def build_parts(
    model: Transformer,
    config: EngineConfig,
    block_manager: BlockManager | None = None,
    scheduler: Scheduler | None = None,
    kv_cache: PagedCache | None = None,
    draft_model: Transformer | None = None,
    executor: Executor | None = None,
) -> tuple[Scheduler, ModelRunner]:
    """A scheduler, with its block manager, and a runner, with its cache. What is None is made from `config`.

    An executor makes the cache of its processes.

    A draft model needs memory for keys and values as well: there are fewer blocks where there is one.

    Raises:
        ValueError: parts that do not fit together, or a limit beyond the model's context.
    """
    context = model.config.max_context
    longest = context if config.max_model_len is None else config.max_model_len
    if not 1 <= longest <= context:
        raise ValueError(f"max_model_len is {longest:,}: from 1 to the model's context, {context:,}")
    config = replace(config, max_model_len=longest)
    if scheduler is None:
        scheduler = Scheduler(config, block_manager or _make_block_manager(model, config, draft_model))
    elif block_manager not in (None, scheduler.block_manager):
        raise ValueError("scheduler and block_manager do not belong together: give the scheduler's own")
    elif (scheduler.config.max_model_len or 0) > context:
        raise ValueError(
            f"the scheduler's max_model_len is {scheduler.config.max_model_len:,}, the model's context "
            f"{context:,}: ask for no more"
        )
    scheduler.max_model_len = min(scheduler.max_model_len, context)
    manager, max_num_seqs = scheduler.block_manager, scheduler.config.max_num_seqs
    needed, kept = _sliding_window(model, draft_model), manager.sliding_window
    if kept is not None and (needed is None or kept < needed):
        raise ValueError(
            f"the block manager keeps the last {kept:,} tokens, the model looks back "
            f"{'at all' if needed is None else f'{needed:,}'}: make it without sliding_window"
        )
    if config.world_size > 1 and executor is None:
        raise ValueError(
            f"{config.world_size} devices are asked for, and this model lies in one process: use "
            "LLMEngine.from_pretrained, or give an executor"
        )
    if executor is not None:
        sizes = (manager.num_blocks, manager.block_size, manager.num_swap_blocks)
        kv_cache = executor.initialize_kv_cache(*sizes, config.kv_cache_dtype)
    if kv_cache is None:
        longest = scheduler.max_model_len
        runner = make_runner(
            model, manager, max_num_seqs, longest, config.enforce_eager, config.kv_cache_dtype
        )
    else:
        runner = ModelRunner(model, kv_cache)
    cache = runner.kv_cache
    if cache.num_blocks < manager.num_blocks or cache.block_size != manager.block_size:
        raise ValueError(
            f"kv_cache has {cache.num_blocks} blocks of {cache.block_size}, the block manager gives out "
            f"{manager.num_blocks} of {manager.block_size}: make them equal"
        )
    return scheduler, runner


def _make_block_manager(
    model: Transformer, config: EngineConfig, draft_model: Transformer | None
) -> BlockManager:
    num_blocks = config.num_blocks
    if num_blocks is None:
        num_blocks = default_num_blocks(model, config, draft_model)
    return BlockManager(
        num_blocks,
        config.block_size,
        config.enable_prefix_caching,
        config.num_swap_blocks,
        _sliding_window(model, draft_model),
    )


def _sliding_window(model: Transformer, draft_model: Transformer | None) -> int | None:
    """The tokens whose blocks must be kept; None: all. (A draft model may have to read a text over again.)"""
    return widest_window(model.config) if draft_model is None else None


def make_runner(
    model: Transformer,
    manager: BlockManager,
    max_num_seqs: int,
    max_model_len: int,
    enforce_eager: bool,
    kv_cache_dtype: str = "auto",
) -> ModelRunner:
    """A runner with a cache of the block manager's size: the device's own, where one is installed and can run.

    Phase 5 brings the runner for "cuda". It is an entry point of the package, so this phase imports nothing of it.
    """
    device = model.device.type
    own = tuple(entry_points(group=RUNNERS, name=device)) if device != "cpu" else ()
    if kv_cache_dtype != "auto":
        pass  # only torch's cache stores keys and values in 8 bits
    elif own:
        runner = own[0].load()(model, manager, max_num_seqs, max_model_len, enforce_eager)
        if runner is not None:
            return runner
    elif device != "cpu":
        warnings.warn(
            f"no runner for {device!r} is installed, so keys are gathered with torch, which is slower: "
            "pip install -e . in the course's folder",
            stacklevel=2,
        )
    sizes = (manager.num_blocks, manager.block_size, model.dtype, model.device, manager.num_swap_blocks)
    return ModelRunner(model, PagedKVCache(model.config, *sizes, kv_cache_dtype=kv_cache_dtype))


def default_num_blocks(
    model: Transformer, config: EngineConfig, draft_model: Transformer | None = None
) -> int:
    """Enough for `max_num_seqs` requests of `max_model_len` tokens, if the memory holds them.

    Raises:
        ValueError: it does not even hold one.
    """
    longest = model.config.max_context if config.max_model_len is None else config.max_model_len
    blocks_each = -(-longest // config.block_size)
    wanted = config.max_num_seqs * blocks_each
    if model.device.type == "cuda":
        torch.cuda.empty_cache()  # what torch has kept of an engine that is gone
        available = torch.cuda.mem_get_info()[0] * GPU_SHARE
    else:
        available = (memory_bytes() or 8 * 2**30) * MEMORY_SHARE
    token_bytes = kv_bytes_of_token(model.config, config.kv_cache_dtype, model.dtype)
    if draft_model is not None:  # it stores its own as it computes them
        token_bytes += kv_bytes_of_token(draft_model.config, "auto", draft_model.dtype)
    block_bytes = config.block_size * token_bytes
    if blocks_each > available // block_bytes:
        raise ValueError(
            f"a request of {longest:,} tokens needs {blocks_each * block_bytes / 2**30:.1f} GiB of KV cache, and "
            f"{available / 2**30:.1f} may be used: set max_model_len to "
            f"{int(available // block_bytes) * config.block_size:,} or less, or num_blocks to what you want to give it"
        )
    return max(blocks_each, min(wanted, int(available // block_bytes))) + 1
