"""Drills from end to end: real servers, real users, and the rules name the fault from the metrics alone."""

import pytest

from phase4_scheduler.server.drills import DRILLS, Stage, investigate

pytestmark = pytest.mark.proof


@pytest.mark.parametrize(
    ("number", "cause"),
    [(5, "off"), (4, "client")],  # one that is deployed, and one of the users; both are known by counts
)
def test_a_fault_is_named_and_its_remedy_helps(number, cause):
    drill = DRILLS[number]
    with Stage(drill, cause, seed=0, window=4) as stage:
        stage.be_healthy()
        stage.break_down()
        stage.recover()
        errors, run = stage.load.errors, stage.run
    findings = investigate(drill.alarms, drill.causes, run.moments)
    assert findings.verdict == cause, findings
    assert drill.cause(cause).contradiction(run.back_to_normal)  # what spoke for it is gone
    assert errors == []
    assert stage.usual.process.poll() is not None
