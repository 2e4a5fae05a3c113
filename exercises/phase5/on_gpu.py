"""On a GPU: the learner's kernel beside the course's, in microseconds and as a share of what the memory can deliver."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from exercises.judging.engine_runs import passed, same_or_stop
from exercises.phase5.launching import DEVICE, decode_arguments
from phase5_real_gpu.ladder import LADDER, run_rung
from phase5_real_gpu.ladder.counted_loads import random_step
from phase5_real_gpu.ladder.ladder_rungs import Shape
from phase5_real_gpu.measuring import measure_limits
from phase5_real_gpu.measuring.timing import time_in_graph

SHAPE = Shape([2048] * 16, num_heads=32, num_kv_heads=8, head_dim=128)
COPIES = 4  # in one CUDA graph, so that neither Python nor a cache counts: 134 MB of keys and values each


def time_your_kernel(kernel: Any, exercise: str = "p5e1_paged_decode") -> None:
    """Print the times of 16 requests of 2,048 tokens each, bfloat16 (float16 on older cards)."""
    if DEVICE != "cuda":
        print("No GPU here: nothing to time. The interpreter says nothing about speed.")
        return
    passed(exercise, kernel)
    dtype = torch.bfloat16 if torch.cuda.get_device_capability() >= (8, 0) else torch.float16
    step = random_step(SHAPE, dtype, "cuda", seed=0)
    steps = [step, *(tuple(x.clone() for x in step) for _ in range(COPIES - 1))]
    out = torch.empty_like(step[0])

    def your_kernel(*step: Tensor) -> None:
        grid, arguments, constants = decode_arguments(*step, out, by_kv_head="faster" in exercise)
        kernel[grid](*arguments, **constants)

    runs = {"yours": your_kernel}
    for rung in (LADDER[0], LADDER[-1]):
        runs[f"the course's, rung '{rung.name}'"] = partial(run_rung, rung)
    your_kernel(*step)
    error = (out - run_rung(LADDER[0], *step)).abs().max().item()
    says = f"on the card your kernel's numbers are up to {error:.3g} away from the course's, though it passes its check"
    same_or_stop(error < 2e-3, True, says)
    floor_us = SHAPE.kv_bytes / measure_limits("cuda", (), quick=True).read_gb_s / 1e3
    print(f"{'':36} microseconds   of the floor\n{'the floor: bytes / bandwidth':36} {floor_us:12.1f}")
    for name, call in runs.items():
        us = time_in_graph(lambda call=call: [call(*step) for step in steps]).median_us / COPIES
        print(f"{name:36} {us:12.1f} {floor_us / us:14.0%}")
