"""Does the simulator tell the truth? What vLLM did with 300 requests on real cards, and the same once more in virtual time.

Source: LLMServingSim (https://github.com/casys-kaist/LLMServingSim, MIT licence), see recorded/README.md.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from phase4_scheduler.engine import SchedulerConfig
from phase4_scheduler.simulator.cost_model import CostModel
from phase4_scheduler.simulator.kernel_table import FOLDER, KernelTable, read_table
from phase4_scheduler.simulator.traffic import TrafficRequest
from phase4_scheduler.simulator.virtual_time import Run, simulate

METRICS = ("TTFT", "TPOT", "E2E")
STATISTICS = ("mean", "median", "p90", "p95", "p99")


@dataclass(frozen=True)
class RecordedRun:
    """vLLM 0.19 with Llama-3.1 8B in 16 bit, and 300 requests of ShareGPT, about 10 a second.

    Attributes:
        title: the cards.
        folder: where its tables and its requests are.
        num_blocks: KV blocks of 16 tokens.
        published: what its publishers' own simulator (LLMServingSim) was off by, percent: of TTFT, TPOT and E2E
            the mean, median, p90, p95 and p99.
        step: seconds of a step besides its kernels, with which the mean E2E of the first 150 requests agrees.
    """

    title: str
    folder: Path
    num_blocks: int
    max_num_seqs: int
    max_context: int
    published: tuple[tuple[float, ...], ...]
    step: float = 0.0

    @property
    def config(self) -> SchedulerConfig:
        return SchedulerConfig(self.max_num_seqs, max_num_batched_tokens=2048, max_model_len=self.max_context)

    def kernel_table(self) -> KernelTable:
        name = f"Llama-3.1-8B on {self.title}"
        table = KernelTable.load(self.folder, name, 32, self.num_blocks, self.max_context)
        return replace(table, step=self.step)

    @cached_property
    def table(self) -> np.ndarray:
        """A line a request: arrival, prompt_tokens, output_tokens, queued, first_token, last_token; in seconds."""
        table = read_table(self.folder / "requests.csv")
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
        step=1.08e-3,
    ),
}  # fmt: skip

# ---------------------------------------------------------------------- once more, in virtual time


def replay(recorded: RecordedRun, cost: CostModel) -> Run:
    """Serve the recorded requests as vLLM did: each step is decided while the one before is computed."""
    return simulate(recorded.requests(), recorded.config, recorded.num_blocks, cost, async_scheduling=True)


def simulated_latencies(run: Run) -> dict[str, np.ndarray]:
    """TTFT, TPOT and E2E of each request in seconds, in the order of their arrivals."""
    records = sorted(run.records, key=lambda record: int(record.kind))
    moments = [(r.queued, r.token_times[0], r.token_times[-1], len(r.token_times)) for r in records]
    return latencies(*np.array(moments).T)


def errors(recorded: RecordedRun, run: Run) -> np.ndarray:
    """Percent that the simulated run is off: TTFT, TPOT, E2E x mean, median, p90, p95, p99."""
    ours, theirs = simulated_latencies(run), recorded.latencies()
    return np.array([100 * (spread(ours[name]) / spread(theirs[name]) - 1) for name in METRICS])


def spread(values: np.ndarray) -> np.ndarray:
    """Mean, median, p90, p95, p99."""
    return np.array([values.mean(), *np.percentile(values, (50, 90, 95, 99))])
