"""What vLLM did with 300 requests on real cards, and the tables of kernels that belong to them.

Source: LLMServingSim (https://github.com/casys-kaist/LLMServingSim, MIT licence); see recorded/README.md.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from phase4_scheduler.engine import SchedulerConfig
from phase4_scheduler.simulator.expert_table import ExpertTable, expert_line
from phase4_scheduler.simulator.kernel_table import FOLDER, KernelTable, read_table
from phase4_scheduler.simulator.traffic import TrafficRequest

METRICS = ("TTFT", "TPOT", "E2E")
STATISTICS = ("mean", "median", "p90", "p95", "p99")


@dataclass(frozen=True)
class RecordedRun:
    """vLLM 0.19 with a model in 16 bit, and 300 requests of ShareGPT, about 10 a second.

    Attributes:
        title: the cards.
        folder: where its tables and its requests are.
        num_blocks: KV blocks of 16 tokens.
        published: what its publishers' own simulator (LLMServingSim) was off by, percent: of TTFT, TPOT and E2E
            the mean, median, p90, p95 and p99.
    """

    title: str
    folder: Path
    num_blocks: int
    max_num_seqs: int
    max_context: int
    published: tuple[tuple[float, ...], ...]
    model: str = "Llama-3.1-8B"

    @property
    def config(self) -> SchedulerConfig:
        return SchedulerConfig(self.max_num_seqs, max_num_batched_tokens=2048, max_model_len=self.max_context)

    def kernel_table(self) -> KernelTable:
        return KernelTable.load(
            self.folder, f"{self.model} on {self.title}", 32, self.num_blocks, self.max_context
        )

    @cached_property
    def table(self) -> np.ndarray:
        """A line a request: arrival, prompt_tokens, output_tokens, queued, first_token, last_token; in seconds."""
        columns = ("arrival", "prompt_tokens", "output_tokens", "queued", "first_token", "last_token")
        table = read_table(self.folder / "requests.csv", *columns)
        return table[np.argsort(table["arrival"], kind="stable")]

    def requests(self) -> list[TrafficRequest]:
        """In the order of their arrivals; `kind` is the place in this order."""
        return [
            TrafficRequest(float(r["arrival"]), int(r["prompt_tokens"]), int(r["output_tokens"]), str(i))
            for i, r in enumerate(self.table)
        ]

    def latencies(self) -> dict[str, np.ndarray]:
        """TTFT, TPOT and E2E of each request in seconds, as vLLM counts them: from the moment it was queued."""
        r = self.table
        return latencies(r["queued"], r["first_token"], r["last_token"], r["output_tokens"])


def latencies(
    queued: np.ndarray, first: np.ndarray, last: np.ndarray, num_tokens: np.ndarray
) -> dict[str, np.ndarray]:
    """From the moments of many requests. TPOT: 0 for an answer of one token."""
    return {
        "TTFT": first - queued,
        "TPOT": (last - first) / np.maximum(num_tokens - 1, 1),
        "E2E": last - queued,
    }


RECORDED = {
    # The recording names its 2,588 blocks.
    "rtx4090": RecordedRun(
        "an RTX 4090", FOLDER / "rtx4090", 2588, 256, 32_768,
        ((0.6, 0.8, 0.6, 0.6, 0.3), (0.2, 0.2, 0.2, 0.2, 0.9), (0.5, 0.9, 0.2, 0.3, 0.4)),
    ),
    # It does not here: 90% of 96 GB, less the weights. Half of them are never used.
    "rtxpro6000": RecordedRun(
        "an RTX PRO 6000", FOLDER / "rtxpro6000", 33_000, 128, 131_072,
        ((-4.0, -8.6, -4.4, -2.4, -2.0), (-1.0, 0.0, 0.5, 0.3, 0.6), (-1.8, -1.2, -1.8, -1.3, -1.6)),
    ),
}  # fmt: skip

QWEN3 = RecordedRun(
    "two RTX PRO 6000", FOLDER / "qwen3", 40_000, 128, 262_144,
    ((-13.6, -21.8, -10.9, -10.5, -1.0), (-1.7, -1.6, -0.8, -0.8, -0.5), (-2.2, -2.0, -1.8, -1.8, -1.8)),
    model="Qwen3-30B-A3B",
)  # fmt: skip
"""A mixture of experts: 128, of which a token uses 8. An engine on each card, and half of the experts. The recording
does not name the blocks of their caches; they are never full."""


def expert_table() -> ExpertTable:
    """The kernels of QWEN3. The link is that of its publishers' simulator: 16 GB/s, and 20 microseconds a trip."""
    kernels = ("layernorm", "qkv_proj", "qk_norm", "qk_norm", "rotary_emb", "o_proj", "layernorm")
    name = f"{QWEN3.model} on {QWEN3.title}"
    own = KernelTable.load(QWEN3.folder, name, 48, QWEN3.num_blocks, QWEN3.max_context, kernels)
    experts = expert_line(QWEN3.folder / "experts.csv", 128, 8, 2)
    # To the other card goes half of what a token is: 2,048 numbers of 2 bytes.
    return ExpertTable(own, experts, trip_bytes=2048, bandwidth=16e9, latency=20e-6)
