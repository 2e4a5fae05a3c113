"""Checks a kernel's result on a case, times the kernel, and compares the time with the limit of the machine."""

from collections.abc import Callable, Sequence
from functools import cache, partial

import torch
from torch import Tensor
from torch.nn.functional import linear

from phase2_attention_kvcache.quantization.quantized_formats import FORMATS
from phase2_attention_kvcache.quantization.quantized_linear import QuantizedWeight
from phase5_real_gpu.fused import quantized_gemm
from phase5_real_gpu.measuring import kernel_cases as cases
from phase5_real_gpu.measuring.kernel_cases import AttentionCase, AttentionInputs, GemmCase, WriteCase
from phase5_real_gpu.measuring.kernel_peers import Runner, copies_in_memory
from phase5_real_gpu.measuring.measurements import GB, TERA, Bench, Floor, Limits, Measurement, percentiles
from phase5_real_gpu.measuring.timing import Timing, time_call, time_in_graph


def floor_of(case: AttentionCase | WriteCase | GemmCase, limits: Limits) -> Floor:
    """The floor of a case: of reading for attention and GEMMs, of copying for storing keys and values."""
    if isinstance(case, WriteCase):
        return Floor(case.work.bytes / (limits.copy_gb_s * GB), "bandwidth")
    return limits.floor(case.work, case.dtype)


def as_measurement(
    bench: Bench,
    case: AttentionCase | WriteCase | GemmCase,
    name: str,
    kernel: str,
    timing: Timing,
    **more: float,
) -> Measurement:
    """`kernel`: its title. Details hold what tables and figures show: case, kernel, GB/s, TFLOP/s."""
    floor, work, seconds = floor_of(case, bench.limits), case.work, timing.median_us / 1e6
    details = dict(
        case=f"{case.title}, graph" if name.endswith("-graph") else case.title, kernel=kernel, dtype=case.dtype,
        bytes=int(work.bytes), operations=int(work.operations), gb_s=work.bytes / seconds / GB,
        tflop_s=work.operations / seconds / TERA, **percentiles(timing.repeats_us), **more,
    )  # fmt: skip
    return Measurement(name, timing.median_us, "us", "lower", 1e6 * floor.seconds, floor.limit, details)


@torch.inference_mode()
def measure_runner(
    bench: Bench,
    runner: Runner,
    layers: Sequence[AttentionInputs],
    expected: Tensor,
    name: str,
    graph: bool = False,
) -> Measurement:
    """Check, then time: the first layer with empty caches, or all layers as one CUDA graph.

    Args:
        layers: the inputs of one call after the other; the same numbers in different memory.
        expected: the result of every layer.

    Raises:
        NotHere: this machine or case cannot have the runner. WrongAnswer: its result is wrong.
    """
    case, calls = layers[0].case, runner.prepare(layers)
    error = max(cases.check_answer(call(), expected, case.dtype) for call in calls)
    if graph:
        timing = time_in_graph(lambda: [call() for call in calls], bench.seconds).divided_by(len(calls))
    else:
        timing = time_call(calls[0], bench.device, bench.seconds)
    return as_measurement(bench, case, name, runner.title, timing, error=error)


@torch.inference_mode()
def measure_write(
    bench: Bench, write: Callable[..., None], prefix: str, title: str, case: WriteCase
) -> Measurement:
    """Store a prompt's keys and values in scattered blocks; every other slot must stay as it was.

    Args:
        write: (k, v, k_cache, v_cache, slot_mapping) -> None.

    Raises:
        WrongAnswer: a slot holds a wrong number.
    """
    h, dtype, device = case.heads, getattr(torch, case.dtype), bench.device
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
        raise cases.WrongAnswer("wrong: the cache does not hold the new keys and values: no figure")
    del expected
    # Several layers: the bytes of a single one could stay in the GPU's L2 cache and not reach memory.
    layers = [(k, v, *caches)]
    if device == "cuda":
        layers += [(k.clone(), v.clone(), *caches.clone()) for _ in range(7)]
    calls = lambda: [write(*layer, slots) for layer in layers]  # noqa: E731
    timing = (
        time_in_graph(calls, bench.seconds) if device == "cuda" else time_call(calls, device, bench.seconds)
    )
    return as_measurement(bench, case, prefix + case.name, title, timing.divided_by(len(layers)))


@torch.inference_mode()
def measure_gemm(bench: Bench, case: GemmCase, title: str, layers: int) -> Measurement:
    """Time one matrix per layer, all in one CUDA graph: together they exceed every cache.

    Raises:
        WrongAnswer: a row is not that of the dequantised matrix.
    """
    torch.manual_seed(0)
    dense = torch.randn(case.outputs, case.inputs)
    planes = QuantizedWeight.of(dense, case.kind or "int4").planes
    weight = FORMATS[case.kind or "int4"].dequantize(planes).to(bench.device)
    x = torch.randn(case.rows, case.inputs).to(bench.device, getattr(torch, case.dtype))
    expected = x.float() @ weight.float().t()
    if case.kind:
        given = [[plane.to(bench.device, copy=True) for plane in planes.values()] for _ in range(layers)]
        calls = [partial(quantized_gemm, x, *each) for each in given]
    else:
        calls = [partial(linear, x, weight.to(x.dtype, copy=True)) for _ in range(layers)]
    error = max(cases.check_answer(call(), expected, case.dtype) for call in calls)
    timing = time_in_graph(lambda: [call() for call in calls], bench.seconds).divided_by(layers)
    return as_measurement(bench, case, case.name, title, timing, error=error)


def run_case(
    bench: Bench, case: AttentionCase, runners: Sequence[Runner], graph_layers: int = 0, slow: bool = False
) -> None:
    """Measure all runners on one case, with the same data and expected result. An existing figure is kept.

    Args:
        graph_layers: time so many layers as one CUDA graph, under the name "...-graph". slow: as for `Bench.attempt`.
    """

    @cache
    def data() -> tuple[list[AttentionInputs], Tensor]:
        inputs = cases.make_inputs(case, bench.device, bench.seed)
        return copies_in_memory(inputs, graph_layers or 1), cases.reference(inputs)

    def run(runner: Runner, name: str) -> None:
        bench.add(measure_runner(bench, runner, *data(), name, graph_layers > 0))

    for runner in runners:
        name = f"{runner.prefix}{case.name}{'-graph' if graph_layers else ''}"
        what = f"{runner.title}, {case.title}{' in a graph' if graph_layers else ''}"
        bench.attempt(what, partial(run, runner, name), slow, name)
