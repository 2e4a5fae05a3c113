"""Every decision of the real vLLM 0.32 on recorded workloads, field by field, step by step: 150, and 60 with a window."""

from pathlib import Path

from phase3_paged_attention.sharing import WindowedBlockManager
from tests.phase4_scheduler.engine.recordings import Replay, equal_steps

HERE = Path(__file__).parent


class WindowedReplay(Replay):
    def make_manager(self):
        window, budget = self.config["sliding_window"], self.config["max_num_batched_tokens"]
        return WindowedBlockManager(*self.cache_sizes, sliding_window=window, max_new_tokens=budget)


def test_every_field_of_every_step_equals_vllm():
    found = equal_steps(HERE / "vllm_0_32_plain.jsonl.gz", Replay)
    steps = [step for _, own in found for step in own]
    assert (len(found), len(steps), sum(len(step["preempted"]) for step in steps)) == (150, 28309, 966)


def test_with_a_sliding_window_as_well():
    """Blocks leave early, prefix hits need only the last ones, and texts may be longer than the cache."""
    num_steps = preemptions = late_hits = longer = 0
    for recording, steps in equal_steps(HERE / "vllm_0_32_windows.jsonl.gz", WindowedReplay):
        c, seen = recording["config"], set()
        room = (c["num_blocks"] - 1) * c["block_size"]
        for step in steps:
            preemptions += len(step["preempted"])
            first = [blocks for name, blocks in step["blocks"].items() if name not in seen]
            # Only the end of its prefix was left, and needed.
            late_hits += sum(blocks[0] == 0 for blocks in first)
            seen |= step["blocks"].keys()
            longer += any(computed > room for computed in step["computed"].values())
        num_steps += len(steps)
    assert (num_steps, preemptions) == (4179, 52)
    assert late_hits > 0 and longer > 0, (late_hits, longer)
