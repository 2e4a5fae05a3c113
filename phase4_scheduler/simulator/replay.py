"""Does the simulator tell the truth? The requests of a recorded run once more, in virtual time."""

from dataclasses import replace
from typing import TypeVar

import numpy as np

from phase4_scheduler.simulator.expert_parallel import serve_in_step
from phase4_scheduler.simulator.expert_table import ExpertTable
from phase4_scheduler.simulator.kernel_table import KernelTable
from phase4_scheduler.simulator.recorded_runs import METRICS, RecordedRun, latencies
from phase4_scheduler.simulator.virtual_time import Run, simulate

Table = TypeVar("Table", KernelTable, ExpertTable)


def replay(recorded: RecordedRun, cost: KernelTable | ExpertTable) -> Run:
    """Serve the recorded requests as vLLM did: each step is decided while the one before is computed."""
    if isinstance(cost, ExpertTable):
        return serve_in_step(recorded.requests(), recorded.config, recorded.num_blocks, cost)
    return simulate(recorded.requests(), recorded.config, recorded.num_blocks, cost, async_scheduling=True)


def simulated_latencies(run: Run) -> dict[str, np.ndarray]:
    """TTFT, TPOT and E2E of each request in seconds, in the order of their arrivals."""
    records = sorted(run.records, key=lambda record: int(record.kind))
    moments = [(r.queued, r.token_times[0], r.token_times[-1], len(r.token_times)) for r in records]
    return latencies(*np.array(moments).T)


def fit_step(recorded: RecordedRun, cost: Table, rounds: int = 3) -> Table:
    """Find the seconds a step that kernels alone do not explain, from the first half of the requests.

    One number, so that their mean E2E agrees: the answer is found by following a straight line through the last
    two tries. Never below 0, as a CPU gives no time back.
    """
    half = len(recorded.requests()) // 2

    def too_short(step: float) -> float:
        run = replay(recorded, replace(cost, step=step))
        ours, theirs = simulated_latencies(run)["E2E"], recorded.latencies()["E2E"]
        return float(np.mean(theirs[:half] - ours[:half]))

    last, missing = 0.0, too_short(0.0)
    if missing <= 0:
        return cost
    step = 1e-3
    for _ in range(rounds):
        now = too_short(step)
        last, step, missing = step, max(0.0, step + now * (step - last) / (missing - now)), now
    return replace(cost, step=step)


def errors(recorded: RecordedRun, run: Run) -> np.ndarray:
    """Percent that the simulated run is off: TTFT, TPOT, E2E x mean, median, p90, p95, p99."""
    ours, theirs = simulated_latencies(run), recorded.latencies()
    return np.array([100 * (spread(ours[name]) / spread(theirs[name]) - 1) for name in METRICS])


def spread(values: np.ndarray) -> np.ndarray:
    """Mean, median, p90, p95, p99."""
    return np.array([values.mean(), *np.percentile(values, (50, 90, 95, 99))])
