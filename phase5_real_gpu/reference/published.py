"""Reference files from what others have measured and published: vLLM's kernels on two cards.

    python -m phase5_real_gpu.reference.published FOLDER     # a copy of LLMServingSim's profiler/perf, say

LLMServingSim (https://github.com/casys-kaist/LLMServingSim, MIT licence) published what vLLM 0.19's kernels take on an
RTX 4090 and an RTX PRO 6000, for one layer of Llama-3.1 8B in bfloat16. Two kinds of them say how near a kernel comes to
the pace of a card's memory: decode attention, which reads keys and values, and products of one row, which read a matrix.

Only cases that read more than any cache of these cards holds are taken: the kernels were run over and over on the same
memory, and a smaller case might never have left the cache.
"""

import argparse
import csv
import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from labkit.terminal import run
from phase1_tokens_embeddings.weights import SHAPES
from phase5_real_gpu.measuring.kernel_cases import decode_case
from phase5_real_gpu.measuring.measurements import Measurement
from phase5_real_gpu.measuring.reference_files import REFERENCES, Limits, Reference, write_reference

LLAMA = SHAPES["llama-3-8b"]
LARGEST_CACHE = 128 * 10**6  # bytes: the RTX PRO 6000's L2
SOURCE = """Published by LLMServingSim (MIT licence) as CSV files, not measured by this course. vLLM 0.19's kernels one by
one, a layer of Llama-3.1 8B in bfloat16. The limit is the data sheet's, which no program reaches."""


@dataclass(frozen=True)
class Card:
    """A card of theirs: its folder, and what its data sheet says."""

    folder: str
    name: str
    title: str
    read_gb_s: float


CARDS = [
    Card("rtx4090_llama-3.1-8b", "rtx-4090-published", "vLLM 0.19's kernels on an RTX 4090", 1008),
    Card("rtxpro6000_llama-3.1-8b", "rtx-pro-6000-published", "vLLM 0.19's kernels on an RTX PRO 6000", 1792),
]


def decodes(folder: Path, read_gb_s: float) -> Iterator[Measurement]:
    """Steps in which each request has one new token: 64 requests of 4,096 tokens are called as ours are."""
    with gzip.open(folder / "attention.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            users, context = int(row["n_decode"]), int(row["kv_decode"])
            if int(row["prefill_chunk"]) or context % 1024:
                continue
            case = decode_case(f"decode-b{users}-{context // 1024}k", "", [context] * users)
            if case.work.bytes > LARGEST_CACHE:
                yield bound_by_memory(case.name, float(row["time_us"]), case.work.bytes, read_gb_s)


def products(folder: Path, read_gb_s: float) -> Iterator[Measurement]:
    """Products of one row with the two largest matrices."""
    sizes = {
        "gate_up_proj": ("dense.csv", "tokens", 2 * LLAMA.d_ff),
        "lm_head": ("per_sequence.csv", "sequences", LLAMA.vocab_size),
    }
    for layer, (name, rows, outputs) in sizes.items():
        with (folder / name).open() as file:
            time_us = next(
                float(r["time_us"]) for r in csv.DictReader(file) if r["layer"] == layer and r[rows] == "1"
            )
        size = 2 * outputs * LLAMA.d_model
        yield bound_by_memory(f"product-llama-8b-{layer.replace('_', '-')}-b1", time_us, size, read_gb_s)


def bound_by_memory(name: str, time_us: float, size: float, read_gb_s: float) -> Measurement:
    details = {"dtype": "bfloat16", "gb_s": round(size / time_us / 1e3, 1)}
    return Measurement(
        name, time_us, "us", floor=round(size / read_gb_s / 1e3, 2), limit="bandwidth", details=details
    )


def read_card(folder: Path, card: Card) -> Reference:
    meta = (folder / card.folder / "meta.yaml").read_text().splitlines()
    fields = dict(line.split(": ", 1) for line in meta if ": " in line)
    files = folder / card.folder
    return Reference(
        card.name,
        card.title,
        "published",
        {"gpu": {"name": fields["gpu"], "cuda": fields["cuda_version"].strip("'")}},
        measured_at=fields["profiled_at"].strip("'"),
        limits=Limits(read_gb_s=card.read_gb_s, source="data sheet"),
        measurements=(*decodes(files, card.read_gb_s), *products(files, card.read_gb_s)),
        note=" ".join(SOURCE.split()),
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="that holds a folder for each card")
    folder = parser.parse_args(argv).folder
    for card in CARDS:
        write_reference(read_card(folder, card), REFERENCES / f"{card.name}.json")
    return 0


if __name__ == "__main__":
    raise SystemExit(run(main))
