"""Measuring a machine: its ceilings, its memories, kernels and the engine compared with them, and the file of all figures."""

from phase5_real_gpu.measuring.machine_limits import measure_limits
from phase5_real_gpu.measuring.memory_step import step_bytes
from phase5_real_gpu.measuring.reference_files import find_reference
from phase5_real_gpu.measuring.timing import time_call
