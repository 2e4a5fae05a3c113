"""Decode attention in seven kernels, one idea more in each, and a count of what they load; three kernels to begin with."""

from phase5_real_gpu.ladder import first_kernels
from phase5_real_gpu.ladder.counted_loads import count_loads
from phase5_real_gpu.ladder.ladder_rungs import LADDER, Rung, run_rung
