"""The marks that the kernels are to reach on a GPU: shares of its measured limits, and ratios, so that they ask the same of every card.

Decode, 88% of the bandwidth: near the best published figure, FlashMLA's 90% of an H800's data sheet. Prefill, 35% of the matrix
multiplication: 245 TFLOP/s on a card that multiplies 700. 0.91, 0.77 and 0.67: at most 1.1, 1.3 and 1.5 times as long.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from labkit.lab import Lab
from phase5_real_gpu.measuring.measurements import Measurement

Found = Mapping[str, Measurement]
FLASHINFER_MISSING = "FlashInfer has no figure here (why: above). pip install flashinfer-python==0.6.4"


class Gate(NamedTuple):
    """A figure, in words and from the measurements (KeyError if one of them is missing), and what it is to be at least."""

    claim: str
    question: str
    figure: Callable[[Found], float]
    least: float


def share(name: str) -> Callable[[Found], float]:
    return lambda found: found[name].share_of_limit


def times_as_fast(fast: str, slow: str) -> Callable[[Found], float]:
    return lambda found: found[slow].value / found[fast].value


GATES = [
    Gate("decode-b64-4k-bandwidth", "decode, 64 users x 4k: share of the measured read bandwidth",
         share("decode-b64-4k"), 0.88),
    Gate("decode-b64-4k-flashinfer", "decode, 64 users x 4k: how many times as fast as FlashInfer",
         times_as_fast("decode-b64-4k", "flashinfer-decode-b64-4k"), 0.91),
    Gate("decode-b1-32k-bandwidth", "decode, 1 user x 32k: share of the measured read bandwidth",
         share("decode-b1-32k-graph"), 0.55),
    Gate("decode-b1-4k-graph-flashinfer", "decode, 1 user x 4k in a CUDA graph: how many times as fast as FlashInfer",
         times_as_fast("decode-b1-4k-graph", "flashinfer-decode-b1-4k-graph"), 0.67),
    Gate("skewed-against-uniform", "unequal lengths, same total: how many times as fast as equal lengths",
         times_as_fast("decode-skewed", "decode-b64-4k"), 0.77),
    Gate("fp8-against-bf16", "an fp8 cache, 64 users x 4k: how many times as fast as a 16-bit one",
         times_as_fast("decode-fp8-b64-4k", "decode-b64-4k"), 1.3),
    Gate("prefill-8k-rate", "prefill, 8k tokens: share of the measured matrix multiplication", share("prefill-8k"), 0.35),
    Gate("write-kv-8k-bandwidth", "writing keys and values, 8k tokens: share of the measured copy bandwidth",
         share("write-kv-8k"), 0.70),
]  # fmt: skip


def put_gates(lab: Lab, found: Found) -> None:
    """Each gate as a prediction. A gate without a figure says what it needs, or the reason stands above."""
    for claim, question, figure_of, least in GATES:
        question = f"{question} is at least {least:g}"
        try:
            figure = figure_of(found)
        except KeyError:
            if "flashinfer" in claim:
                lab.cannot_measure(claim, question, "download", FLASHINFER_MISSING)
            continue
        lab.predict(claim, question, True, figure >= least, kind="timing", note=f"It is {figure:.3g}.")
