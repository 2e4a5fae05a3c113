"""Attention over blocks on a GPU: three Triton kernels, and the cache that calls them; and products with weights in few bits."""

from phase5_real_gpu.kernels.decode_kernel import paged_decode
from phase5_real_gpu.kernels.prefill_kernel import paged_prefill
from phase5_real_gpu.kernels.quantized_gemm_kernel import quantized_gemm
from phase5_real_gpu.kernels.triton_kv_cache import TritonPagedKVCache
from phase5_real_gpu.kernels.write_kv_kernel import write_kv

__all__ = ["TritonPagedKVCache", "paged_decode", "paged_prefill", "quantized_gemm", "write_kv"]
