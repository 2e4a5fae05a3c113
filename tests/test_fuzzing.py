"""The attackers of `make fuzz` find nothing where all is well, and something where a part is broken."""

from phase3_paged_attention.paging import BlockManager
from phase4_scheduler.engine import Request
from tests.fuzzing import engine


def test_the_engine_stands_a_few_cases():
    """Of a model with a window in one layer, one without windows, one with a window in each."""
    assert engine.run(seed=7, count=3) == []


def test_a_generator_that_is_not_put_back_is_found(monkeypatch):
    monkeypatch.setattr(Request, "rewind_generator", lambda self: None)
    findings = engine.run(seed=7, count=1)
    assert findings and "engine --seed 7 --case 0" in findings[0] and "is not" in findings[0]


def test_blocks_that_are_found_though_they_were_never_filled_are_found(monkeypatch):
    monkeypatch.setattr(BlockManager, "uncache", lambda self, table, first=0: None)
    assert engine.run(seed=7, count=1)


def test_blocks_that_are_given_back_while_a_token_still_sees_them_are_found(monkeypatch):
    """What then stands in the freed block differs from machine to machine: a wrong token, or numbers that break down."""

    def skipped(self, num_computed):
        return (
            0
            if self.sliding_window is None
            else max(0, num_computed - self.sliding_window + 3) // self.block_size
        )

    monkeypatch.setattr(BlockManager, "num_skipped_blocks", skipped)
    assert engine.run(seed=7, count=2, first=2)
