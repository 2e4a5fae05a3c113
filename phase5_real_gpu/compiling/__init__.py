"""The kernels compiled for GPUs of other machines, and counts from their machine code."""

from phase5_real_gpu.compiling.ahead_of_time import Compiled, compile_cases, compile_kernel
