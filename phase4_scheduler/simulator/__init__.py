"""Traffic, and servers for it: the real scheduler and block manager in virtual time."""

from phase4_scheduler.simulator.batching import Job, Served, serve_continuously, serve_statically
from phase4_scheduler.simulator.cost_model import ComputedCost, LinearCost, StepSize
from phase4_scheduler.simulator.fleet import FleetRun, ReplicaConfig, serve_fleet
from phase4_scheduler.simulator.interconnects import Calls, find_interconnect, step_traffic
from phase4_scheduler.simulator.kernel_table import KernelTable
from phase4_scheduler.simulator.latency import Latency, RequestRecord, percentiles, summarise
from phase4_scheduler.simulator.parallel_cost import ParallelCost, find_cost
from phase4_scheduler.simulator.routers import ROUTERS
from phase4_scheduler.simulator.traffic import TrafficRequest, draw_traffic, read_trace
from phase4_scheduler.simulator.virtual_time import Run, simulate
