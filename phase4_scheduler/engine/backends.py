"""Which cache and which runner serve a device.

On a CPU: `PagedKVCache` and `ModelRunner`. For a GPU Phase 5 brings its own. They are named here by text and
looked up when an engine is made, so that this phase works without that one, and knows nothing of it.
"""

from __future__ import annotations

import importlib

from phase2_attention_kvcache.model.transformer import Transformer
from phase3_paged_attention.paging.block_manager import BlockManager
from phase3_paged_attention.paging.paged_kv_cache import PagedKVCache
from phase4_scheduler.engine.config import EngineConfig
from phase4_scheduler.engine.model_runner import ModelRunner

RUNNERS = {"cuda": "phase5_real_gpu.kernels.gpu_runner"}  # device -> module with a function `make_runner`


def make_runner(
    model: Transformer, manager: BlockManager, config: EngineConfig, max_num_seqs: int, max_model_len: int
) -> ModelRunner:
    """A runner, with a cache of the block manager's size."""
    if (module := RUNNERS.get(model.device.type)) is not None:
        runner = importlib.import_module(module).make_runner(
            model, manager, max_num_seqs, max_model_len, config.enforce_eager
        )
        if runner is not None:  # None: this card cannot run the kernels
            return runner
    return ModelRunner(
        model,
        PagedKVCache(
            model.config,
            manager.num_blocks,
            manager.block_size,
            model.dtype,
            model.device,
            manager.num_swap_blocks,
        ),
    )
