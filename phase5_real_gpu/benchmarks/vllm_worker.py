"""Runs the real vLLM in its own process, and answers each line of JSON with a line of JSON. See vllm_process.py.

    python vllm_worker.py SETTINGS        SETTINGS: a JSON object of vLLM's engine arguments

It runs in vLLM's own environment, so it imports nothing of the course. The first line it writes says
{"ready": version}, or {"missing": "vllm"}. A question is one of

    {"do": "schedule", "requests": [{"id": 0, "arrival": 3, "prompt": [ids], "max_tokens": 9}, ...]}
    {"do": "generate", "prompts": [[ids], ...], "max_tokens": 40, "stop_token_ids": [0]}
    {"do": "time", "requests": [[prompt, tokens to write], ...]}
    {"do": "serve", "requests": [[second of arrival, prompt, tokens to write], ...]}
    {"do": "metrics"}
"""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from importlib import import_module
from typing import Any

# Python puts the script's folder first, and its modules could hide other modules of the same name.
if __name__ == "__main__":
    sys.path.pop(0)
QUIET = {
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def start(settings: dict[str, Any]) -> Any:
    """vLLM's `LLM`. "in_process": its scheduler then lives here, where it can be watched. "only_scheduler": no
    engine at all, only the configuration of a model.

    Arguments that this version of vLLM does not know are left out.
    """
    os.environ |= QUIET
    if settings.pop("in_process", False):
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if settings.pop("only_scheduler", False):
        from vllm.config import ModelConfig

        return ModelConfig(**settings)
    from vllm import LLM
    from vllm.engine.arg_utils import EngineArgs

    known = {f.name for f in fields(EngineArgs)}
    return LLM(**{name: value for name, value in settings.items() if name in known})


def greedy(max_tokens: int, **more: Any) -> Any:
    from vllm import SamplingParams

    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False, **more)


def complete(llm: Any, prompts: list[list[int]], params: Any) -> list[Any]:
    """The answer to each prompt."""
    outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
    return [output.outputs[0] for output in outputs]


def number(name: str) -> int:
    """Our number of a request: vLLM appends a random part to its name."""
    return int(name.split("-")[0])


def computed_before(output: Any) -> dict[str, int]:
    """By request of a step, the number of tokens that were computed before."""
    cached = output.scheduled_cached_reqs
    computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    return computed | {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}


def snapshot(step: int, scheduler: Any, output: Any) -> dict[str, Any]:
    """The scheduler's decision for a step, and its state after it."""
    computed = computed_before(output)
    names = list(output.num_scheduled_tokens)
    manager = scheduler.kv_cache_manager
    return {
        "step": step,
        "scheduled": [[number(name), output.num_scheduled_tokens[name]] for name in names],
        "computed": [computed[name] for name in names],
        "blocks": [list(manager.get_block_ids(name)[0]) for name in names],
        "preempted": sorted(number(name) for name in output.preempted_req_ids or ()),
        "running": [number(r.request_id) for r in scheduler.running],
        "waiting": [number(r.request_id) for r in scheduler.waiting],
        "free_blocks": manager.block_pool.get_num_free_blocks(),
    }


def schedule(llm: Any, requests: list[dict[str, Any]]) -> dict[str, Any]:
    """Serve requests that arrive before given steps; record each decision."""
    engine = llm.llm_engine
    scheduler = engine.engine_core.engine_core.scheduler
    decide_step, steps, step = scheduler.schedule, [], 0

    def watched(*args: Any, **kwargs: Any) -> Any:
        output = decide_step(*args, **kwargs)
        if output.num_scheduled_tokens:
            steps.append(snapshot(step, scheduler, output))
        return output

    scheduler.schedule = watched
    answers: dict[int, list[int]] = {}
    while len(answers) < len(requests):
        for r in requests:
            if r["arrival"] == step:
                engine.add_request(str(r["id"]), {"prompt_token_ids": r["prompt"]}, greedy(r["max_tokens"]))
        for output in engine.step():
            if output.finished:
                answers[number(output.request_id)] = list(output.outputs[0].token_ids)
        step += 1
    scheduler.schedule = decide_step
    return {"steps": steps, "answers": [answers[r["id"]] for r in requests]}


def generate(
    llm: Any, prompts: list[list[int]], max_tokens: int, stop_token_ids: list[int]
) -> dict[str, Any]:
    """Greedy answers."""
    found = complete(llm, prompts, greedy(max_tokens, stop_token_ids=stop_token_ids))
    return {"answers": [list(a.token_ids) for a in found]}


def timed(llm: Any, requests: list[list[Any]]) -> dict[str, Any]:
    """Seconds to serve requests that arrive together, with an empty prefix cache."""
    llm.reset_prefix_cache()
    params = [greedy(osl) for _, osl in requests]
    began = time.perf_counter()
    found = complete(llm, [prompt for prompt, _ in requests], params)
    return {"seconds": time.perf_counter() - began, "lengths": [len(a.token_ids) for a in found]}


