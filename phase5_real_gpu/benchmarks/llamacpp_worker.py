"""Runs llama.cpp in its own process, as vllm_worker.py runs vLLM. See vllm_process.py.

    python llamacpp_worker.py SETTINGS        SETTINGS: {"model": FILE.gguf, "threads": 2, ...}

It runs in an environment with the package `xllamacpp`, so it imports nothing from the course. It answers one request:

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
    """Start llama.cpp's server, with continuous batching, in this process.

    Returns:
        a function that serves requests and returns the number of tokens of each answer.
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
        # The workload with a shared prefix: all engines use their prefix cache.
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
