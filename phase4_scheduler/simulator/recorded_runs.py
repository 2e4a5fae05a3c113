"""Does the simulator tell the truth? What vLLM did with 300 requests on real cards, and the same once more in virtual time.

Sources: LLMServingSim (https://github.com/casys-kaist/LLMServingSim, MIT licence), see recorded/README.md; of the two ranks,
vllm/v1/engine/core.py (DPEngineCoreProc) and core_client.py (DPLBAsyncMPClient).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from phase4_scheduler.engine import SchedulerConfig
from phase4_scheduler.simulator.cost_model import CostModel, StepSize
from phase4_scheduler.simulator.kernel_table import FOLDER, KernelTable, at_size, read_table
from phase4_scheduler.simulator.traffic import TrafficRequest
from phase4_scheduler.simulator.virtual_time import ClockedEngine, ReplicaConfig, Run, simulate

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
        step: seconds of a step besides its kernels, with which the mean E2E of the first 150 requests agrees.
    """

    title: str
    folder: Path
    num_blocks: int
    max_num_seqs: int
    max_context: int
    published: tuple[tuple[float, ...], ...]
    step: float = 0.0
    model: str = "Llama-3.1-8B"

    @property
    def config(self) -> SchedulerConfig:
        return SchedulerConfig(self.max_num_seqs, max_num_batched_tokens=2048, max_model_len=self.max_context)

    def kernel_table(self) -> KernelTable:
        name = f"{self.model} on {self.title}"
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

# ---------------------------------------------------------------------- two cards that share the experts of one model


@dataclass(frozen=True)
class ExpertTable:
    """Seconds = step + the slower rank's own kernels + layers x (experts + two trips between the cards).

    In a mixture of experts (MoE) a token computes with few of a layer's many matrices, its experts. vLLM can serve such a
    model with an engine on each card (a rank): own requests, own scheduler, own cache. Only the experts are spread over the
    cards. So in each layer the tokens travel to the cards that hold their experts, and the results back. That ties the
    ranks together: they begin each step at the same time, and the one with more to do decides when it ends.

    Attributes:
        own: the kernels that each rank starts for its own tokens.
        experts: microseconds of one layer's experts on one rank, indexed by the tokens of the fuller rank.
        trip_bytes: that a token sends to another card, and gets back, in each layer.
        bandwidth, latency: of the link: bytes per second, seconds.
        step: seconds that a step takes besides.

    What it leaves out: that tokens may like some experts better than others.
    """

    own: KernelTable
    experts: Sequence[float]
    trip_bytes: int
    bandwidth: float
    latency: float
    step: float = 0.0

    def seconds(self, sizes: Sequence[StepSize]) -> float:
        """Args: sizes: of the ranks that have something to do."""
        tokens = max(size.num_tokens for size in sizes)
        trip = self.latency + tokens * self.trip_bytes / self.bandwidth
        layer = 1e-6 * at_size(self.experts, tokens) + 2 * trip
        return self.step + max(map(self.own.seconds, sizes)) + self.own.num_layers * layer


def expert_line(path: Path, num_experts: int, experts_per_token: int, num_ranks: int) -> list[float]:
    """Microseconds of one layer's experts on one rank, by the tokens of each rank, from a table by tokens and experts
    in use.

    A rank sees the tokens of all ranks, but holds only its part of the experts of each: as much work as all experts of
    its own tokens. How many experts are in use: each token leaves one out with the same chance.
    """
    table = read_table(path)
    counts = np.unique(table["activated_experts"])
    tokens = np.arange(table["tokens"].max() + 1)
    parts = [table[table["activated_experts"] == count] for count in counts]
    lines = np.stack([np.interp(tokens, part["tokens"], part["time_us"]) for part in parts])
    unused = (1 - experts_per_token / num_experts) ** (num_ranks * tokens)
    used = num_experts / num_ranks * (1 - unused)
    return [float(np.interp(n, counts, line)) for n, line in zip(used, lines.T)]


def serve_in_step(
    requests: Sequence[TrafficRequest],
    config: SchedulerConfig,
    num_blocks: int,
    cost: ExpertTable,
    num_ranks: int = 2,
) -> Run:
    """Serve all requests with ranks that go in step. As in vLLM, steps are decided early, and a request goes where
    the fewest run, those that wait counted four times."""
    replica = ReplicaConfig(cost.own, config, num_blocks)
    ranks = [ClockedEngine.made_from(replica, async_scheduling=True) for _ in range(num_ranks)]
    run, sent = Run(), 0
    now = end = 0.0  # the begin of the last step, when the next one is decided, and its end
    while sent < len(requests) or any(rank.scheduler.has_requests for rank in ranks):
        # 1. Requests that have arrived by now.
        if not any(rank.scheduler.has_requests for rank in ranks):
            now = max(now, requests[sent].arrival)
        while sent < len(requests) and requests[sent].arrival <= now:
            rank = min(ranks, key=_load)
            rank.now = now
            rank.take(requests[sent], sent)
            sent += 1

        # 2. Each rank decides its step; together they take as long as the table says.
        begin = max(now, end)
        decided = [(rank, rank.decide()) for rank in ranks if rank.scheduler.has_requests]
        work = [(rank, *step) for rank, step in decided if step is not None]
        now = begin
        if work:
            seconds = cost.seconds([size for _, _, size in work])
            end = begin + seconds
            run.times.append(begin)
            run.durations.append(seconds)
            for rank, output, _ in work:
                rank.hand_out(output, begin, end)
    run.records = [record for rank in ranks for record in rank.run.records]
    run.preemptions = sum(rank.run.preemptions for rank in ranks)
    return run


def _load(rank: ClockedEngine) -> int:
    return len(rank.scheduler.running) + 4 * len(rank.scheduler.waiting)


QWEN3 = RecordedRun(
    "two RTX PRO 6000", FOLDER / "qwen3", 40_000, 128, 262_144,
    ((-13.6, -21.8, -10.9, -10.5, -1.0), (-1.7, -1.6, -0.8, -0.8, -0.5), (-2.2, -2.0, -1.8, -1.8, -1.8)),
    step=2.38e-3, model="Qwen3-30B-A3B",
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
    return ExpertTable(own, experts, trip_bytes=2048, bandwidth=16e9, latency=20e-6, step=QWEN3.step)


# ---------------------------------------------------------------------- once more, in virtual time


def replay(recorded: RecordedRun, cost: CostModel | ExpertTable) -> Run:
    """Serve the recorded requests as vLLM did: each step is decided while the one before is computed."""
    if isinstance(cost, ExpertTable):
        return serve_in_step(recorded.requests(), recorded.config, recorded.num_blocks, cost)
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
