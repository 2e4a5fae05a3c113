"""llama.cpp or OpenVINO in a process of its own: answers a line of JSON to each line it is given. See vllm_process.py.

    python gguf_worker.py SETTINGS        SETTINGS: {"engine": "xllamacpp", "model": FILE.gguf, "threads": 2, ...}

It runs in an environment that holds the package, so it imports nothing of the course. The first line it writes says
{"ready": version}, or {"missing": package}. The one question it knows is

    {"do": "time", "requests": [[prompt, tokens to write], ...], "detokenize": false}
"""

import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any

Requests = list[tuple[list[int], int]]
Serve = Callable[[Requests], list[int]]  # how many tokens each request got

if __name__ == "__main__":
    sys.path.pop(0)  # the script's folder, where modules could hide others of the same name


def start_llamacpp(settings: dict[str, Any]) -> Serve:
    """Its server, in this process: requests join and leave its batch as they come and go."""
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


def start_openvino(settings: dict[str, Any]) -> Serve:
    """Its pipeline for one batch: prompts of one length that want equally many tokens."""
    import numpy as np
    import openvino
    import openvino_genai

    pipeline = openvino_genai.LLMPipeline(settings["model"], "CPU", INFERENCE_NUM_THREADS=settings["threads"])

    def serve(requests: Requests) -> list[int]:
        config = openvino_genai.GenerationConfig()
        config.ignore_eos, config.do_sample, config.apply_chat_template = True, False, False
        config.max_new_tokens = requests[0][1]
        ids = np.array([prompt for prompt, _ in requests], dtype=np.int64)
        tensors = openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids))
        return [
            len(row) for row in pipeline.generate(openvino_genai.TokenizedInputs(*tensors), config).tokens
        ]

    return serve


STARTERS = {"xllamacpp": start_llamacpp, "openvino_genai": start_openvino}


def main() -> None:
    # Libraries print to stdout as they like; answers go through a channel of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**what: Any) -> None:
        print(json.dumps(what), file=answers, flush=True)

    settings = json.loads(sys.argv[1])
    package = settings["engine"]
    try:
        serve = STARTERS[package](settings)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        answer(missing=package)
        return
    answer(ready=version(package))
    for line in sys.stdin:
        requests = json.loads(line)["requests"]
        began = time.perf_counter()
        lengths = serve(requests)
        answer(seconds=time.perf_counter() - began, lengths=lengths)


if __name__ == "__main__":
    main()
