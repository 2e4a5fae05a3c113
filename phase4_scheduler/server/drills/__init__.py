"""The war room: nights on which something goes wrong in the real server, and only its metrics say what."""

from phase4_scheduler.server.drills.evidence import Cause, Check, Findings, Moments, investigate
from phase4_scheduler.server.drills.load import Load, Users, plain
from phase4_scheduler.server.drills.nights import DRILLS, QUERIES
from phase4_scheduler.server.drills.playing import Drill, Fault, Night, Stage, warm_server
from phase4_scheduler.server.drills.promql import number, query
from phase4_scheduler.server.drills.recording import Recording, Scraper

__all__ = [
    "DRILLS", "QUERIES", "Cause", "Check", "Drill", "Fault", "Findings", "Load", "Moments", "Night", "Recording", "Scraper",
    "Stage", "Users", "investigate", "number", "plain", "query", "warm_server",
]  # fmt: skip