def serve(llm: Any, requests: list[list[Any]]) -> dict[str, Any]:
    """Requests in real time: when each token came; and of each step its begin, and (tokens computed before, tokens
    computed now) of all in it."""
    llm.reset_prefix_cache()
    engine = llm.llm_engine
    scheduler = engine.engine_core.engine_core.scheduler
    decide_step, steps, sent = scheduler.schedule, [], 0
    token_times: list[list[float]] = [[] for _ in requests]
    start = time.perf_counter()

    def watched(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter() - start
        output = decide_step(*args, **kwargs)
        if output.num_scheduled_tokens:
            computed, now = computed_before(output), output.num_scheduled_tokens
            steps.append([began, [[computed[name], n] for name, n in now.items()]])
        return output

    scheduler.schedule = watched
    while sent < len(requests) or engine.has_unfinished_requests():
        while sent < len(requests) and requests[sent][0] <= time.perf_counter() - start:
            _, prompt, osl = requests[sent]
            engine.add_request(str(sent), {"prompt_token_ids": prompt}, greedy(osl))
            sent += 1
        if not engine.has_unfinished_requests():
            time.sleep(max(0.0, requests[sent][0] - (time.perf_counter() - start)))
            continue
        outputs = engine.step()
        now = time.perf_counter() - start
        for output in outputs:
            times = token_times[number(output.request_id)]
            times += [now] * (len(output.outputs[0].token_ids) - len(times))
    scheduler.schedule = decide_step
    return {"token_times": token_times, "steps": steps}


def metrics(llm: Any) -> dict[str, float]:
    """vLLM's own counts since its start; of a histogram the mean. It keeps them with disable_log_stats=False."""
    shown = ("num_preemptions", "prefix_cache_queries", "prefix_cache_hits", "time_to_first_token_seconds")
    found = {m.name.removeprefix("vllm:"): m for m in llm.get_metrics()}
    means = {n: m.sum / m.count for n, m in found.items() if getattr(m, "count", 0)}
    return {name: means.get(name, getattr(found[name], "value", 0.0)) for name in shown if name in found}


# ---------------------------------------------------------------------- the scheduler alone


def make_scheduler(model_config: Any, c: dict[str, Any]) -> tuple[Any, Any]:
    """vLLM's scheduler for one small attention layer, and what hashes a request's blocks (None: no caching).

    With a "sliding_window" in `c`, the layer has one; with "async_scheduling" it is vLLM's `AsyncScheduler`.
    """
    import torch
    from vllm.config import CacheConfig, SchedulerConfig, VllmConfig
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        SlidingWindowSpec,
    )
    from vllm.v1.structured_output import StructuredOutputManager

    size = c["block_size"]
    same = "max_num_seqs", "max_num_batched_tokens", "max_model_len", "long_prefill_token_threshold", "policy"
    scheduler_config = SchedulerConfig(
        **{name: c[name] for name in same},
        enable_chunked_prefill=c["chunked_prefill"],
        is_encoder_decoder=False,
    )
    cache_config = CacheConfig(block_size=size, enable_prefix_caching=c["prefix_caching"])
    cache_config.num_gpu_blocks = c["num_blocks"]
    config = VllmConfig(
        model_config=model_config, scheduler_config=scheduler_config, cache_config=cache_config
    )
    config.scheduler_config.max_num_batched_tokens = c["max_num_batched_tokens"]
    config.scheduler_config.async_scheduling = c.get("async_scheduling", False)  # on a CPU vLLM turns it off
    layer = dict(block_size=size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    window = c.get("sliding_window")
    spec = SlidingWindowSpec(sliding_window=window, **layer) if window else FullAttentionSpec(**layer)
    kv_config = KVCacheConfig(c["num_blocks"], [], [KVCacheGroupSpec(["layer"], spec)])
    kind = AsyncScheduler if c.get("async_scheduling") else Scheduler
    scheduler = kind(config, kv_config, StructuredOutputManager(config), block_size=size)
    init_none_hash(sha256)
    return scheduler, get_request_block_hasher(size, sha256) if c["prefix_caching"] else None


KNOWN = {"schedule": schedule, "generate": generate, "time": timed, "serve": serve, "metrics": metrics}


def answer_questions(package: str, start: Callable[[dict], Any], known: dict[str, Callable]) -> None:
    """Answer questions, one JSON line each, from stdin until it closes.

    Args:
        package: must be installed. start: makes the engine from its settings.
        known: functions by the name of a question, called with the engine and the question's other fields.
    """
    # Libraries print to stdout as they like; answers go through a channel of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**what: Any) -> None:
        print(json.dumps(what), file=answers, flush=True)

    try:
        module = import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        answer(missing=package)
        return
    engine = start(json.loads(sys.argv[1]))
    answer(ready=getattr(module, "__version__", ""))
    for line in sys.stdin:
        question = json.loads(line)
        answer(**known[question.pop("do")](engine, **question))


if __name__ == "__main__":
    answer_questions("vllm", start, KNOWN)
