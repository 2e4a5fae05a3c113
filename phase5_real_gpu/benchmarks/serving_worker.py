"""One engine in a process of its own: reads names of workloads, answers with seconds. See serving_benchmark.py.

    python serving_worker.py ENGINE CHECKPOINT DTYPE      ENGINE: ours, vllm or transformers

Every engine gets the same prompts, writes the same number of tokens, and begins with an empty prefix cache.
"""

import json
import os
import sys
import time
from collections.abc import Callable

from phase5_real_gpu.benchmarks.serving_workloads import MAX_NUM_SEQS, WORKLOADS, Workload


def make_ours(checkpoint: str, dtype: str) -> Callable[[Workload], None]:
    from phase2_attention_kvcache.model.sampling_params import SamplingParams
    from phase4_scheduler.engine.engine import LLMEngine

    engine = LLMEngine.from_pretrained(checkpoint, dtype=dtype, device="cpu", max_num_seqs=MAX_NUM_SEQS)

    def run(requests: Workload) -> None:
        engine.block_manager.reset_prefix_cache()
        params = [SamplingParams(temperature=0, max_tokens=osl, ignore_eos=True) for _, osl in requests]
        engine.generate([prompt for prompt, _ in requests], params)

    return run


def make_vllm(checkpoint: str, dtype: str) -> Callable[[Workload], None]:
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "2", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
    from vllm import LLM, SamplingParams

    llm = LLM(
        checkpoint, dtype=dtype, max_model_len=1024, max_num_seqs=MAX_NUM_SEQS, skip_tokenizer_init=True
    )

    def run(requests: Workload) -> None:
        llm.reset_prefix_cache()
        params = [
            SamplingParams(temperature=0, max_tokens=osl, ignore_eos=True, detokenize=False)
            for _, osl in requests
        ]
        llm.generate([{"prompt_token_ids": prompt} for prompt, _ in requests], params, use_tqdm=False)

    return run


def make_transformers(checkpoint: str, dtype: str) -> Callable[[Workload], None]:
    """`generate` in static batches: padded on the left, and as long as the longest answer."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=getattr(torch, dtype)).eval()

    @torch.inference_mode()
    def run(requests: Workload) -> None:
        for first in range(0, len(requests), MAX_NUM_SEQS):
            batch = requests[first : first + MAX_NUM_SEQS]
            width = max(len(prompt) for prompt, _ in batch)
            steps = max(osl for _, osl in batch)
            ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt, _ in batch])
            mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt, _ in batch])
            model.generate(
                ids, attention_mask=mask, max_new_tokens=steps, min_new_tokens=steps, do_sample=False,
                pad_token_id=0, eos_token_id=None,
            )  # fmt: skip

    return run


def main() -> None:
    engine, checkpoint, dtype = sys.argv[1:4]
    # Libraries print to stdout as they like; answers go through a channel of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    run = {"ours": make_ours, "vllm": make_vllm, "transformers": make_transformers}[engine](checkpoint, dtype)
    print(json.dumps({"ready": engine}), file=answers, flush=True)
    for line in sys.stdin:
        requests = WORKLOADS[line.strip()]()
        run([(prompt, 2) for prompt, _ in requests[:4]])
        began = time.perf_counter()
        run(requests)
        print(json.dumps({"seconds": time.perf_counter() - began}), file=answers, flush=True)


if __name__ == "__main__":
    main()
