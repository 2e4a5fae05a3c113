"""llama.cpp in a process of its own: answers a line of JSON to each line it is given. See vllm_process.py.

    python llamacpp_worker.py SETTINGS        SETTINGS: {"model": FILE.gguf, "threads": 2, ...}

It runs in an environment that holds the package, so it imports nothing of the course. The first line it writes says
{"ready": version}, or {"missing": package}. The one question it knows is

    {"do": "time", "requests": [[prompt, tokens to write], ...]}
"""

import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any

PACKAGE = "xllamacpp"
Requests = list[tuple[list[int], int]]

if __name__ == "__main__":
    sys.path.pop(0)  # the script's folder, where modules could hide others of the same name


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


def main() -> None:
    # Libraries print to stdout as they like; answers go through a channel of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**what: Any) -> None:
        print(json.dumps(what), file=answers, flush=True)

    try:
        serve = start(json.loads(sys.argv[1]))
    except ModuleNotFoundError as error:
        if error.name != PACKAGE:
            raise
        answer(missing=PACKAGE)
        return
    answer(ready=version(PACKAGE))
    for line in sys.stdin:
        requests = json.loads(line)["requests"]
        began = time.perf_counter()
        lengths = serve(requests)
        answer(seconds=time.perf_counter() - began, lengths=lengths)


if __name__ == "__main__":
    main()
