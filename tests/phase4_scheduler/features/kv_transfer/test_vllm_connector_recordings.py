"""Every decision of the real vLLM 0.32 while blocks are on their way, on 60 recorded workloads, field by field."""

from pathlib import Path

from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase3_paged_attention.paging.block_manager import BlockManager
from phase4_scheduler.engine import Request, SchedulerConfig
from phase4_scheduler.features.kv_transfer import KVConnector, KVConnectorOutput, KVTransferScheduler
from tests.phase4_scheduler.engine.recordings import TakesAnything, read_recordings
from tests.phase4_scheduler.features.kv_transfer.connector_script import (
    ConnectorScript,
    model_token,
    prompt_of,
)


class Replayed(TakesAnything, KVTransferScheduler):
    pass


class ScriptedConnector(KVConnector):
    """A `ConnectorScript` as the course's scheduler wants it."""

    def __init__(self, requests, block_size):
        self.script, self.block_size = ConnectorScript(requests), block_size

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return self.script.matched(request.request_id, request.num_tokens, num_computed_tokens)

    def update_state_after_alloc(self, request, block_ids, num_external_tokens):
        self.script.allocated(request.request_id, list(block_ids), num_external_tokens, self.block_size)

    def request_finished(self, request, block_ids):
        return self.script.finished(
            request.request_id, list(block_ids), request.finish_reason == "length"
        ), None


def replay(recording):
    """Yield (recorded step, our step) for each step of a workload; then check that nothing leaked."""
    c, wanted = recording["config"], recording["requests"]
    manager = BlockManager(c["num_blocks"], c["block_size"], c["prefix_caching"])
    fields = {name: c[name] for name in c.keys() & SchedulerConfig.__dataclass_fields__.keys()}
    assert len(fields) == 6
    connector = ScriptedConnector(wanted, c["block_size"])
    script = connector.script
    scheduler = Replayed(SchedulerConfig(**fields), manager, kv_connector=connector)
    requests, known = {}, {}
    for theirs in recording["steps"]:
        step = theirs["step"]
        for r in wanted:
            if r["arrival"] == step:
                params = SamplingParams(temperature=0, max_tokens=r["max_tokens"], ignore_eos=True)
                arrived = step + r["id"] * 1e-6
                requests[r["id"]] = Request(str(r["id"]), prompt_of(r), params, arrived, r["priority"])
                scheduler.add(requests[r["id"]])
        aborted = [
            r["id"]
            for r in wanted
            if r["abort_at"] == step and r["id"] in requests and not requests[r["id"]].finished
        ]
        for i in aborted:
            scheduler.finish(requests[i], "abort")
        output = scheduler.schedule()
        scheduled = {s.request.request_id: s for s in output.scheduled}
        blocks = {str(i): list(r.block_table.block_ids) for i, r in requests.items() if r.block_table.blocks}
        ours = {
            "step": step,
            "aborted": aborted,
            "scheduled": [[int(name), s.num_tokens] for name, s in scheduled.items()],
            "preempted": sorted(int(r.request_id) for r in output.preempted),
            "computed": {name: s.num_computed for name, s in scheduled.items()},
            "blocks": {name: ids for name, ids in blocks.items() if ids != known.get(name)},
            "running": [int(r.request_id) for r in scheduler.running],
            "waiting": [int(r.request_id) for r in scheduler.waiting],
            "holding": [int(r.request_id) for r in scheduler.holding],
            "free_blocks": manager.num_free_blocks,
        }
        known = blocks
        sent, received, invalid = script.step()
        tokens = [
            [model_token(int(name), s.request.num_tokens)] if s.samples else []
            for name, s in scheduled.items()
        ]
        finished = scheduler.update(output, tokens)
        scheduler.update_connector(KVConnectorOutput(sent, received, invalid))
        ours["finished"] = sorted(int(r.request_id) for r in finished)
        ours["sent"], ours["received"] = list(map(int, sent)), list(map(int, received))
        ours["invalid"] = sorted(invalid)
        ours["calls"], script.calls = script.calls, []
        ours["free_after"] = manager.num_free_blocks
        yield theirs, ours
    manager.check_integrity()
    if not recording["steps"][-1].get("stuck"):
        assert not scheduler.has_requests and manager.num_free_blocks == c["num_blocks"] - 1


def test_every_field_of_every_step_equals_vllm():
    recordings = read_recordings(Path(__file__).parent / "vllm_0_32_connector.jsonl.gz")
    steps = [theirs for recording in recordings for theirs in recording["steps"]]
    for recording in recordings:
        for theirs, ours in replay(recording):
            theirs = {name: value for name, value in theirs.items() if name != "stuck"}
            assert ours == theirs, f"workload {recording['seed']}, step {theirs['step']}"
    assert len(recordings) == 60
    # The recording holds what is to be compared: loads, loads that fail, blocks kept after the end, preemptions.
    assert sum(len(s["received"]) for s in steps) > 300 and sum(bool(s["invalid"]) for s in steps) > 30
    assert sum(len(s["sent"]) for s in steps) > 150 and sum(len(s["preempted"]) for s in steps) > 100
