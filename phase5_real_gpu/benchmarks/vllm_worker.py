"""The real vLLM in a process of its own: answers a line of JSON to each line it is given. See vllm_comparison.py.

    python vllm_worker.py SETTINGS        SETTINGS: a JSON object of vLLM's engine arguments

It may run in another environment than the course's, so it imports nothing of the course. The first line it
writes says {"ready": version}, or {"missing": "vllm"}. A question is one of

    {"do": "schedule", "requests": [{"id": 0, "arrival": 3, "prompt": [ids], "max_tokens": 9}, ...]}
    {"do": "generate", "prompts": [[ids], ...], "max_tokens": 40, "stop_token_ids": [0]}
    {"do": "time", "requests": [[prompt, tokens to write], ...]}
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import fields
from typing import Any

# Python puts the script's folder first, where this phase's modules could hide others of the same name.
if __name__ == "__main__":
    sys.path.pop(0)


def start(settings: dict[str, Any]) -> Any:
    """vLLM's `LLM`. "in_process": its scheduler then lives here, where it can be watched.

    Arguments that this version of vLLM does not know are left out.
    """
    quiet = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", **quiet}
    if settings.pop("in_process", False):
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM
    from vllm.engine.arg_utils import EngineArgs

    known = {f.name for f in fields(EngineArgs)}
    return LLM(**{name: value for name, value in settings.items() if name in known})


def number(name: str) -> int:
    """Our number of a request: vLLM adds a random part to the name that it was given."""
    return int(name.split("-")[0])


def snapshot(step: int, scheduler: Any, output: Any) -> dict[str, Any]:
    """What a step was decided to be, and the books right after that."""
    cached = output.scheduled_cached_reqs
    computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    computed |= {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
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
    from vllm import SamplingParams

    engine = llm.llm_engine
    scheduler = engine.engine_core.engine_core.scheduler
    decide, steps, step = scheduler.schedule, [], 0

    def watched(*args: Any, **kwargs: Any) -> Any:
        output = decide(*args, **kwargs)
        if output.num_scheduled_tokens:
            steps.append(snapshot(step, scheduler, output))
        return output

    scheduler.schedule = watched
    answers: dict[int, list[int]] = {}
    while len(answers) < len(requests):
        for r in requests:
            if r["arrival"] == step:
                params = SamplingParams(
                    temperature=0, max_tokens=r["max_tokens"], ignore_eos=True, detokenize=False
                )
                engine.add_request(str(r["id"]), {"prompt_token_ids": r["prompt"]}, params)
        for output in engine.step():
            if output.finished:
                answers[number(output.request_id)] = list(output.outputs[0].token_ids)
        step += 1
    scheduler.schedule = decide
    return {"steps": steps, "answers": [answers[r["id"]] for r in requests]}


def generate(
    llm: Any, prompts: list[list[int]], max_tokens: int, stop_token_ids: list[int]
) -> dict[str, Any]:
    """Greedy answers, with the log probabilities of the two best tokens at each place."""
    from vllm import SamplingParams

    params = SamplingParams(
        temperature=0, max_tokens=max_tokens, stop_token_ids=stop_token_ids, ignore_eos=True, logprobs=2,
        detokenize=False,
    )  # fmt: skip
    outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
    return {
        "answers": [
            {
                "token_ids": list(output.outputs[0].token_ids),
                "top": [
                    [[token, found.logprob] for token, found in place.items()]
                    for place in output.outputs[0].logprobs
                ],
            }
            for output in outputs
        ]
    }


def timed(llm: Any, requests: list[list[Any]]) -> dict[str, Any]:
    """Seconds to serve requests that arrive together, with an empty prefix cache."""
    from vllm import SamplingParams

    llm.reset_prefix_cache()
    params = [
        SamplingParams(temperature=0, max_tokens=osl, ignore_eos=True, detokenize=False)
        for _, osl in requests
    ]
    began = time.perf_counter()
    outputs = llm.generate([{"prompt_token_ids": p} for p, _ in requests], params, use_tqdm=False)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "lengths": [len(o.outputs[0].token_ids) for o in outputs]}


def main() -> None:
    # Libraries print to stdout as they like; answers go through a channel of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**what: Any) -> None:
        print(json.dumps(what), file=answers, flush=True)

    try:
        import vllm
    except ModuleNotFoundError as error:
        if error.name != "vllm":
            raise
        answer(missing="vllm")
        return
    llm = start(json.loads(sys.argv[1]))
    answer(ready=vllm.__version__)
    for line in sys.stdin:
        question = json.loads(line)
        do = {"schedule": schedule, "generate": generate, "time": timed}[question.pop("do")]
        answer(**do(llm, **question))


if __name__ == "__main__":
    main()
