"""One product with weights in few bits: how near does it come to the pace of the memory?

A product of one row reads every weight once, so it cannot be faster than plain reading. Each operator runs on copies of a
matrix that take turns, so that none is in a cache, and in turn with a plain sum over as many bytes; the best of many short runs counts, since whatever else
the machine does only adds time. Beside ours stand torch's own operators, which do the same with other layouts.
"""

import argparse
import copy
import time
from collections.abc import Callable, Sequence
from itertools import cycle

import torch
from torch import Tensor

from labkit.lab import Lab, run_lab
from labkit.options import whole
from phase2_attention_kvcache.model.packed_linear import PackedLinear
from phase2_attention_kvcache.model.packed_quantized import PackedQuantizedLinear, PackedQuantizedWeight
from phase2_attention_kvcache.model.quantized_linear import QuantizedWeight
from phase2_attention_kvcache.model.tiled_linear import TiledLinear, TiledWeight

SHAPES = {"gpt2 up": (3072, 768), "gpt2 head": (50257, 768), "llama 8b gate and up": (28672, 4096)}  # out, in
COLD_BYTES = 300_000_000  # more than a cache holds: copies of a matrix that take turns

Run = Callable[[Tensor], object]


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
    for operator, make in OPERATORS.items():
        first, nbytes = make(weight)
        copies = [copy.deepcopy(first) for _ in range(max(2, COLD_BYTES // nbytes))]
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


# ------------------------------------------------------------------ operators: a float32 matrix -> what multiplies, its bytes


def ours(kind: str) -> Callable[[Tensor], tuple[Run, int]]:
    def make(weight: Tensor) -> tuple[Run, int]:
        quantized = QuantizedWeight.of(weight, kind)
        packed = PackedQuantizedWeight(kind, quantized.planes)
        return PackedQuantizedLinear(packed, None), sum(buffer.nbytes for buffer in packed.buffers())

    return make


class Tiles:
    """Ours in 16 bits. A copy is laid out anew, so that it lies elsewhere in memory."""

    def __init__(self, weight: Tensor) -> None:
        self.weight, self.layer = weight, TiledLinear(TiledWeight(weight), None)

    def __call__(self, x: Tensor) -> Tensor:
        return self.layer(x)

    def __deepcopy__(self, memo: dict) -> "Tiles":
        return Tiles(self.weight)


def tiled(weight: Tensor) -> tuple[Run, int]:
    return Tiles(weight.bfloat16()), 2 * weight.numel()


class OneDNN(PackedLinear):
    """Its packed weights cannot be copied, so they are packed again."""

    def __init__(self, weight: Tensor, bias: None) -> None:
        super().__init__(weight, bias)
        self.plain = weight

    def __deepcopy__(self, memo: dict) -> "OneDNN":
        return OneDNN(self.plain, None)


def bfloat16(weight: Tensor) -> tuple[Run, int]:
    return OneDNN(weight.bfloat16(), None), 2 * weight.numel()


class Operator:
    """One of torch's, with its matrix. Can be copied."""

    def __init__(self, call: Callable, *matrix: object) -> None:
        self.call, self.matrix = call, matrix

    def __call__(self, x: Tensor) -> Tensor:
        return self.call(x, *self.matrix)

    def __deepcopy__(self, memo: dict) -> "Operator":
        return Operator(self.call, *(copy.deepcopy(part) for part in self.matrix))


def torch_int8(weight: Tensor) -> tuple[Run, int]:
    planes = QuantizedWeight.of(weight, "int8").planes
    codes, scales = planes["codes"], planes["scales"][:, 0].bfloat16()
    return Operator(torch._weight_int8pack_mm, codes, scales), codes.nbytes


def torch_int4(weight: Tensor) -> tuple[Run, int]:
    outputs, inputs = weight.shape[0] // 64 * 64, weight.shape[1]
    codes = torch.randint(0, 16, (outputs, inputs), dtype=torch.int32)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
    scales_and_zeros = torch.rand(inputs // 32, outputs, 2).bfloat16()
    nbytes = packed.nbytes + scales_and_zeros.nbytes
    return Operator(torch.ops.aten._weight_int4pack_mm_for_cpu, packed, 32, scales_and_zeros), nbytes


OPERATORS: dict[str, Callable[[Tensor], tuple[Run, int]]] = {
    "ours, int8": ours("int8"),
    "torch, int8": torch_int8,
    "ours, q8_0": ours("q8_0"),
    "ours, q4_0": ours("q4_0"),
    "ours, int4": ours("int4"),
    "torch, int4": torch_int4,
    "ours, bfloat16": tiled,
    "oneDNN, bfloat16": bfloat16,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--rows", nargs="+", type=whole(1, 4096), default=[1, 4, 16, 64])
    parser.add_argument("--runs", type=whole(1, 100_000), default=300)


def main(argv: Sequence[str] | None = None) -> int:
    return run_lab(story, __doc__, ("seed",), add_arguments, argv)


if __name__ == "__main__":
    raise SystemExit(main())
