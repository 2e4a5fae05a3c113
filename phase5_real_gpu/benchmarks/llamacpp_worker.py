"""llama.cpp in a process of its own: answers a line of JSON to each line it is given. See vllm_process.py.

    python llamacpp_worker.py SETTINGS        SETTINGS: {"model": FILE.gguf, "max_num_seqs": 64, "max_model_len": 1024}

It runs in an environment that holds the package `xllamacpp`, so it imports nothing of the course. The first line it writes
says {"ready": version}, or {"missing": "xllamacpp"}. The one question it knows is

    {"do": "time", "requests": [[prompt, tokens to write], ...], "detokenize": false}
"""

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any

if __name__ == "__main__":
    sys.path.pop(0)  # the script's folder, where modules could hide others of the same name


def start(settings: dict[str, Any]) -> Any:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = settings["model"]
    params.n_parallel = settings["max_num_seqs"]
    params.n_ctx = settings["max_model_len"] * settings["max_num_seqs"]
    params.n_batch = 2048
    params.kv_unified = True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings["threads"]
    params.cont_batching, params.cache_prompt, params.verbosity = True, True, -1
    return xllamacpp.Server(params)


def main() -> None:
    # Libraries print to stdout as they like; answers go through a channel of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**what: Any) -> None:
        print(json.dumps(what), file=answers, flush=True)

    settings = json.loads(sys.argv[1])
    try:
        server = start(settings)
    except ModuleNotFoundError as error:
        if error.name != "xllamacpp":
            raise
        answer(missing="xllamacpp")
        return
    answer(ready=version("xllamacpp"))

    def complete(request: list[Any]) -> int:
        prompt, max_tokens = request
        shared = (
            len(prompt) > 256
        )  # the workload with one long beginning: all engines may keep what they computed
        asked = dict(
            prompt=prompt, max_tokens=max_tokens, temperature=0, ignore_eos=True, cache_prompt=shared
        )
        return server.handle_completions(asked)["usage"]["completion_tokens"]

    with ThreadPoolExecutor(settings["max_num_seqs"]) as pool:
        for line in sys.stdin:
            requests = json.loads(line)["requests"]
            began = time.perf_counter()
            lengths = list(pool.map(complete, requests))
            answer(seconds=time.perf_counter() - began, lengths=lengths)


if __name__ == "__main__":
    main()
