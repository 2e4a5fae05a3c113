"""Every decision of the real vLLM 0.32 while blocks are on their way, on 60 recorded workloads, field by field."""

from pathlib import Path

from phase4_scheduler.features.kv_transfer import KVConnector, KVTransferScheduler
from tests.phase4_scheduler.engine.recordings import Replay, TakesAnything, equal_steps


class Replayed(TakesAnything, KVTransferScheduler):
    pass


class ScriptedConnector(KVConnector):
    """Moves nothing and answers by a script, as its counterpart did in vLLM.

    The script of a request: `remote` (tokens of its prompt that the other engine has), `sync` (they come within the step),
    `undecided` (how often it does not know yet), `load_steps` (how long loading takes), `failed_blocks` (which of the loaded
    blocks do not come, the first time), `send_steps` (how long its blocks are read after its end; 0: not at all).
    """

    def __init__(self, requests, block_size):
        self.script, self.block_size = {str(r["id"]): dict(r) for r in requests}, block_size
        self.calls = []  # of this step
        self._local, self._loading, self._sending = {}, {}, {}  # loading: steps to go, blocks that are loaded

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        name, answer = request.request_id, (None, False)
        s = self.script[name]
        if s["undecided"] > 0:
            s["undecided"] -= 1
        else:  # what comes within the step leaves a token to compute
            n = max(0, min(s["remote"], request.num_tokens - s["sync"]) - num_computed_tokens)
            answer = n, n > 0 and not s["sync"]
        self._local[name] = num_computed_tokens
        self.calls.append(["matched", int(name), num_computed_tokens, answer[0]])
        return answer

    def update_state_after_alloc(self, request, block_ids, num_external_tokens):
        name, block_ids = request.request_id, list(block_ids)
        self.calls.append(["alloc", int(name), block_ids, num_external_tokens])
        s = self.script[name]
        if num_external_tokens and not s["sync"]:
            self._loading[name] = [s["load_steps"], block_ids[self._local[name] // self.block_size :]]

    def request_finished(self, request, block_ids):
        name = request.request_id
        self.calls.append(["finished", int(name), list(block_ids)])
        steps = self.script[name]["send_steps"] if request.finish_reason == "length" else 0
        if steps:
            self._sending[name] = steps
        return bool(steps), None

    def report(self):
        """What the worker side reports after a step: (sent, received, invalid blocks)."""
        sent, received, invalid = [], [], set()
        for name in sorted(self._loading, key=int):
            self._loading[name][0] -= 1
            if self._loading[name][0] <= 0:
                block_ids = self._loading.pop(name)[1]
                received.append(name)
                s = self.script[name]
                invalid |= {block_ids[i] for i in s["failed_blocks"] if i < len(block_ids)}
                s["failed_blocks"] = []
        for name in sorted(self._sending, key=int):
            self._sending[name] -= 1
            if self._sending[name] <= 0:
                del self._sending[name]
                sent.append(name)
        return sent, received, invalid


class ConnectorReplay(Replay):
    def prompt(self, r):
        """The first tokens are those of a group, the others the request's own."""
        group, shared = r["shared"]
        return [
            (group * 31 + i * 7) % 97 + 100 if i < shared else r["id"] * 211 + i + 1000
            for i in range(r["length"])
        ]

    def make_scheduler(self, config):
        self.connector = ScriptedConnector(self.recording["requests"], self.config["block_size"])
        self.known = {}
        return Replayed(config, self.manager, kv_connector=self.connector)

    def decided(self, scheduled):
        tables = {str(i): r.block_table for i, r in self.requests.items()}
        blocks = {name: list(table.block_ids) for name, table in tables.items() if table.blocks}
        changed = {name: ids for name, ids in blocks.items() if ids != self.known.get(name)}
        self.known, self.report = blocks, self.connector.report()
        return {"blocks": changed, "holding": [int(r.request_id) for r in self.scheduler.holding]}

    def updated(self, scheduled, sampled):
        sent, received, invalid = self.report
        self.scheduler.update_connector(sent, received, invalid)
        calls, self.connector.calls = self.connector.calls, []
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
