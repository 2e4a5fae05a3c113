"""The rules on the metrics of real drills, also as faster and slower machines would have seen them."""

import pytest

from exercises.phase4.recorded_drills import RECORDED, minutes_of
from exercises.phase4.two_causes import after_a_day, at_another_pace
from phase4_scheduler.server.drills import DRILLS, Moments, Recording, investigate

FAULTY = [minute for drill in RECORDED for minute in minutes_of(drill) if minute.cause != "nothing"]
CHANGES = {
    "as it was": lambda minute: minute,
    "five times as slow": lambda minute: at_another_pace(minute, 5.0),
    "five times as fast": lambda minute: at_another_pace(minute, 0.2),
    "after a day": after_a_day,
}


def play(*minutes) -> Recording:
    """Recorded minutes as one recording: pairs of when one begins, in seconds, and the minute."""
    recording = Recording()
    for begins, minute in minutes:
        for labels, samples in minute.recording.series.items():
            recording.series.setdefault(labels, []).extend((begins + t, v) for t, v in samples)
    return recording


def joined(healthy, faulty) -> Moments:
    later = healthy.end + 10.0
    recording = play((0.0, healthy), (later, faulty))
    return Moments(recording, healthy.end, later + faulty.end, int(healthy.end))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("minute", FAULTY, ids=str)
def test_the_rules_name_the_fault_on_a_machine_of_any_pace(minute, change):
    drill, healthy = DRILLS[minute.drill], minutes_of(minute.drill)[0]
    found = investigate(drill.alarms, drill.causes, joined(*map(CHANGES[change], (healthy, minute))))
    assert found.verdict == minute.cause, found


@pytest.mark.parametrize("number", RECORDED)
def test_a_healthy_minute_after_a_healthy_minute_raises_no_alarm(number):
    drill, healthy = DRILLS[number], minutes_of(number)[0]
    assert investigate(drill.alarms, drill.causes, joined(healthy, healthy)).verdict == "nothing"
