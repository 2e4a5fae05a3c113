"""Every decision of the real vLLM 0.32 with speculative decoding on 120 recorded workloads, field by field, step by step."""

from pathlib import Path

from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase3_paged_attention.paging.block_manager import BlockManager
from phase4_scheduler.engine import Request, SchedulerConfig
from phase4_scheduler.features.speculation import SpeculativeConfig, SpeculativeScheduler
from phase4_scheduler.features.speculation.proposers import Drafts
from tests.phase4_scheduler.engine.recordings import TakesAnything, check_end, read_recordings

STOP = 7


class Replayed(TakesAnything, SpeculativeScheduler):
    pass


def replay(recording):
    """Yield (recorded step, our step) for each step of a workload; then check that nothing leaked."""
    c = recording["config"]
    manager = BlockManager(c["num_blocks"], c["block_size"], c["prefix_caching"])
    fields = {name: c[name] for name in c.keys() & SchedulerConfig.__dataclass_fields__.keys()}
    assert len(fields) == 6
    most = c["num_speculative_tokens"]
    model = "tales-draft" if c["method"] == "draft_model" else None
    speculation = SpeculativeConfig(most, c["method"], model=model)
    assert speculation.num_draft_slots == c["draft_slots"] == (c["lookahead"] > 0)
    scheduler = Replayed(SchedulerConfig(**fields), manager, speculative_config=speculation)
    wanted = {r["id"]: r for r in recording["requests"]}
    requests = {}

    def true_token(i, place):
        num_output = place - len(wanted[i]["prompt"]) + 1
        return STOP if wanted[i].get("stop_after") == num_output else (i * 7919 + place * 104729) % 5000 + 100

    def propose(i, held):
        """What the recording's drafter says: so many right tokens, then wrong ones."""
        count = most if c["method"] == "draft_model" else (i * 31 + held * 17) % (most + 1)
        right = (i * 13 + held * 7) % (most + 2)
        return [true_token(i, held + j) + (j >= right) for j in range(count)]

    for theirs in recording["steps"]:
        step = theirs["step"]
        for r in wanted.values():
            if r["arrival"] == step:
                params = SamplingParams(temperature=0, max_tokens=r["max_tokens"], stop_token_ids=[STOP])
                arrived = step + r["id"] * 1e-6
                requests[r["id"]] = Request(str(r["id"]), r["prompt"], params, arrived, r["priority"])
                scheduler.add(requests[r["id"]])
        aborted = [
            i
            for i, r in wanted.items()
            if r.get("abort_at") == step and i in requests and not requests[i].finished
        ]
        for i in aborted:
            scheduler.finish(requests[i], "abort")
        output = scheduler.schedule()
        names = {s.request.request_id: s for s in output.scheduled}
        ours = {
            "step": step,
            "aborted": aborted,
            "scheduled": [[int(name), s.num_tokens] for name, s in names.items()],
            "spec": {name: s.drafts.token_ids for name, s in names.items() if s.drafts.token_ids},
            "preempted": sorted(int(r.request_id) for r in output.preempted),
            "computed": {name: s.num_computed for name, s in names.items()},
            "blocks": {name: list(s.request.block_table.block_ids) for name, s in names.items()},
            "running": [int(r.request_id) for r in scheduler.running],
            "waiting": [int(r.request_id) for r in scheduler.waiting],
            "free_blocks": manager.num_free_blocks,
        }
        sampled = {}
        for name, s in names.items():
            if s.samples:
                i, held = int(name), s.request.num_tokens
                sampled[name] = [true_token(i, held)]
                for draft in s.drafts.token_ids:
                    if draft != sampled[name][-1]:
                        break
                    sampled[name].append(true_token(i, held + len(sampled[name])))
        ours["sampled"] = {name: len(tokens) for name, tokens in sampled.items()}
        finished = scheduler.update(output, [sampled.get(name, []) for name in names])
        ours["finished"] = sorted(int(r.request_id) for r in finished)
        alive = {name: s.request for name, s in names.items() if not s.request.finished}
        ours["after"] = {name: [r.num_computed_tokens, r.num_tokens] for name, r in alive.items()}
        for name in alive.keys() & sampled.keys():
            scheduler.drafts[alive[name]] = Drafts(propose(int(name), alive[name].num_tokens))
        assert output.num_batched_tokens <= c["max_num_batched_tokens"]
        yield theirs, ours
    check_end(recording, requests, manager)


def test_every_field_of_every_step_equals_vllm():
    recordings = read_recordings(Path(__file__).parent / "vllm_0_32_speculative.jsonl.gz")
    steps = drafts = preemptions = 0
    for recording in recordings:
        for theirs, ours in replay(recording):
            theirs = {**theirs, "finished": sorted(theirs["finished"])}
            stuck = theirs.pop("stuck", False)
            assert ours == theirs, f"workload {recording['seed']}, step {theirs['step']}"
            assert not stuck or not ours["scheduled"]
            steps += 1
            preemptions += len(ours["preempted"])
            drafts += sum(map(len, ours["spec"].values()))
    assert (len(recordings), steps, drafts, preemptions) == (120, 15016, 38475, 796)
