"""What crosses between devices that share a model, and how long that takes on measured interconnects.

A step of N tokens, a model of L layers and vectors of d numbers, t devices a stage, p stages:

    all_reduce   2L + 1 times N x d numbers: two per layer, one after the embedding table;
                 where queries and keys are normed over all heads (OLMo), 2L times N numbers more
    gather       S x V/t numbers: the scores of the S requests that get a token, from a vocabulary of V
    send         p - 1 times N x d numbers, from stage to stage

Small calls take as long as it takes to start them, however small; large ones as long as their bytes. The calls of a few users'
step are small.

The recordings are Vidur's (https://github.com/microsoft/vidur, MIT licence; see recorded/README.md): calls of NCCL, started from
Python. Most small ones were held up by that. A program that starts them from a CUDA graph is not.

Sources: Shoeybi et al., "Megatron-LM" (2019), section 3; Patarasuk and Yuan, "Bandwidth optimal all-reduce" (2009): in a ring
each device sends 2 (t - 1) / t of the size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from labkit.errors import LabError
from phase1_tokens_embeddings.weights import ModelShape
from phase4_scheduler.simulator.kernel_table import FOLDER

SMALL = 64 * 1024  # bytes; calls of a few users' step


class Calls(NamedTuple):
    """Calls of one kind: how many, and the bytes of all of them together, that a device brings."""

    count: int
    nbytes: int


def step_traffic(
    shape: ModelShape,
    num_tokens: int,
    num_requests: int,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    number_bytes: int = 2,
) -> dict[str, Calls]:
    """What one device of each stage brings to a step, all stages together. Kinds without a call are left out.

    Args:
        num_tokens: of the step. num_requests: those that get a token, and so need scores.
    """
    vectors = num_tokens * shape.d_model * number_bytes
    found: dict[str, Calls] = {}
    if tensor_parallel_size > 1:
        count = 2 * shape.num_layers + 1
        norms = 2 * shape.num_layers if shape.choices.qk_norm == "row" else 0
        means = num_tokens * max(4, number_bytes)  # in 32 bit, or wider
        found["all_reduce"] = Calls(count + norms, count * vectors + norms * means)
        scores = -(-shape.vocab_size // tensor_parallel_size)
        found["gather"] = Calls(1, num_requests * scores * number_bytes)
    if pipeline_parallel_size > 1:
        found["send"] = Calls(pipeline_parallel_size - 1, (pipeline_parallel_size - 1) * vectors)
    return found


# ---------------------------------------------------------------------- wires


@dataclass(frozen=True)
class Wire:
    """How long a call takes, by its bytes: points, and between them straight lines on logarithmic scales.

    Attributes:
        sizes, seconds: the points. Below the first one a call takes as long as there, beyond the last one time grows with size.
        held_up: seconds that a small call usually waits for something else; the fastest tenth does not.
        fastest: what that tenth takes.
    """

    sizes: tuple[float, ...]
    seconds: tuple[float, ...]
    held_up: float = 0.0
    fastest: float = 0.0

    def __call__(self, nbytes: float, at_best: bool = False) -> float:
        """Seconds of a call. `at_best`: it is not held up, since it is started from a recording."""
        last = self.sizes[-1]
        known = np.interp(np.log(min(nbytes, last)), np.log(self.sizes), np.log(self.seconds))
        usual = float(np.exp(known)) * max(1.0, nbytes / last)
        return min(usual, max(self.fastest, usual - self.held_up)) if at_best else usual


def fit_wire(sizes: np.ndarray, seconds: np.ndarray) -> Wire:
    """A point for each doubling of the size: the middle of what calls of about that size took.

    (Three numbers, a start and a bandwidth and a floor, would do for large calls. They do not do for small ones, where the library
    goes over to another way of sending.)
    """
    doubling = np.log2(sizes).astype(int)
    bins = [doubling == b for b in np.unique(doubling)]
    points = [[float(np.median(column[own])) for column in (sizes, seconds)] for own in bins]
    small = seconds[sizes <= SMALL]
    fastest = float(np.quantile(small, 0.1))
    return Wire(*map(tuple, zip(*points)), float(np.median(small)) - fastest, fastest)


Key = tuple[str, str, int, int]  # machine, call, devices, devices per computer


@cache
def recordings() -> dict[Key, tuple[np.ndarray, np.ndarray]]:
    """All that was recorded: sizes in bytes, and the median seconds of three calls of each size."""
    file = FOLDER / "interconnect" / "calls.csv.gz"
    table = np.genfromtxt(file, delimiter=",", skip_header=1, dtype=None, encoding="utf-8")
    keys = [tuple(row)[:4] for row in table.tolist()]
    sizes, seconds = np.array([tuple(row)[4:] for row in table.tolist()], dtype=float).T * [[1], [1e-6]]
    own = {key: [k == key for k in keys] for key in dict.fromkeys(keys)}
    return {key: (sizes[rows], seconds[rows]) for key, rows in own.items()}


@cache
def find_wire(machine: str, call: str, devices: int, devices_a_computer: int | None = None) -> Wire:
    """The fit to a recording; all devices in one computer, if not said otherwise."""
    return fit_wire(*recordings()[machine, call, devices, devices_a_computer or devices])


class AllReduce(NamedTuple):
    """An all-reduce among some of the devices of a machine.

    No more devices than these, over the same wires, can be faster: where a recording says so, a call among the few was held up.
    And PCIe is no faster than NVLink.

    Attributes:
        recorded: of this number of devices, and of larger ones.
        slower_than: the same over faster wires.
    """

    recorded: tuple[Wire, ...]
    slower_than: tuple[Wire, ...] = ()

    def __call__(self, nbytes: float, at_best: bool = False) -> float:
        """Seconds of a call; `at_best`: see `Wire`."""
        seconds = min(wire(nbytes, at_best) for wire in self.recorded)
        return max(seconds, min((wire(nbytes, at_best) for wire in self.slower_than), default=0.0))


@dataclass(frozen=True)
class Interconnect:
    """What joins devices: an all-reduce for each number of devices.

    Attributes:
        computed: numbers of devices whose all-reduce was not recorded. It is worked out as a ring over the same wire.
    """

    name: str
    title: str
    all_reduce: dict[int, AllReduce]
    computed: frozenset[int] = frozenset()


def ring(four: Wire, devices: int) -> Wire:
    """From an all-reduce of four devices to one of another number of them over the same wire.

    In a ring of t a device sends 2 (t - 1) times: t - 1 pieces to be added up, t - 1 sums to be known, each 1/t of the size. So
    four devices take 6 rounds of a quarter.
    """
    rounds = 2 * (devices - 1)
    sizes = tuple(size * devices / 4 for size in four.sizes)
    took = (tuple(s * rounds / 6 for s in four.seconds), four.held_up * rounds / 6, four.fastest * rounds / 6)
    return Wire(sizes, *took)


def grouped(wires: dict[int, Wire]) -> dict[int, AllReduce]:
    """By number of devices, with the wires of all larger numbers."""
    return {t: AllReduce(tuple(wire for u, wire in wires.items() if u >= t)) for t in wires}


MACHINES = {  # title, recorded machine, computers
    "nvlink": ("NVLink", "a100_dgx", 1),
    "nvlink-h100": ("NVLink (H100)", "h100_dgx", 1),
    "network": ("network, two computers", "a100_dgx", 2),
}


@cache
def find_interconnect(name: str) -> Interconnect:
    """ "nvlink" and "network" (two computers) of A100 machines, "nvlink-h100", or "pcie". Raises LabError: unknown."""
    if name == "pcie":  # four cards in two pairs: between the pairs lies PCIe
        four = find_wire("a100_pairwise_nvlink", "all_reduce", 4)
        rings, faster = {t: ring(four, t) for t in (2, 4, 8)}, find_interconnect("nvlink").all_reduce
        wires = {t: AllReduce(group.recorded, faster[t].recorded) for t, group in grouped(rings).items()}
        return Interconnect(name, "PCIe", wires, frozenset({2, 8}))
    if name not in MACHINES:
        raise LabError(f"unknown interconnect {name!r}: choose one of pcie, {', '.join(MACHINES)}")
    title, machine, computers = MACHINES[name]
    wires = {t: find_wire(machine, "all_reduce", t, t // computers) for t in (2, 4, 8)}
    # Between computers more devices have more network cards: there each recording stands for itself.
    joined = grouped(wires) if computers == 1 else {t: AllReduce((wire,)) for t, wire in wires.items()}
    return Interconnect(name, title, joined)
