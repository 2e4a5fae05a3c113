"""One kernel on one case: check its answer, time it, and compare it with the limit of the machine."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor

from phase5_real_gpu.measuring.kernel_cases import (
    DTYPES,
    AttentionCase,
    AttentionInputs,
    WriteCase,
    WrongAnswer,
    check_answer,
    make_inputs,
    reference,
)
from phase5_real_gpu.measuring.kernel_peers import Runner, copies_in_memory
from phase5_real_gpu.measuring.machine_limits import MachineLimits
from phase5_real_gpu.measuring.measurements import GB, TERA, Bench, Floor, Measurement
from phase5_real_gpu.measuring.timing import Timing, as_cuda_graph, time_call, time_in_a_row

How = Literal["cold", "row", "graph"]
"""cold: the kernel alone, empty caches. row: one after the other, Python's share included. graph: the same
calls, recorded in a CUDA graph."""


def floor_of(case: AttentionCase | WriteCase, limits: MachineLimits) -> Floor:
    """Attention is compared with reading, storing keys and values with copying."""
    if isinstance(case, WriteCase):
        return Floor(case.work.bytes / (limits.copy_gb_s * GB), "bandwidth")
    return limits.floor(case.work, case.dtype)


def as_measurement(
    case: AttentionCase | WriteCase,
    name: str,
    kernel: str,
    timing: Timing,
    limits: MachineLimits,
    **more: Any,
) -> Measurement:
    """`kernel`: its title. Details hold what tables and figures show: case, kernel, GB/s, TFLOP/s, operations per byte."""
    floor, work, seconds = floor_of(case, limits), case.work, timing.median_us / 1e6
    details = dict(
        case=f"{case.title}, graph" if "layers_in_graph" in more else case.title, kernel=kernel, dtype=case.dtype,
        bytes=int(work.bytes), operations=int(work.operations), intensity=work.intensity,
        gb_s=work.bytes / seconds / GB, tflop_s=work.operations / seconds / TERA, **timing.details(), **more,
    )  # fmt: skip
    return Measurement(name, timing.median_us, "us", "lower", 1e6 * floor.seconds, floor.limit, details)


@torch.inference_mode()
def measure_runner(
    runner: Runner,
    layers: Sequence[AttentionInputs],
    expected: Tensor,
    limits: MachineLimits,
    how: How = "cold",
    seconds: float = 0.1,
    name: str = "",
) -> Measurement:
    """Check, then time.

    Args:
        layers: the inputs of one call after the other; the same numbers in different memory.
        expected: the right answer, of every layer.
        name: of the measurement, made of the runner's and the case's if not given.

    Raises:
        NotHere: this machine or case cannot have the runner. WrongAnswer: its answer is wrong.
    """
    case, device = layers[0].case, layers[0].device
    calls, plan = runner.prepare(layers)
    details = {}
    error = max(check_answer(call(), expected, case.dtype, runner.slack) for call in calls)
    if how == "graph":
        outs: list[Tensor] = []
        replay = as_cuda_graph([lambda call=call: outs.append(call()) for call in calls])
        for out in outs[-len(calls) :]:
            out.zero_()  # so that the result is the graph's own work
        replay()
        torch.cuda.synchronize()
        error = max(check_answer(out, expected, case.dtype, runner.slack) for out in outs[-len(calls) :])
        timing = time_call(replay, device, seconds).divided_by(len(calls))
        details["layers_in_graph"] = len(calls)
    elif how == "row":
        timing = time_in_a_row(calls, device)
    else:
        timing = time_call(calls[0], device, seconds)
    if plan:
        details["plan_us"] = time_in_a_row([plan] * 10, device).median_us
    return as_measurement(
        case, name or runner.prefix + case.name, runner.title, timing, limits, error=error, **details
    )


@torch.inference_mode()
def measure_write(
    write: Callable[..., None], prefix: str, title: str, case: WriteCase, bench: Bench
) -> Measurement:
    """Store a prompt's keys and values in scattered blocks; every other slot must stay as it was.

    Args:
        write: (k, v, k_cache, v_cache, slot_mapping) -> None.

    Raises:
        WrongAnswer: a slot holds a wrong number.
    """
    h, dtype, device = case.heads, DTYPES[case.dtype], bench.device
    torch.manual_seed(0)
    blocks = 1 + torch.randperm(2 * -(-case.tokens // h.block_size))  # half of them stay free
    places = torch.arange(case.tokens)
    slots = (blocks[places // h.block_size] * h.block_size + places % h.block_size).to(device)
    k, v = torch.randn(2, case.tokens, h.num_kv_heads, h.head_dim, dtype=dtype, device=device)
    shape = (2, 1 + len(blocks), h.block_size, h.num_kv_heads, h.head_dim)
    caches = torch.randn(shape, dtype=dtype, device=device)
    expected = caches.clone()
    for pool, new in zip(expected, (k, v)):
        pool.flatten(0, 1)[slots] = new
    write(k, v, caches[0], caches[1], slots)
    if not torch.equal(caches, expected):
        raise WrongAnswer("wrong: the cache does not hold the new keys and values, so it gets no figure")
    del expected
    # Several layers: the bytes written for a single one could stay in the GPU's cache and never reach memory.
    layers = [(k, v, *caches)]
    if device == "cuda":
        layers += [(k.clone(), v.clone(), *caches.clone()) for _ in range(7)]
    timing = time_call(lambda: [write(*layer, slots) for layer in layers], device, bench.seconds)
    return as_measurement(case, prefix + case.name, title, timing.divided_by(len(layers)), bench.limits)


def run_case(
    bench: Bench,
    case: AttentionCase,
    runners: Sequence[Runner],
    how: How = "cold",
    layers: int = 1,
    suffix: str = "",
    slow: bool = False,
) -> None:
    """All runners on one case: the same data, the same right answer. A figure that is already there stays."""

    @cache
    def data() -> tuple[list[AttentionInputs], Tensor]:
        inputs = make_inputs(case, bench.device, bench.seed)
        return copies_in_memory(inputs, layers), reference(inputs)

    for runner in runners:
        name = f"{runner.prefix}{case.name}{suffix}"
        if name not in bench.found:
            bench.attempt(
                f"{runner.title}, {case.title}{suffix and ' ' + suffix}",
                lambda runner=runner, name=name: bench.add(
                    measure_runner(runner, *data(), bench.limits, how, bench.seconds, name)
                ),
                slow,
            )
