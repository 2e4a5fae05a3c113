"""One product with weights in few bits: how near does it come to the pace of the memory?

A product of one row reads every weight once, so it cannot be faster than plain reading. Each operator runs on copies of a
matrix that take turns, so that none is in a cache, and in turn with a plain sum over as many bytes; the best of many short runs counts, since whatever else
the machine does only adds time. Beside ours stand torch's own operators, which do the same with other layouts.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from itertools import cycle

import torch
from torch import Tensor

from labkit.lab import Lab, run_lab
from labkit.options import whole
from phase2_attention_kvcache.model.packed_quantized import PackedQuantizedLinear, PackedQuantizedWeight
from phase2_attention_kvcache.model.quantized_linear import QuantizedWeight
from phase2_attention_kvcache.model.tiled_linear import TiledLinear, TiledWeight

SHAPES = {"gpt2 up": (3072, 768), "gpt2 head": (50257, 768), "llama 8b gate and up": (28672, 4096)}  # out, in
COLD_BYTES = 300_000_000  # more than a cache holds: copies of a matrix that take turns

Run = Callable[[Tensor], object]
Make = Callable[[], tuple[Run, int]]  # what multiplies, in memory of its own, and the bytes of its matrix


def story(lab: Lab) -> None:
    args = lab.args
    found = []
    for name in lab.progress(args.shapes, "shapes"):
        found += measure(name, *SHAPES[name], args.rows, args.runs)
    for rows in args.rows:
        lab.table(
            f"{rows} row{'s' if rows > 1 else ''}, {torch.get_num_threads()} CPU threads",
            ["matrix", "operator", "MB", "microseconds", "GB/s", "% of plain reading"],
            [
                [f["matrix"], f["operator"], f["bytes"] / 1e6, 1e6 * f["seconds"], gb_s(f), 100 * f["share"]]
                for f in found
                if f["rows"] == rows
            ],
        )
    lab.record(products=found)


def gb_s(found: dict) -> float:
    return found["bytes"] / found["seconds"] / 1e9


def measure(matrix: str, outputs: int, inputs: int, rows: Sequence[int], runs: int) -> list[dict]:
    weight = torch.randn(outputs, inputs) / inputs**0.5
    memory = torch.ones(2 * COLD_BYTES // 8, dtype=torch.int64)
    found = []
    for operator, prepare in OPERATORS.items():
        make = prepare(weight)
        first, nbytes = make()
        copies = [first, *(make()[0] for _ in range(COLD_BYTES // nbytes))]
        places = range(0, len(memory) - nbytes // 8, nbytes // 8)
        for n in rows:
            x = torch.randn(n, inputs, dtype=torch.bfloat16)
            first(x)
            best, best_read = float("inf"), float("inf")
            for _, run, place in zip(range(runs), cycle(copies), cycle(places)):
                best = min(best, seconds(run, x))
                best_read = min(best_read, seconds(torch.sum, memory[place : place + nbytes // 8]))
            found.append(
                dict(
                    matrix=matrix,
                    operator=operator,
                    rows=n,
                    bytes=nbytes,
                    seconds=best,
                    share=best_read / best,
                )
            )
    return found


def seconds(run: Run, x: Tensor) -> float:
    began = time.perf_counter()
    run(x)
    return time.perf_counter() - began


# ------------------------------------------------------------------ operators: what is made of a float32 matrix once, and a copy


def ours(kind: str) -> Callable[[Tensor], Make]:
    def prepare(weight: Tensor) -> Make:
        planes = QuantizedWeight.of(weight, kind).planes

        def make() -> tuple[Run, int]:
            packed = PackedQuantizedWeight(kind, planes)
            return PackedQuantizedLinear(packed, None), packed.nbytes

        return make

    return prepare


def ours_bfloat16(weight: Tensor) -> Make:
    weight = weight.bfloat16()
    return lambda: (TiledLinear(TiledWeight(weight), None), weight.nbytes)


def onednn_bfloat16(weight: Tensor) -> Make:
    """The product behind torch's, with its matrix rearranged once: what torch.compile makes of a linear layer."""
    weight = weight.bfloat16()

    def make() -> tuple[Run, int]:
        # The number is the batch that the order of tiles is chosen for; others work as well.
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, 64)
        return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], ""), weight.nbytes

    return make


def torch_int8(weight: Tensor) -> Make:
    planes = QuantizedWeight.of(weight, "int8").planes
    scales = planes["scales"][:, 0].bfloat16()

    def make() -> tuple[Run, int]:
        codes = planes["codes"].clone()
        return lambda x: torch._weight_int8pack_mm(x, codes, scales), codes.nbytes

    return make


def torch_int4(weight: Tensor) -> Make:
    outputs, inputs = weight.shape[0] // 64 * 64, weight.shape[1]
    codes = torch.randint(0, 16, (outputs, inputs), dtype=torch.int32)

    def make() -> tuple[Run, int]:
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
        scales_and_zeros = torch.rand(inputs // 32, outputs, 2).bfloat16()
        nbytes = packed.nbytes + scales_and_zeros.nbytes
        product = torch.ops.aten._weight_int4pack_mm_for_cpu
        return lambda x: product(x, packed, 32, scales_and_zeros), nbytes

    return make


OPERATORS: dict[str, Callable[[Tensor], Make]] = {
    "ours, int8": ours("int8"),
    "torch, int8": torch_int8,
    "ours, q8_0": ours("q8_0"),
    "ours, q4_0": ours("q4_0"),
    "ours, int4": ours("int4"),
    "torch, int4": torch_int4,
    "ours, bfloat16": ours_bfloat16,
    "oneDNN, bfloat16": onednn_bfloat16,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--rows", nargs="+", type=whole(1, 4096), default=[1, 4, 16, 64])
    parser.add_argument("--runs", type=whole(1, 100_000), default=300)


def main(argv: Sequence[str] | None = None) -> int:
    return run_lab(story, __doc__, ("seed",), add_arguments, argv)


if __name__ == "__main__":
    raise SystemExit(main())
