"""The attackers of `make fuzz` find nothing where all is well, and something where a part is broken."""

from phase3_paged_attention.paging import BlockManager
from phase3_paged_attention.sharing import WindowedBlockManager
from phase4_scheduler.features import faults
from tests.fuzzing import engine


def test_the_engine_stands_a_few_cases():
    """Of a model with a window in one layer, one without windows, one with a window in each."""
    assert engine.run(seed=7, count=3) == []


# A broken part shows only where it changes a token, and which tokens are close depends on the processor's rounding: so
# each fault is sought in several cases, those with the most findings first.
def found(cases: list[int]) -> bool:
    return any(engine.run(seed=7, count=1, first=case) for case in cases)


def test_a_generator_that_is_not_put_back_is_found(monkeypatch):
    monkeypatch.setattr(faults, "rewind_generator", lambda request: None)
    assert found([8, 28, 1, 5, 14])


def test_blocks_that_are_found_though_they_were_never_filled_are_found(monkeypatch):
    monkeypatch.setattr(BlockManager, "uncache", lambda self, table, first=0: None)
    assert found([28, 26, 23, 10, 9, 12, 18])


def test_blocks_that_are_given_back_while_a_token_still_sees_them_are_found(monkeypatch):
    def skipped(self, num_computed):
        return max(0, num_computed - self.sliding_window + 1 + self.block_size) // self.block_size

    monkeypatch.setattr(WindowedBlockManager, "num_skipped_blocks", skipped)
    assert found([15, 2, 12, 3])
