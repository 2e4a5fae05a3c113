"""The marks of the kernels on a GPU: a gate that must be passed, and a goal."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from labkit.lab import Lab
from phase5_real_gpu.measuring.measurements import Measurement

Found = Mapping[str, Measurement]
FLASHINFER_MISSING = "FlashInfer has no figure here (why: above). pip install flashinfer-python==0.6.4"


class Gate(NamedTuple):
    """A figure with two marks.

    Attributes:
        claim: its id. question: the figure in words; the gate is put behind it.
        figure: from the measurements; KeyError if one of them is missing.
        sign: 1, it is to be at least the marks; -1, at most. show: how a value is written.
    """

    claim: str
    question: str
    figure: Callable[[Found], float]
    gate: float
    goal: float
    sign: int = 1
    show: str = "{:.0%}"


def share(name: str) -> Callable[[Found], float]:
    return lambda found: found[name].share_of_limit


def ratio(above: str, below: str) -> Callable[[Found], float]:
    return lambda found: found[above].value / found[below].value


TIMES = "{:.3g}x"
GATES = [
    Gate("decode-b64-4k-bandwidth", "decode, 64 users x 4k: share of the measured read bandwidth",
         share("decode-b64-4k"), 0.80, 0.90),
    Gate("decode-b64-4k-flashinfer", "decode, 64 users x 4k: time against FlashInfer's",
         ratio("decode-b64-4k", "flashinfer-decode-b64-4k"), 1.10, 1.00, -1, TIMES),
    Gate("decode-b1-32k-bandwidth", "decode, 1 user x 32k: share of the measured read bandwidth",
         share("decode-b1-32k"), 0.55, 0.70),
    Gate("decode-b1-4k-graph-flashinfer", "decode, 1 user x 4k in a CUDA graph: time against FlashInfer's",
         ratio("decode-b1-4k-graph", "flashinfer-decode-b1-4k-graph"), 1.5, 1.2, -1, TIMES),
    Gate("skewed-against-uniform", "unequal lengths, same total: time against equal lengths",
         ratio("decode-skewed", "decode-b64-4k"), 1.3, 1.1, -1, TIMES),
    Gate("fp8-against-bf16", "an fp8 cache, 64 users x 4k: how many times as fast as a 16-bit one",
         ratio("decode-b64-4k", "decode-fp8-b64-4k"), 1.3, 1.7, 1, TIMES),
    Gate("prefill-8k-rate", "prefill, 8k tokens: arithmetic",
         lambda found: found["prefill-8k"].details["tflop_s"], 250.0, 370.0, 1, "{:.3g} TFLOP/s"),
    Gate("write-kv-8k-bandwidth", "writing keys and values, 8k tokens: share of the measured copy bandwidth",
         share("write-kv-8k"), 0.70, 0.85),
]  # fmt: skip
# The only gate in absolute figures, made for a card that multiplies like an H100.
HOPPER_GATE, HOPPER_TFLOPS = "prefill-8k-rate", 500


def put_gates(lab: Lab, found: Found, matmul_tflops: float) -> None:
    """Each gate as a prediction; its goal in the note. A gate without a figure says what it needs."""
    for claim, question, figure_of, gate, goal, sign, show in GATES:
        if claim == HOPPER_GATE and matmul_tflops < HOPPER_TFLOPS:
            continue
        question += f" is {'at least' if sign > 0 else 'at most'} {show.format(gate)}"
        try:
            figure = figure_of(found)
        except KeyError:
            if "flashinfer" in claim:
                lab.cannot_measure(claim, question, "download", FLASHINFER_MISSING)
            else:
                lab.show(f"- {question}: no figure on this card; the reason stands above")
            continue
        passed, reached = (sign * figure >= sign * mark for mark in (gate, goal))
        note = f"It is {show.format(figure)}. The goal, {show.format(goal)}, is {'' if reached else 'not '}reached."
        lab.predict(claim, question, predicted=True, measured=passed, kind="timing", note=note)
