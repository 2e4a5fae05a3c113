"""The attackers of `make fuzz` find nothing where all is well, and something where a part is broken."""

from phase3_paged_attention.paging import BlockManager
from phase4_scheduler.engine import Request
from tests.fuzzing import engine


def test_the_engine_stands_a_few_cases():
    assert engine.run(seed=1, count=3) == []


def test_a_generator_that_is_not_put_back_is_found(monkeypatch):
    monkeypatch.setattr(Request, "rewind_generator", lambda self: None)
    findings = engine.run(seed=1, count=3)
    assert findings and "engine --seed 1 --case" in findings[0] and "is not" in findings[0]


def test_blocks_that_are_found_though_they_were_never_filled_are_found(monkeypatch):
    monkeypatch.setattr(BlockManager, "uncache", lambda self, table, first=0: None)
    assert engine.run(seed=1, count=3)
