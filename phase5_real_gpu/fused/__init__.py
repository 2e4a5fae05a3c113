"""Features beside the kernels of `kernels/`: layers with fewer kernels, a KV cache in 8 bits (fp8), and GEMMs with weights in 8 or 4 bits."""

from phase5_real_gpu.fused.fp8_kv_cache import FP8PagedKVCache
from phase5_real_gpu.fused.quantized_gemm import quantized_gemm
