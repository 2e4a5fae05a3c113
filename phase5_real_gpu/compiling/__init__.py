"""The kernels compiled for cards that are not here, and what the machine code says."""

from phase5_real_gpu.compiling.ahead_of_time import Compiled, compile_cases, compile_kernel
