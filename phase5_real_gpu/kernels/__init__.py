"""Attention over blocks on a GPU: three Triton kernels, and the cache that calls them. Reading order: see the README."""

from phase5_real_gpu.kernels.decode import paged_decode
from phase5_real_gpu.kernels.prefill_kernel import paged_prefill
from phase5_real_gpu.kernels.triton_kv_cache import TritonPagedKVCache
from phase5_real_gpu.kernels.write_kv_kernel import write_kv
