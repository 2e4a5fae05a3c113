"""llama.cpp in a process of its own, as vllm_worker.py is vLLM's. See vllm_process.py.

    python llamacpp_worker.py SETTINGS        SETTINGS: {"model": FILE.gguf, "threads": 2, ...}

It runs in an environment that holds the package `xllamacpp`, so it imports nothing of the course. The one question it knows is

    {"do": "time", "requests": [[prompt, tokens to write], ...]}
"""

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from vllm_worker import answer_questions  # Python puts the script's folder first

sys.path.pop(0)  # modules of that folder could hide others of the same name
Requests = list[tuple[list[int], int]]


def start(settings: dict[str, Any]) -> Callable[[Requests], list[int]]:
    """Its server, in this process: requests join and leave its batch as they come and go.

    Returns:
        serves requests, and says how many tokens each of them got.
    """
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = settings["model"]
    params.n_parallel = settings["max_num_seqs"]
    params.n_ctx = settings["max_model_len"] * settings["max_num_seqs"]
    params.n_batch = 2048
    params.kv_unified = True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings["threads"]
    params.cont_batching, params.cache_prompt, params.verbosity = True, True, -1
    server = xllamacpp.Server(params)
    pool = ThreadPoolExecutor(settings["max_num_seqs"])

    def complete(request: tuple[list[int], int]) -> int:
        prompt, max_tokens = request
        # The workload with one long beginning: all engines may keep what they computed.
        shared = len(prompt) > 256
        asked = dict(
            prompt=prompt, max_tokens=max_tokens, temperature=0, ignore_eos=True, cache_prompt=shared
        )
        return server.handle_completions(asked)["usage"]["completion_tokens"]

    return lambda requests: list(pool.map(complete, requests))


def timed(serve: Callable[[Requests], list[int]], requests: Requests) -> dict[str, Any]:
    began = time.perf_counter()
    lengths = serve(requests)
    return {"seconds": time.perf_counter() - began, "lengths": lengths}


if __name__ == "__main__":
    answer_questions("xllamacpp", start, {"time": timed})
