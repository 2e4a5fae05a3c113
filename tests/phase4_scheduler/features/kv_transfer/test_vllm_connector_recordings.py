"""Every decision of the real vLLM 0.32 while blocks are on their way, on 60 recorded workloads, field by field."""

from pathlib import Path

from phase4_scheduler.features.kv_transfer import KVConnector, KVTransferScheduler
from tests.phase4_scheduler.engine.recordings import Replay, TakesAnything, equal_steps
from tests.phase4_scheduler.features.kv_transfer.connector_script import ConnectorScript, prompt_of


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
        done = request.finish_reason == "length"
        return self.script.finished(request.request_id, list(block_ids), done), None


class ConnectorReplay(Replay):
    prompt = staticmethod(prompt_of)

    def make_scheduler(self, config):
        connector = ScriptedConnector(self.recording["requests"], self.config["block_size"])
        self.script, self.known = connector.script, {}
        return Replayed(config, self.manager, kv_connector=connector)

    def decided(self, scheduled):
        tables = {str(i): r.block_table for i, r in self.requests.items()}
        blocks = {name: list(table.block_ids) for name, table in tables.items() if table.blocks}
        changed = {name: ids for name, ids in blocks.items() if ids != self.known.get(name)}
        self.known, self.report = blocks, self.script.step()
        return {"blocks": changed, "holding": [int(r.request_id) for r in self.scheduler.holding]}

    def updated(self, scheduled, sampled):
        sent, received, invalid = self.report
        self.scheduler.update_connector(sent, received, invalid)
        calls, self.script.calls = self.script.calls, []
        return {
            "sent": list(map(int, sent)), "received": list(map(int, received)), "invalid": sorted(invalid),
            "calls": calls, "free_after": self.manager.num_free_blocks,
        }  # fmt: skip


def test_every_field_of_every_step_equals_vllm():
    found = equal_steps(Path(__file__).parent / "vllm_0_32_connector.jsonl.gz", ConnectorReplay)
    assert len(found) == 60
    # The recording holds what is to be compared: loads, loads that fail, blocks kept after the end, preemptions.
    steps = [step for _, own in found for step in own]
    assert sum(len(s["received"]) for s in steps) > 300 and sum(bool(s["invalid"]) for s in steps) > 30
    assert sum(len(s["sent"]) for s in steps) > 150 and sum(len(s["preempted"]) for s in steps) > 100
