"""Decode attention in seven kernels, each with one more idea, and a count of their loads; three first kernels."""

from phase5_real_gpu.ladder import first_kernels
from phase5_real_gpu.ladder.counted_loads import count_loads
from phase5_real_gpu.ladder.ladder_rungs import LADDER, Rung, run_rung
