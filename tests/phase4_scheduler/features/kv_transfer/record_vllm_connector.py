"""Record what the real vLLM 0.32 scheduler decides while blocks are on their way from another engine.

    HF_HUB_OFFLINE=1 VLLM_ENV/bin/python -m tests.phase4_scheduler.features.kv_transfer.record_vllm_connector

No model runs. The scheduler gets random workloads and a connector that answers by a script, `ScriptedConnector`; the
script of each request is part of the recording. What is written is described in `vllm_0_32_connector.md`.
"""

import gzip
import json
import random
from pathlib import Path
from typing import ClassVar

from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from phase5_real_gpu.benchmarks import vllm_worker
from tests.phase4_scheduler.features.kv_transfer.connector_script import (
    ConnectorScript,
    model_token,
    prompt_of,
)

HERE = Path(__file__).parent
NUM_WORKLOADS = 60
MOST_STEPS = 400


class ScriptedConnector(KVConnectorBase_V1):
    """Both sides in one: a `ConnectorScript` as vLLM wants it."""

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


def workload(seed):
    rng = random.Random(seed)
    block_size = rng.choice([2, 4, 8])
    config = {
        "block_size": block_size,
        "num_blocks": rng.choice([14, 24, 40, 80]),
        "max_num_batched_tokens": rng.choice([8, 16, 32, 64]),
        "max_num_seqs": rng.choice([2, 4, 8]),
        "max_model_len": 256,
        "long_prefill_token_threshold": rng.choice([0, 0, 6]),
        "prefix_caching": rng.random() < 0.8,
        "chunked_prefill": True,
        "policy": rng.choice(["fcfs", "fcfs", "priority"]),
    }
    longest = (config["num_blocks"] - 1) * block_size
    requests = []
    for i in range(rng.randrange(8, 20)):
        length = rng.randrange(2, max(4, min(60, longest // 2)))
        shared = [rng.randrange(3), rng.randrange(length + 1) if rng.random() < 0.6 else 0]
        remote = 0 if rng.random() < 0.25 else rng.choice([length, length, rng.randrange(length + 1)])
        blocks = -(-length // block_size)
        requests.append({
            "id": i, "arrival": rng.randrange(30), "length": length, "shared": shared,
            "max_tokens": rng.randrange(1, max(2, min(24, longest - length))), "priority": rng.randrange(3),
            "abort_at": rng.randrange(1, 50) if rng.random() < 0.2 else None,
            "remote": remote, "sync": rng.random() < 0.2,
            "undecided": rng.choice([0, 0, 0, 1, 3]), "load_steps": rng.randrange(1, 6),
            "failed_blocks": sorted({rng.randrange(blocks) for _ in range(2)}) if rng.random() < 0.2 else [],
            "send_steps": rng.choice([0, 0, 0, 2, 5]),
        })  # fmt: skip
    for r in requests:
        if r["sync"]:
            r["failed_blocks"] = []
    requests.sort(key=lambda r: (r["arrival"], r["id"]))
    return config, requests


def make_scheduler(model_config, c):
    transfer = KVTransferConfig(
        kv_connector="ScriptedConnector", kv_connector_module_path="tests.phase4_scheduler.features.kv_transfer.record_vllm_connector",
        kv_role="kv_both", kv_load_failure_policy="recompute",
    )  # fmt: skip
    scheduler, hasher = vllm_worker.make_scheduler(model_config, c, transfer)
    assert scheduler.scheduler_reserve_full_isl and not scheduler.defer_block_free
    assert scheduler.max_num_scheduled_tokens == c["max_num_batched_tokens"]
    return scheduler, hasher


def record(model_config, seed):
    # As vLLM imports it, not as the main program.
    from tests.phase4_scheduler.features.kv_transfer import record_vllm_connector

    config, wanted = workload(seed)
    record_vllm_connector.ScriptedConnector.requests = wanted
    scheduler, hasher = make_scheduler(model_config, config)
    script, manager = scheduler.connector.script, scheduler.kv_cache_manager
    steps, requests, known = [], {}, {}
    while len(steps) < MOST_STEPS and (len(requests) < len(wanted) or scheduler.requests):
        for r in wanted:
            if r["arrival"] == len(steps):
                params = vllm_worker.greedy(r["max_tokens"])
                requests[r["id"]] = Request(
                    request_id=str(r["id"]), prompt_token_ids=prompt_of(r), sampling_params=params,
                    pooling_params=None, arrival_time=len(steps) + r["id"] * 1e-6, priority=r["priority"],
                    block_hasher=hasher,
                )  # fmt: skip
                scheduler.add_request(requests[r["id"]])
        alive = [i for i, r in requests.items() if not r.is_finished()]
        aborted = [r["id"] for r in wanted if r["abort_at"] == len(steps) and r["id"] in alive]
        for i in aborted:
            scheduler.finish_requests(str(i), RequestStatus.FINISHED_ABORTED)
        output = scheduler.schedule()
        now = vllm_worker.snapshot(len(steps), scheduler, output) | {"aborted": aborted}
        order = list(output.num_scheduled_tokens)
        now["computed"] = dict(zip(order, now["computed"]))
        held = manager.coordinator.single_type_managers[0].req_to_blocks
        blocks = {name: manager.get_block_ids(name)[0] for name in scheduler.requests if name in held}
        now["blocks"] = {name: ids for name, ids in blocks.items() if ids != known.get(name)}
        now["holding"] = [int(r.request_id) for r in scheduler.kv_holding_waiting]
        known = blocks
        sent, received, invalid = script.step()
        full = {i: r.num_tokens for i, r in requests.items() if r.num_computed_tokens == r.num_tokens}
        sampled = [[model_token(int(name), full[int(name)])] if int(name) in full else [] for name in order]
        alive = [i for i, r in requests.items() if not r.is_finished()]
        scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=order,
                req_id_to_index={name: i for i, name in enumerate(order)},
                sampled_token_ids=sampled,
                kv_connector_output=KVConnectorOutput(
                    finished_sending=sent, finished_recving=received, invalid_block_ids=invalid
                ),
            ),
        )
        now["finished"] = sorted(i for i in alive if requests[i].is_finished())
        now["sent"], now["received"] = list(map(int, sent)), list(map(int, received))
        now["invalid"] = sorted(invalid)
        now["calls"], script.calls = script.calls, []
        now["free_after"] = manager.block_pool.get_num_free_blocks()
        steps.append(now)
    if len(requests) < len(wanted) or scheduler.requests:
        steps[-1]["stuck"] = True
    return {"seed": seed, "config": config, "requests": wanted, "steps": steps}


if __name__ == "__main__":
    settings = dict(only_scheduler=True, model="labkit/models/tales", skip_tokenizer_init=True)
    model_config = vllm_worker.start(settings)
    with gzip.GzipFile(HERE / "vllm_0_32_connector.jsonl.gz", "wb", mtime=0) as file:
        for seed in range(NUM_WORKLOADS):
            file.write((json.dumps(record(model_config, seed), separators=(",", ":")) + "\n").encode())
