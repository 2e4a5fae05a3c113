"""Two cards that share the experts of one model: each step of one waits for the other.

In a mixture of experts (MoE) a token computes with few of a layer's many matrices, its experts. vLLM can serve such a
model with an engine on each card (a rank): own requests, own scheduler, own cache. Only the experts are spread over the
cards. So in each layer the tokens travel to the cards that hold their experts, and the results back. That ties the
ranks together: they begin each step at the same time, and the one with more to do decides when it ends.

Source: vllm/v1/engine/core.py (DPEngineCoreProc) and core_client.py (DPLBAsyncMPClient) for which rank gets a request.
"""

from __future__ import annotations

from collections.abc import Sequence

from phase3_paged_attention.paging import BlockManager
from phase4_scheduler.engine import Scheduler, SchedulerConfig
from phase4_scheduler.simulator.expert_table import ExpertTable
from phase4_scheduler.simulator.traffic import PromptMaker, TrafficRequest
from phase4_scheduler.simulator.virtual_time import ClockedEngine, Run


def serve_in_step(
    requests: Sequence[TrafficRequest],
    config: SchedulerConfig,
    num_blocks: int,
    cost: ExpertTable,
    num_ranks: int = 2,
) -> Run:
    """Serve all requests with ranks that go in step. As in vLLM, steps are decided early, and a request goes where
    the fewest run, those that wait counted four times."""
    ranks = [
        ClockedEngine(Scheduler(config, BlockManager(num_blocks)), cost.own, async_scheduling=True)
        for _ in range(num_ranks)
    ]
    prompts, run, sent = PromptMaker(), Run(), 0
    now = end = 0.0  # the begin of the last step, when the next one is decided, and its end
    while sent < len(requests) or any(rank.scheduler.has_requests for rank in ranks):
        # 1. Who has come by now?
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
    run.preemptions = sum(rank.scheduler.num_preemptions for rank in ranks)
    return run


def _load(rank: ClockedEngine) -> int:
    return len(rank.scheduler.running) + 4 * len(rank.scheduler.waiting)
