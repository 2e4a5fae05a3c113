"""The GPUs that the course computes with, as in their data sheets.

Source: NVIDIA's data sheets; A100, H100 and H200 in their SXM form. (The limits of
each compute capability are in phase 5, compiling/machine_code.py.)
"""

from dataclasses import dataclass

from labkit.errors import LabError


@dataclass(frozen=True)
class Card:
    """A GPU.

    Attributes:
        label_gb: the number in its name. It counts the memory that is built in, in units of 2^30 bytes.
        memory_mib: memory that the driver offers (nvidia-smi), in MiB. GDDR cards of data centres keep 1/16 for
            error correction, so a "16 GB" T4 offers 15 GiB.
        bandwidth_gb_s: memory bandwidth in 10^9 bytes per second.
        tensor_tflops: dense 16-bit matrix multiplication with 32-bit sums, 10^12 operations per second.
        multiprocessors: how many of them it has, each with its own registers and shared memory.
        dollars_per_hour: a rough cloud price. An assumption, not a quotation: prices differ threefold
            between sellers and change by the month.
    """

    name: str
    title: str
    label_gb: int
    memory_mib: int
    bandwidth_gb_s: int
    tensor_tflops: int
    multiprocessors: int
    dollars_per_hour: float

    @property
    def memory_bytes(self) -> int:
        return self.memory_mib * 2**20


CARDS: dict[str, Card] = {
    card.name: card
    for card in [
        Card("t4", "T4 16 GB", 16, 15360, 320, 65, 40, 0.40),
        Card("l4", "L4 24 GB", 24, 23034, 300, 121, 58, 0.75),
        Card("rtx4090", "RTX 4090 24 GB", 24, 24564, 1008, 165, 128, 0.50),
        Card("a100-40", "A100 40 GB", 40, 40960, 1555, 312, 108, 1.40),
        Card("a100-80", "A100 80 GB", 80, 81920, 2039, 312, 108, 1.90),
        Card("h100", "H100 80 GB", 80, 81559, 3350, 989, 132, 2.90),
        Card("h200", "H200 141 GB", 141, 143771, 4800, 989, 132, 3.70),
    ]
}


def find_card(name: str) -> Card:
    """A card by its short name, such as "t4" or "A100-80".

    Raises:
        LabError: unknown.
    """
    key = name.strip().lower().replace("_", "-").replace(" ", "-")
    if key not in CARDS:
        raise LabError(f"unknown card {name!r}: choose one of {', '.join(CARDS)}")
    return CARDS[key]
