"""The war room: drills in which the real server gets a fault that only its metrics show."""

from phase4_scheduler.server.drills.definitions import DRILLS, QUERIES
from phase4_scheduler.server.drills.evidence import Cause, Check, Findings, Moments, investigate
from phase4_scheduler.server.drills.load import Load, Users, plain
from phase4_scheduler.server.drills.playing import Drill, DrillRun, Fault, Stage, warm_server
from phase4_scheduler.server.drills.promql import number, query
from phase4_scheduler.server.drills.recording import Recording, Scraper
