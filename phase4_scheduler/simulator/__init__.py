"""Traffic, and servers for it: the real scheduler in virtual time, the real engine in real time."""

from phase4_scheduler.simulator.batching import Job, Served, serve_continuously, serve_statically
from phase4_scheduler.simulator.cost_model import ComputedCost, FittedCost, find_cost
from phase4_scheduler.simulator.fleet import FleetRun, ReplicaConfig, serve_fleet
from phase4_scheduler.simulator.kernel_table import KernelTable
from phase4_scheduler.simulator.latency import Latency, RequestRecord, percentiles, summarise
from phase4_scheduler.simulator.routers import ROUTERS
from phase4_scheduler.simulator.step_size import StepSize
from phase4_scheduler.simulator.trace_files import Trace, read_trace
from phase4_scheduler.simulator.traffic import PromptMaker, TrafficRequest, draw_traffic, fit_lengths
from phase4_scheduler.simulator.virtual_time import Run, simulate

__all__ = [
    "ROUTERS", "ComputedCost", "FittedCost", "FleetRun", "Job", "KernelTable", "Latency", "PromptMaker", "ReplicaConfig",
    "RequestRecord", "Run", "Served", "StepSize",
    "Trace", "TrafficRequest", "draw_traffic", "find_cost", "fit_lengths", "percentiles", "read_trace",
    "serve_continuously", "serve_fleet", "serve_statically", "simulate", "summarise",
]  # fmt: skip
