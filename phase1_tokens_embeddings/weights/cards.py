"""The GPUs that the course computes with, as in their data sheets.

Source: NVIDIA's data sheets, A100, H100 and H200 in their SXM form, B200 in an HGX B200 of 1,000 W, RTX PRO 6000 in its Server
Edition (the Workstation Edition reads 1,792 GB/s); the Ada whitepaper; AMD's data sheet of the MI300X. All dense: without 2:4
sparsity. (The limits of each compute capability are in phase 5, compiling/machine_code.py.)
"""

from dataclasses import dataclass

from labkit.errors import LabError


@dataclass(frozen=True)
class Card:
    """A GPU.

    Attributes:
        title: its name, with the memory that is built in, in units of 2^30 bytes.
        memory_mib: total memory by nvidia-smi, in MiB. GDDR cards of data centres keep 1/16 for error correction, so
            a "16 GB" T4 has 15 GiB. The driver reserves a part of it: torch sees 14.6 to 14.7 GiB of a T4.
        bandwidth_gb_s: memory bandwidth in 10^9 bytes per second.
        tensor_tflops: dense 16-bit matrix multiplication with 32-bit sums, 10^12 operations per second.
        multiprocessors: how many of them it has, each with its own registers and shared memory.
        dollars_per_hour: a rough cloud price. An assumption, not a quotation: prices differ fourfold
            between sellers and change by the month (list prices that were found are beside `CARDS`).
        fp8_tflops, fp4_tflops: the same in 8 and in 4 bit; 0: the card has no arithmetic in this format.
    """

    name: str
    title: str
    memory_mib: int
    bandwidth_gb_s: int
    tensor_tflops: int
    multiprocessors: int
    dollars_per_hour: float
    fp8_tflops: int = 0
    fp4_tflops: int = 0

    @property
    def memory_bytes(self) -> int:
        return self.memory_mib * 2**20


# List prices per hour on demand: RunPod's secure cloud (October 7, 2026; H100 November 9): A100 1.59, H100 3.99, H200 4.59, B200 6.79.
# Akash, "starting at" (September 20, 2026): A100 80 GB 1.71, H100 2.71, H200 4.45, B200 5.00, RTX PRO 6000 2.04. AWS (November 9, 2026):
# A100 40 GB 2.74, A100 80 GB 3.43, H100 6.88. OpenRelay (September 20, 2026): RTX 4090 0.29, A100 40 GB 0.80. For T4, L4, L40S
# and MI300X no dated list was found.
CARDS: dict[str, Card] = {
    card.name: card
    for card in [
        Card("t4", "T4 16 GB", 15360, 320, 65, 40, 0.40),
        Card("l4", "L4 24 GB", 23034, 300, 121, 58, 0.75, 242),
        Card("l40s", "L40S 48 GB", 46068, 864, 362, 142, 1.10, 733),
        Card("rtx4090", "RTX 4090 24 GB", 24564, 1008, 165, 128, 0.50, 330),
        Card("rtxpro6000", "RTX PRO 6000 96 GB", 97887, 1597, 500, 188, 1.80, 1000, 2000),
        Card("a100-40", "A100 40 GB", 40960, 1555, 312, 108, 1.40),
        Card("a100-80", "A100 80 GB", 81920, 2039, 312, 108, 1.90),
        Card("h100", "H100 80 GB", 81559, 3350, 989, 132, 2.90, 1979),
        Card("h200", "H200 141 GB", 143771, 4800, 989, 132, 3.70, 1979),
        Card("b200", "B200 180 GB", 183359, 8000, 2250, 148, 5.50, 4500, 9000),
        Card("mi300x", "MI300X 192 GB", 196592, 5300, 1307, 304, 2.50, 2615),
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
