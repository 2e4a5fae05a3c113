"""The war room as a learner plays it. Where only the telling is tested, a recorded drill stands for the server."""

import io

import pytest

from exercises.phase4.recorded_drills import minutes_of
from phase4_scheduler import war_room
from phase4_scheduler.server.drills import DRILLS, DrillRun, Fault
from phase4_scheduler.story import war_room_story
from tests.phase4_scheduler.server.drills.test_recorded_drills import play


class RecordedStage:
    """Plays a recorded drill as `Stage` plays a real one."""

    def __init__(self, drill, fault, seed, window):
        healthy, *faulty = minutes_of(drill.number)
        minute = next(m for m in faulty if m.cause == fault)
        recording, end = play((0.0, healthy), (20.0, minute), (40.0, healthy)), healthy.end
        self.fault = Fault()
        self.run = DrillRun(drill, int(end), fault, recording, end, 20 + end, 40 + end)

    def be_healthy(self): ...
    def break_down(self): ...
    def recover(self): ...
    def __enter__(self):
        return self

    def __exit__(self, *_): ...


@pytest.fixture
def recorded(monkeypatch):
    monkeypatch.setattr(war_room_story, "Stage", RecordedStage)


@pytest.fixture
def typed(monkeypatch):
    return lambda text: monkeypatch.setattr("sys.stdin", io.StringIO(text))


def seed_of(number, fault):
    return next(s for s in range(100) if war_room_story.draw_fault(DRILLS[number], s) == fault)


def test_a_drill_on_call(recorded, typed, run_script):
    typed(
        "sum by (engine) (rate(vllm:generation_tokens_total[1m]))\nrate(vllm:generation_tokens_total[5m])\nrate(x\nvllm:num_preemptions\nhelp\nmax_num_seqs\n\nclients\nclient\n\n\n"
    )
    report = run_script(war_room, "--drill", 4, "--seed", seed_of(4, "client"), "--predict")
    out = report["out"]
    before, _, after = out.partition("Your guess")
    assert "It was:" not in before and "It was:" in after
    assert "a range above 12 s mixes before and now" in out
    assert "before  0" not in out and "now     0" not in out  # [1m] is the drill's window
    assert "unclosed left parenthesis" in out and "empty: no series fits" in out
    assert "clients is none of" in out and "avg_over_time" in out
    assert "an empty line continues with your answer" in out and "is not back" not in out
    claim = report["claims"]["war-room-4"]
    assert (claim["predicted"], claim["measured"], claim["guess"], claim["points"]) == ("client",) * 3 + (3,)
    for name in ("max_num_seqs", "budget", "pool", "neighbour", "answers"):
        assert f"  {name}" in out
    assert "vllm:num_requests_waiting[12s]" in out.partition("exclude the other causes")[2]
    assert report["results"]["recovered"] == pytest.approx(1.0, abs=0.01)
    assert report["results"]["during"] < 0.5


def test_the_list_names_every_drill(run_script):
    out = run_script(war_room, "--list")["out"]
    assert all(drill.question[:20] in out for drill in DRILLS.values())


def test_a_figure_that_does_not_come_back_is_said_to(recorded, monkeypatch, run_script):
    def recover(stage):
        stage.run.recovered = stage.run.faulty

    monkeypatch.setattr(RecordedStage, "recover", recover)
    out = run_script(war_room, "--drill", 4, "--seed", seed_of(4, "client"))["out"]
    assert "The figure is not back" in out and "The possible causes" in out


def test_each_fault_is_drawn_by_some_seed():
    for number, drill in DRILLS.items():
        assert {war_room_story.draw_fault(drill, seed) for seed in range(40)} == set(drill.faults), number


def test_nonsense_is_refused(mistake_of):
    assert "8 is out of range: 1 to 7" in mistake_of(war_room, "--drill", "8")
