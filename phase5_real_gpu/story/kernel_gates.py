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
        gate, goal: to be reached. at_most: the figure is to stay below them, not above.
        unit: "%": the figure is a share.
    """

    claim: str
    question: str
    figure: Callable[[Found], float]
    gate: float
    goal: float
    at_most: bool = False
    unit: str = "x"

    def passes(self, figure: float, mark: float) -> bool:
        return figure <= mark if self.at_most else figure >= mark

    def show(self, value: float) -> str:
        space = "" if self.unit == "x" else " "
        return f"{value:.0%}" if self.unit == "%" else f"{value:.3g}{space}{self.unit}"


def share(name: str) -> Callable[[Found], float]:
    return lambda found: found[name].share_of_limit


def ratio(above: str, below: str) -> Callable[[Found], float]:
    return lambda found: found[above].value / found[below].value


GATES = [
    Gate("decode-b64-4k-bandwidth", "decode, 64 users x 4k: share of the measured read bandwidth",
         share("decode-b64-4k"), 0.80, 0.90, unit="%"),
    Gate("decode-b64-4k-flashinfer", "decode, 64 users x 4k: time against FlashInfer's",
         ratio("decode-b64-4k", "flashinfer-decode-b64-4k"), 1.10, 1.00, at_most=True),
    Gate("decode-b1-32k-bandwidth", "decode, 1 user x 32k: share of the measured read bandwidth",
         share("decode-b1-32k"), 0.55, 0.70, unit="%"),
    Gate("decode-b1-4k-graph-flashinfer", "decode, 1 user x 4k in a CUDA graph: time against FlashInfer's",
         ratio("decode-b1-4k-graph", "flashinfer-decode-b1-4k-graph"), 1.5, 1.2, at_most=True),
    Gate("skewed-against-uniform", "unequal lengths, same total: time against equal lengths",
         ratio("decode-skewed", "decode-b64-4k"), 1.3, 1.1, at_most=True),
    Gate("fp8-against-bf16", "an fp8 cache, 64 users x 4k: how many times as fast as a 16-bit one",
         ratio("decode-b64-4k", "decode-fp8-b64-4k"), 1.3, 1.7),
    Gate("prefill-8k-rate", "prefill, 8k tokens: arithmetic",
         lambda found: found["prefill-8k"].details["tflop_s"], 250.0, 370.0, unit="TFLOP/s"),
    Gate("write-kv-8k-bandwidth", "writing keys and values, 8k tokens: share of the measured copy bandwidth",
         share("write-kv-8k"), 0.70, 0.85, unit="%"),
]  # fmt: skip
# The only gate in absolute figures, made for a card that multiplies like an H100.
HOPPER_GATE, HOPPER_TFLOPS = "prefill-8k-rate", 500


def put_gates(lab: Lab, found: Found, matmul_tflops: float) -> None:
    """Each gate as a prediction; its goal in the note. A gate without a figure says what it needs."""
    marks = []
    for gate in GATES:
        if gate.claim == HOPPER_GATE and matmul_tflops < HOPPER_TFLOPS:
            continue
        question = f"{gate.question} is {'at most' if gate.at_most else 'at least'} {gate.show(gate.gate)}"
        try:
            figure = gate.figure(found)
        except KeyError:
            if "flashinfer" in gate.claim:
                lab.cannot_measure(gate.claim, question, "download", FLASHINFER_MISSING)
            else:
                lab.show(f"- {question}: no figure on this card; the reason stands above")
            continue
        passed, reached = (gate.passes(figure, mark) for mark in (gate.gate, gate.goal))
        note = f"It is {gate.show(figure)}. The goal, {gate.show(gate.goal)}, is {'' if reached else 'not '}reached."
        lab.predict(gate.claim, question, predicted=True, measured=passed, kind="timing", note=note)
        marks.append(dict(claim=gate.claim, figure=figure, gate=gate.gate, goal=gate.goal, passed=passed,
                          goal_reached=reached))  # fmt: skip
    lab.record(gates=marks)
