"""The war room: nights on which something goes wrong in the real server, and only its metrics say what."""

from phase4_scheduler.server.drills.cases import DRILLS
from phase4_scheduler.server.drills.evidence import Cause, Check, Findings, Moments, investigate
from phase4_scheduler.server.drills.playing import Drill, Fault, Night, Stage
from phase4_scheduler.server.drills.promql import number, query
from phase4_scheduler.server.drills.recording import Recording

__all__ = [
    "DRILLS",
    "Cause",
    "Check",
    "Drill",
    "Fault",
    "Findings",
    "Moments",
    "Night",
    "Recording",
    "Stage",
    "investigate",
    "number",
    "query",
]
