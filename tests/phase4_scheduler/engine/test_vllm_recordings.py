"""Every decision of the real vLLM 0.32 on recorded workloads, field by field, step by step: 150, and 60 with a window."""

from pathlib import Path

from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase3_paged_attention.paging.block_manager import BlockManager
from phase3_paged_attention.sharing import WindowedBlockManager
from phase4_scheduler.engine import Request, SchedulerConfig
from tests.phase4_scheduler.engine.recordings import TakesAnything, check_end, read_recordings

HERE = Path(__file__).parent

STOP = 7


def model_token(request: int, num_tokens: int, num_output: int, stop_after: int | None) -> int:
    """The token that the recording's "model" answers."""
    if stop_after is not None and num_output == stop_after:
        return STOP
    return (request * 7919 + num_tokens * 104729) % 5000 + 100


def replay(recording):
    """Yield (recorded step, our step) for each step of a workload; then check that nothing leaked."""
    c = recording["config"]
    sizes, window = (c["num_blocks"], c["block_size"], c["prefix_caching"]), c.get("sliding_window")
    manager = BlockManager(*sizes)
    if window is not None:
        budget = c["max_num_batched_tokens"]
        manager = WindowedBlockManager(*sizes, sliding_window=window, max_new_tokens=budget)
    fields = {name: c[name] for name in c.keys() & SchedulerConfig.__dataclass_fields__.keys()}
    assert len(fields) == 6
    scheduler = TakesAnything(SchedulerConfig(**fields), manager)
    wanted = {r["id"]: r for r in recording["requests"]}
    requests = {}
    for theirs in recording["steps"]:
        step = theirs["step"]
        for r in wanted.values():
            if r["arrival"] == step:
                requests[r["id"]] = Request(
                    str(r["id"]),
                    r["prompt"],
                    SamplingParams(temperature=0, max_tokens=r["max_tokens"], stop_token_ids=[STOP]),
                    arrival_time=step + r["id"] * 1e-6,
                    priority=r["priority"],
                )
                scheduler.add(requests[r["id"]])
        aborted = [
            i
            for i, r in wanted.items()
            if r.get("abort_at") == step and i in requests and not requests[i].finished
        ]
        for i in aborted:
            scheduler.finish(requests[i], "abort")
        output = scheduler.schedule()
        ours = {
            "step": step,
            "aborted": aborted,
            "scheduled": [[int(s.request.request_id), s.num_tokens] for s in output.scheduled],
            "preempted": sorted(int(r.request_id) for r in output.preempted),
            "computed": {s.request.request_id: s.num_computed for s in output.scheduled},
            "blocks": {s.request.request_id: list(s.request.block_table.block_ids) for s in output.scheduled},
            "running": [int(r.request_id) for r in scheduler.running],
            "waiting": [int(r.request_id) for r in scheduler.waiting],
            "free_blocks": manager.num_free_blocks,
        }
        tokens = []
        for s in output.scheduled:
            i, request = int(s.request.request_id), s.request
            num_output = len(request.output_token_ids) + 1
            token = model_token(i, len(request.token_ids), num_output, wanted[i].get("stop_after"))
            tokens.append([token] if s.samples else [])
        ours["finished"] = sorted(int(r.request_id) for r in scheduler.update(output, tokens))
        assert output.num_batched_tokens <= c["max_num_batched_tokens"]
        yield theirs, ours
    check_end(recording, requests, manager)


def test_every_field_of_every_step_equals_vllm():
    recordings = read_recordings(HERE / "vllm_0_32_plain.jsonl.gz")
    steps = preemptions = 0
    for recording in recordings:
        for theirs, ours in replay(recording):
            theirs = {**theirs, "finished": sorted(theirs["finished"])}
            stuck = theirs.pop("stuck", False)
            assert ours == theirs, f"workload {recording['seed']}, step {theirs['step']}"
            assert not stuck or not ours["scheduled"]
            steps += 1
            preemptions += len(ours["preempted"])
    assert (len(recordings), steps, preemptions) == (150, 28309, 966)


def test_with_a_sliding_window_as_well():
    """Blocks leave early, prefix hits need only the last ones, and texts may be longer than the cache."""
    steps = preemptions = late_hits = longer = 0
    for recording in read_recordings(HERE / "vllm_0_32_windows.jsonl.gz"):
        c = recording["config"]
        room = (c["num_blocks"] - 1) * c["block_size"]
        seen = set()
        for theirs, ours in replay(recording):
            assert ours == theirs, f"workload {recording['seed']}, step {theirs['step']}"
            steps += 1
            preemptions += len(ours["preempted"])
            first = [blocks for name, blocks in ours["blocks"].items() if name not in seen]
            late_hits += sum(
                blocks[0] == 0 for blocks in first
            )  # of its prefix only the end was left, and needed
            seen |= ours["blocks"].keys()
            longer += any(computed > room for computed in ours["computed"].values())
    assert (steps, preemptions) == (4179, 52)
    assert late_hits > 0 and longer > 0, (late_hits, longer)
