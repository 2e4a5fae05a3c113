"""Lets the real vLLM 0.32 decide once more what it does while blocks are on their way from another engine.

    HF_HUB_OFFLINE=1 VLLM_PYTHON -m tests.phase4_scheduler.features.kv_transfer.record_decisions MODEL_FOLDER

The scheduler gets a connector that answers by a script; that of each request is part of the recording, which
`vllm_0_32_connector.md` describes.
"""

from pathlib import Path
from typing import ClassVar

from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import RequestStatus

from tests.phase4_scheduler.engine.record_decisions import Recorder, record_again
from tests.phase4_scheduler.features.kv_transfer.connector_script import ConnectorScript, prompt_of

MODULE = "tests.phase4_scheduler.features.kv_transfer.record_decisions"  # as vLLM imports it


class ScriptedConnector(KVConnectorBase_V1):
    """Both sides in one: a `ConnectorScript` as vLLM calls it."""

    requests: ClassVar[list[dict]] = []  # of the workload that is being recorded

    def __init__(self, config, role, kv_cache_config):
        super().__init__(config, role, kv_cache_config)
        self.script, self.block_size = ConnectorScript(self.requests), config.cache_config.block_size

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return self.script.matched(request.request_id, request.num_tokens, num_computed_tokens)

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        ids = list(blocks.get_block_ids()[0])
        self.script.allocated(request.request_id, ids, num_external_tokens, self.block_size)

    def build_connector_meta(self, scheduler_output):
        return KVConnectorMetadata()

    def request_finished(self, request, block_ids):
        completed = request.status == RequestStatus.FINISHED_LENGTH_CAPPED
        return self.script.finished(request.request_id, block_ids, completed), None

    def start_load_kv(self, forward_context, **kwargs): ...
    def wait_for_layer_load(self, layer_name): ...
    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs): ...
    def wait_for_save(self): ...


class ConnectorRecorder(Recorder):
    prompt = staticmethod(prompt_of)
    goes_on = property(lambda self: bool(self.scheduler.requests))

    def __init__(self, model_config, workload):
        ScriptedConnector.requests, self.known = workload["requests"], {}
        transfer = KVTransferConfig(
            kv_connector="ScriptedConnector", kv_connector_module_path=MODULE, kv_role="kv_both",
            kv_load_failure_policy="recompute",
        )  # fmt: skip
        super().__init__(model_config, workload, transfer)

    def decided(self, number, output):
        manager, seen = self.scheduler.kv_cache_manager, super().decided(number, output)
        held = manager.coordinator.single_type_managers[0].req_to_blocks
        blocks = {name: manager.get_block_ids(name)[0] for name in self.scheduler.requests if name in held}
        changed = {name: ids for name, ids in blocks.items() if ids != self.known.get(name)}
        self.known = blocks
        return seen | dict(
            blocks=changed, holding=[int(r.request_id) for r in self.scheduler.kv_holding_waiting]
        )

    def run_model(self, output):
        self.report = sent, received, invalid = self.scheduler.connector.script.step()
        moved = KVConnectorOutput(finished_sending=sent, finished_recving=received, invalid_block_ids=invalid)
        return super().run_model(output, kv_connector_output=moved)

    def step(self, number):
        seen, script = super().step(number), self.scheduler.connector.script
        (sent, received, invalid), calls, script.calls = self.report, script.calls, []
        free = self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        moved = dict(sent=list(map(int, sent)), received=list(map(int, received)), invalid=sorted(invalid))
        return seen | moved | dict(calls=calls, free_after=free)


if __name__ == "__main__":
    # As vLLM imports it, not as the main program.
    from tests.phase4_scheduler.features.kv_transfer import record_decisions

    path = Path(__file__).with_name("vllm_0_32_connector.jsonl.gz")
    record_again(path, record_decisions.ConnectorRecorder)
