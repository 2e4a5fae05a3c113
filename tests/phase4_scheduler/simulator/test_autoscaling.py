"""A fleet that follows its queue, by hand and over a day."""

import numpy as np

from phase4_scheduler.engine import SchedulerConfig
from phase4_scheduler.simulator.autoscaling import DAY, Autoscaler, daily, serve_autoscaled
from phase4_scheduler.simulator.cost_model import FittedCost
from phase4_scheduler.simulator.fleet import ReplicaConfig, serve_fleet
from phase4_scheduler.simulator.routers import LeastLoaded
from phase4_scheduler.simulator.traffic import TrafficRequest, draw_traffic

TEN_SECONDS = ReplicaConfig(FittedCost((10.0, 0.0, 0.0, 0.0, 0.0)), SchedulerConfig(max_num_seqs=1), 100)


def test_a_burst_by_hand():
    """One request at a time, 10 s each; ten come in the first second. Looks at 0 s, 20 s, ...

    20 s: two are served and 8 wait. 8 / 2 are 4 replicas in all, so 3 are started, and serve from 60 s on.
    Those that came before stay in the queue of the first replica. At 80 s two wait, later none: one replica leaves at
    140 s, the others 60 s after each other, but for the last.
    """
    burst = [TrafficRequest(0.1 * i, 8, 1) for i in range(10)]
    late = [TrafficRequest(65.0 + i, 8, 1) for i in range(3)] + [TrafficRequest(400.0, 8, 1)]
    scaler = Autoscaler(target=2.0, every=20.0, cold_start=40.0, patience=60.0)
    run, paid = serve_autoscaled([*burst, *late], TEN_SECONDS, scaler)
    assert run.choices == [0] * 10 + [1, 2, 3] + [0]
    assert [r.ttft for r in run.records[10:]] == [10.0] * 4
    assert [start for start, _ in paid] == [0.0, 20.0, 20.0, 20.0]
    assert sorted(end for _, end in paid)[:3] == [140.0, 200.0, 260.0]


def test_a_fleet_that_may_not_grow_is_a_fixed_one():
    traffic = draw_traffic("chat", 60, 3.0)
    config = ReplicaConfig(FittedCost((5e-3, 1e-4, 3e-4, 1e-7, 1e-8)), SchedulerConfig(max_num_seqs=4), 400)
    run, paid = serve_autoscaled(traffic, config, Autoscaler(fewest=2, most=2))
    assert run.records == serve_fleet(traffic, config, 2, LeastLoaded()).records and len(paid) == 2


def test_a_day_has_a_quiet_and_a_busy_half():
    day = daily(draw_traffic("chat", 500, 1.0), rate=0.1, swing=0.8)
    times = np.array([r.arrival for r in day])
    assert len(day) == 8640 and (np.diff(times) >= 0).all() and times[-1] <= DAY
    counts, _ = np.histogram(times, bins=24, range=(0, DAY))
    assert counts[[0, 23]].max() < 0.3 * counts.mean() and counts[[11, 12]].min() > 1.6 * counts.mean()
