"""`FusedRunner`: the GPU's runner, for caches in fp8 as well.

Changes: keys and values in fp8 stay in blocks and are read in place, and steps are replayed as CUDA graphs.
Attaches to: `GPURunner.storage_problem` and `make_cache`; the package names it as the runner for "cuda".
"""

from phase2_attention_kvcache.model.transformer import Transformer
from phase3_paged_attention.paging import KVStorage
from phase4_scheduler.engine import EngineConfig
from phase5_real_gpu.fused.fp8_kv_cache import FP8PagedKVCache, fp8_problem
from phase5_real_gpu.fused.fused_layers import FusedGPURunner
from phase5_real_gpu.kernels import TritonPagedKVCache


class FusedRunner(FusedGPURunner):
    @classmethod
    def storage_problem(cls, storage: KVStorage | None) -> str | None:
        if storage is None:
            return None
        kind = getattr(storage, "kv_cache_dtype", "a format of its own")
        return fp8_problem() if kind == "fp8" else f"no kernel reads keys and values in {kind}"

    @classmethod
    def make_cache(
        cls, model: Transformer, config: EngineConfig, num_blocks: int, storage: KVStorage | None
    ) -> TritonPagedKVCache:
        if storage is None:
            return super().make_cache(model, config, num_blocks, storage)
        sizes = (num_blocks, config.block_size, model.dtype, model.device)
        return FP8PagedKVCache(model.config, *sizes, storage=storage)
