"""What the page is measured with: a long recording that the scheduler decided."""

import json

from web.measure import record_long_run


def test_a_long_recording_has_every_step_and_keeps_its_books(tmp_path):
    record_long_run(tmp_path / "run.jsonl", steps=400)
    events = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [event["step"] for event in events] == list(range(400))
    assert max(event["running"] for event in events) == 32
    assert any(event["waiting"] for event in events) and any(event["finished"] for event in events)
    for event in events:
        held = {
            b for name, blocks in event["blocks"].items() if name not in event["finished"] for b in blocks
        }
        assert len(held) + event["free_blocks"] == 799
