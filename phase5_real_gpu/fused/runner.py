"""`FusedRunner`: the GPU's runner over fused layers, for caches in fp8 and for models whose weights are quantized.

Changes: keys and values in fp8 stay in blocks and are read in place, and a quantized linear layer is one kernel, so both
are replayed as CUDA graphs. Without it torch gathers the fp8 cache and unpacks the quantized layers, tile by tile.
Loses: a prompt of some hundred rows and more unpacks each matrix once for every 64 rows. Unpacking once, and cuBLAS, would be faster.
Attaches to: `GPURunner.storage_problem`, `make_cache` and `create`, and says how much memory a step needs (`work_bytes`). The
package names it as the runner for "cuda".
"""

import copy
import warnings
from typing import Self

from torch import Tensor

from phase2_attention_kvcache.model.transformer import Transformer
from phase2_attention_kvcache.quantization.quantized_linear import QuantizedLinear, QuantizedWeight
from phase3_paged_attention.paging import KVStorage
from phase4_scheduler.engine import EngineConfig
from phase5_real_gpu.fused.fp8_kv_cache import FP8PagedKVCache
from phase5_real_gpu.fused.fused_layers import fuse
from phase5_real_gpu.fused.quantized_gemm import GROUP, quantized_gemm
from phase5_real_gpu.kernels import TritonPagedKVCache
from phase5_real_gpu.kernels.decode import tile_tokens
from phase5_real_gpu.kernels.gpu_runner import GPURunner, bucket_sizes, most_splits
from phase5_real_gpu.kernels.kernel_checks import FP8
from phase5_real_gpu.kernels.triton_setup import card_problem

# Of a recording, for its several hundred kernels. This is an assumption: no GPU has measured it.
GRAPH_BYTES = 8 * 2**20
READ = ("int8", "int4", "q8_0", "q4_0")
"""The quantized formats that `quantized_gemm` reads."""


class KernelLinear(QuantizedLinear):
    """Multiplies with a kernel where there is one for the format."""

    tile = 2**26  # for other formats: few large pieces, because each is some ten operations

    def multiply(self, x: Tensor, part: QuantizedWeight) -> Tensor:
        return quantized_gemm(x, **part.planes) if is_read(part) else super().multiply(x, part)


class FusedRunner(GPURunner):
    @classmethod
    def work_bytes(cls, model: Transformer, config: EngineConfig) -> int:
        """Memory that must stay free beside weights and cache: splits, the largest step's activations, logits and graphs."""
        shape = model.config
        heads = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
        # The widest moment of a layer: the residual, its norm, and queries, keys and values or gate, up and their product.
        of_token = (2 * shape.d_model + max(heads, 3 * shape.d_ff)) * model.dtype.itemsize
        logits = (
            4 * 4 * config.max_num_seqs * shape.vocab_size
        )  # float32. Sampling sorts them, with their ids.
        graphs = 0
        if not config.enforce_eager and not shape.num_experts:
            splits = most_splits(config.max_model_len, tile_tokens(shape.head_dim, model.dtype.itemsize))
            graphs = len(bucket_sizes(config.max_num_seqs)) * splits.bit_length()
        work = config.max_num_batched_tokens * of_token + logits + graphs * GRAPH_BYTES
        return cls.split_bytes(model, config) + work

    @classmethod
    def create(
        cls, model: Transformer, config: EngineConfig, num_blocks: int, storage: KVStorage | None = None
    ) -> Self | None:
        return super().create(fuse(with_kernels(model)), config, num_blocks, storage)

    @classmethod
    def storage_problem(cls, storage: KVStorage | None) -> str | None:
        if storage is None:
            return None
        kind = getattr(storage, "kv_cache_dtype", "a format of its own")
        return card_problem(FP8) if kind == "fp8" else f"no kernel reads keys and values in {kind}"

    @classmethod
    def make_cache(
        cls, model: Transformer, config: EngineConfig, num_blocks: int, storage: KVStorage | None
    ) -> TritonPagedKVCache:
        if storage is None:
            return super().make_cache(model, config, num_blocks, storage)
        sizes = (num_blocks, config.block_size, model.dtype, model.device)
        return FP8PagedKVCache(model.config, *sizes, storage=storage)


def is_read(weight: QuantizedWeight) -> bool:
    return weight.kind in READ and weight.shape[1] % GROUP == 0


def with_kernels(model: Transformer) -> Transformer:
    """The model with `KernelLinear` in place of each `QuantizedLinear`. It shares all weights with the given one, which stays
    as it is."""
    layers = [module for module in model.modules() if type(module) is QuantizedLinear]
    if not layers:
        return model
    if others := sorted({part.kind for layer in layers for part in layer.parts if not is_read(part)}):
        warnings.warn(
            f"no kernel on a GPU multiplies with weights in {', '.join(others)}: each step unpacks them, which is slower "
            f"than 16 bits. There is one for {', '.join(READ)}, in rows that divide by {GROUP}",
            stacklevel=3,
        )
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    twin = copy.deepcopy(model, shared)
    for module in list(twin.modules()):
        for name, child in list(module.named_children()):
            if type(child) is QuantizedLinear:
                setattr(module, name, KernelLinear(child.parts, child.bias))
    return twin
