"""The connector's worker side, called around each step."""

from typing import Any

from phase4_scheduler.assembly import Feature
from phase4_scheduler.engine.core import EngineCore, EngineCoreOutput, EngineCoreOutputs
from phase4_scheduler.engine.model_runner import Sampled
from phase4_scheduler.engine.request import Request
from phase4_scheduler.engine.scheduler import Scheduled, SchedulerOutput
from phase4_scheduler.features.kv_transfer.scheduler import KVTransferScheduler


class KVTransferCore(EngineCore):
    """Its scheduler is a `KVTransferScheduler`."""

    def execute(self, output: SchedulerOutput) -> list[Sampled]:
        self.scheduler.connector.start_load_kv(self.scheduler.metadata)
        return super().execute(output)

    def step(self) -> EngineCoreOutputs:
        step = super().step()
        connector = self.scheduler.connector
        sent, received = connector.get_finished()
        invalid = connector.get_block_ids_with_load_errors()
        with self.deciding:
            self.scheduler.update_connector(sent, received, invalid)
        return step

    def hand_out(self, s: Scheduled, result: Sampled, token_ids: list[int]) -> EngineCoreOutput:
        output = super().hand_out(s, result, token_ids)
        if s.request.finished:
            output.extras["kv_transfer_params"] = s.request.extras.get("kv_transfer_params")
        return output

    def num_external_tokens(self, request: Request) -> int:
        return request.extras.get("num_external_tokens", 0)


class KVTransfer(Feature):
    """Setting: `kv_connector`, a `KVConnector`; None: no other engine."""

    settings = {"kv_connector": None}
    refuses = {"Executors": "blocks are handed over by the process that holds the model"}
    scheduler, core = KVTransferScheduler, KVTransferCore

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.needs_whole_text = self.kv_connector is not None

    def arguments(self, part: str) -> dict[str, Any]:
        return {"kv_connector": self.kv_connector} if part == "scheduler" else {}
