"""Two cards that share the experts of one model: each step of one waits for the other.

In a mixture of experts (MoE) a token computes with few of a layer's many matrices, its experts. vLLM can serve such a
model with an engine on each card (a rank): own requests, own scheduler, own cache. Only the experts are spread over the
cards. So in each layer the tokens travel to the cards that hold their experts, and the results back. That ties the
ranks together: they begin each step at the same time, and the one with more to do decides when it ends.

Source: vllm/v1/engine/core.py (DPEngineCoreProc) and core_client.py (DPLBAsyncMPClient) for which rank gets a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from phase4_scheduler.engine import SchedulerConfig
from phase4_scheduler.simulator.kernel_table import KernelTable, at_size, read_table
from phase4_scheduler.simulator.step_size import StepSize
from phase4_scheduler.simulator.traffic import PromptMaker, TrafficRequest
from phase4_scheduler.simulator.virtual_time import ClockedEngine, Run


@dataclass(frozen=True)
class ExpertTable:
    """Seconds = step + the slower rank's own kernels + layers x (experts + two trips between the cards).

    Attributes:
        own: the kernels that each rank starts for its own tokens.
        experts: microseconds of one layer's experts on one rank, indexed by the tokens of the fuller rank.
        trip_bytes: that a token sends to another card, and gets back, in each layer.
        bandwidth, latency: of the link: bytes a second, seconds.
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
    ranks = [ClockedEngine.of(config, num_blocks, cost.own, async_scheduling=True) for _ in range(num_ranks)]
    prompts, run, sent = PromptMaker(), Run(), 0
    now = end = 0.0  # the begin of the last step, when the next one is decided, and its end
    while sent < len(requests) or any(rank.scheduler.has_requests for rank in ranks):
        # 1. Requests that have arrived by now.
        if not any(rank.scheduler.has_requests for rank in ranks):
            now = max(now, requests[sent].arrival)
        while sent < len(requests) and requests[sent].arrival <= now:
            rank = min(ranks, key=_load)
            rank.now = now
            rank.add(requests[sent], sent, prompts.prompt(requests[sent], sent))
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
