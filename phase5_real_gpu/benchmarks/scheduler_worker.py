"""Drive a scheduler with a model that takes no time; answer with the seconds it took. See scheduler_benchmark.py.

    python scheduler_worker.py ours
    python scheduler_worker.py vllm CHECKPOINT      (vLLM wants a model's configuration, though none is run)

Both get the same requests in the same steps, and a "model" that answers a fixed token. Only `schedule` and
`update` (vLLM: `update_from_output`) are timed; adding a request is not.
"""

import json
import os
import sys
import time
from dataclasses import dataclass
from typing import Any

STOP = 7


@dataclass
class Run:
    """One workload: {"config": {...}, "requests": [...], "steps": most steps, "warm": steps that do not count}."""

    config: dict[str, Any]
    requests: list[dict[str, Any]]
    steps: int
    warm: int = 0


def answer(request: int, num_tokens: int, num_output: int, stop_after: int | None) -> int:
    return STOP if num_output == stop_after else (request * 7919 + num_tokens * 104729) % 5000 + 100


def run_ours(run: Run) -> tuple[float, int, int]:
    from phase2_attention_kvcache.model.sampling_params import SamplingParams
    from phase3_paged_attention.paging.block_manager import BlockManager
    from phase4_scheduler.engine.request import Request
    from phase4_scheduler.engine.scheduler import Scheduler, SchedulerConfig

    c = run.config
    scheduler = Scheduler(
        SchedulerConfig(
            max_num_seqs=c["max_num_seqs"], max_num_batched_tokens=c["max_num_batched_tokens"],
            max_model_len=c["max_model_len"], chunked_prefill=c["chunked_prefill"],
            long_prefill_token_threshold=c["long_prefill_token_threshold"], policy=c["policy"], admit_oversized=True,
        ),
        BlockManager(c["num_blocks"], c["block_size"], c["prefix_caching"]),
    )  # fmt: skip
    requests: dict[int, Request] = {}
    seconds, steps, tokens_computed = 0.0, 0, 0
    for step in range(run.steps):
        for r in run.requests:
            if r["arrival"] == step:
                params = SamplingParams(
                    temperature=0, max_tokens=r["max_tokens"], stop_token_ids=[STOP], ignore_eos=True
                )
                request = Request(str(r["id"]), r["prompt"], params, step + r["id"] * 1e-6, r["priority"])
                requests[r["id"]] = request
                scheduler.add(request)
            elif r.get("abort_at") == step and r["id"] in requests:
                scheduler.finish(requests[r["id"]], "abort")
        began = time.perf_counter()
        output = scheduler.schedule()
        spent = time.perf_counter() - began
        tokens: list[int | None] = []
        for s in output.scheduled:
            i, request = int(s.request.request_id), s.request
            token = answer(
                i,
                len(request.token_ids),
                len(request.output_token_ids) + 1,
                run.requests[i].get("stop_after"),
            )
            tokens.append(token if s.samples else None)
            tokens_computed += s.num_tokens
        began = time.perf_counter()
        scheduler.update(output, tokens)
        if step >= run.warm:
            seconds += spent + time.perf_counter() - began
            steps += 1
    return seconds, steps, tokens_computed


def run_vllm(run: Run) -> tuple[float, int, int]:
    import torch
    from vllm import SamplingParams
    from vllm.config import CacheConfig, SchedulerConfig, VllmConfig
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request, RequestStatus
    from vllm.v1.structured_output import StructuredOutputManager

    c = run.config
    scheduler_config = SchedulerConfig(
        max_num_seqs=c["max_num_seqs"], max_num_batched_tokens=c["max_num_batched_tokens"],
        max_model_len=c["max_model_len"], enable_chunked_prefill=c["chunked_prefill"],
        long_prefill_token_threshold=c["long_prefill_token_threshold"], policy=c["policy"],
        is_encoder_decoder=False,
    )  # fmt: skip
    cache_config = CacheConfig(block_size=c["block_size"], enable_prefix_caching=c["prefix_caching"])
    cache_config.num_gpu_blocks = c["num_blocks"]
    vllm_config = VllmConfig(
        model_config=MODEL_CONFIG, scheduler_config=scheduler_config, cache_config=cache_config
    )
    vllm_config.scheduler_config.max_num_batched_tokens = c["max_num_batched_tokens"]
    spec = FullAttentionSpec(block_size=c["block_size"], num_kv_heads=1, head_size=1, dtype=torch.float32)
    scheduler = Scheduler(
        vllm_config,
        KVCacheConfig(c["num_blocks"], [], [KVCacheGroupSpec(["layer"], spec)]),
        StructuredOutputManager(vllm_config),
        block_size=c["block_size"],
    )
    init_none_hash(sha256)
    hasher = get_request_block_hasher(c["block_size"], sha256) if c["prefix_caching"] else None
    requests: dict[int, Request] = {}
    seconds, steps, tokens_computed = 0.0, 0, 0
    for step in range(run.steps):
        for r in run.requests:
            if r["arrival"] == step:
                params = SamplingParams(
                    temperature=0, max_tokens=r["max_tokens"], stop_token_ids=[STOP], ignore_eos=True
                )
                requests[r["id"]] = Request(
                    str(r["id"]), r["prompt"], params, None, arrival_time=step + r["id"] * 1e-6,
                    priority=r["priority"], block_hasher=hasher,
                )  # fmt: skip
                scheduler.add_request(requests[r["id"]])
            elif r.get("abort_at") == step and r["id"] in requests:
                scheduler.finish_requests(str(r["id"]), RequestStatus.FINISHED_ABORTED)
        began = time.perf_counter()
        output = scheduler.schedule()
        spent = time.perf_counter() - began
        ids = list(output.num_scheduled_tokens)
        tokens_computed += sum(output.num_scheduled_tokens.values())
        sampled = []
        for name in ids:
            request = requests[int(name)]
            done = request.num_computed_tokens >= request.num_tokens
            token = answer(
                int(name), request.num_tokens, request.num_output_tokens + 1,
                run.requests[int(name)].get("stop_after"),
            )  # fmt: skip
            sampled.append([token] if done else [])
        result = ModelRunnerOutput(ids, {name: i for i, name in enumerate(ids)}, sampled)
        began = time.perf_counter()
        scheduler.update_from_output(output, result)
        if step >= run.warm:
            seconds += spent + time.perf_counter() - began
            steps += 1
    return seconds, steps, tokens_computed


def main() -> None:
    engine = sys.argv[1]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if engine == "vllm":
        global MODEL_CONFIG
        os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        from vllm.config import ModelConfig

        MODEL_CONFIG = ModelConfig(
            model=sys.argv[2], skip_tokenizer_init=True, dtype="float32", max_model_len=1024
        )
    print(json.dumps({"ready": engine}), file=answers, flush=True)
    for line in sys.stdin:
        run = Run(**json.loads(line))
        seconds, steps, tokens = (run_ours if engine == "ours" else run_vllm)(run)
        print(json.dumps({"seconds": seconds, "steps": steps, "tokens": tokens}), file=answers, flush=True)


if __name__ == "__main__":
    main()
