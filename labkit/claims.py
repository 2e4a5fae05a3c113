"""The claims of the source articles that the course checks, and the ledger of verdicts.

Each script compares its measurements with the claims (see `labkit/lab.py`) and writes a report to
`outputs/reports/`. The ledger collects these reports, beside those of one committed run (`reference_run.json`).

The sources are in SOURCES, by the letter that each claim names.
"""

import json
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from labkit.predictions import Prediction, show_value
from labkit.reports import all_predictions

REFERENCE_RUN = Path(__file__).with_name("reference_run.json")


@dataclass(frozen=True)
class Claim:
    id: str
    source: str
    says: str


SOURCES = {
    "A": '"How vLLM Actually Works: I Built It From Scratch So You Don\'t Have To"',
    "B": '"LLM & vLLM Inference, from the ground up", and its recap',
    "C": "an SRE's walk through the inference pipeline (Karthika Raghavan)",
    "D": '"Mistral 7B" (Jiang et al., 2023), section 2',
    "E": '"RoFormer" (Su et al., 2021), section 4.2',
    "F": '"GLU Variants Improve Transformer" (Shazeer, 2020), table 1',
}

# fmt: off
CLAIMS: dict[str, list[Claim]] = {
    "phase1_tokens_embeddings": [
        Claim("gpt2-vocab", "A", "GPT-2's vocabulary has 50,257 tokens"),
        Claim("hello-ids", "A", '"Hello" is one token, 15496'),
        Claim("unbelievable-ids", "A", '"unbelievable" is four tokens: un, bel, iev, able'),
        Claim("prompt-ids", "A", '"Make me sound smart" is 12050, 502, 2128, 4451'),
        Claim("density", "A", "characters per token: prose 5.1, technical text 3.9, Python 2.7"),
        Claim("context-128k", "A", "128K tokens hold 512K characters of English, 345K of code"),
        Claim("wte-shape", "A", "GPT-2's token table is [50257, 768]"),
        Claim("wpe-shape", "A", "GPT-2's position table is [1024, 768]"),
        Claim("king-queen", "A", "cosine king/queen 0.81, man/woman 0.64, dog/cat 0.55, king/banana 0.26"),
        Claim("input-matrix", "A", "token vector + position vector is exactly the model's input"),
        Claim("order-matters", "A", 'without positions "dog bites man" equals "man bites dog"'),
        Claim("llama8b-fp16", "A", "Llama 8B: 14.9 GB in FP16 (1.1 left on a T4, 65.1 on an A100), 7.5 GB in FP8 (72.5 left on an H100)"),
        Claim("7b-by-precision", "C", "7B: 14 GB in FP16, 7 GB in INT8, 4 GB in Q4_K_M"),
        Claim("embedding-256mb", "C", "a [32000, 4096] table at 16 bit is about 256 MB"),
        Claim("file-layout", "C", "a GGUF file is a header, then tensors"),
        Claim("llama32-3b-layers", "C", "Llama 3.2 3B has 32 layers"),
        Claim("llama70b-shape", "A", "Llama 70B has 80 layers of 64 heads"),
    ],
    "phase2_attention_kvcache": [
        Claim("dogs-weights", "A", '"dogs" looks at the three words with 38% / 38% / 24%'),
        Claim("head-split", "A", "12 heads x 64 = 768; the MLP goes 768, 3072, 768"),
        Claim("work-naive", "A", "100 tokens after a 2-token prompt, naive: about 5,000 computations"),
        Claim("work-cached", "A", "the same with a KV cache: 102"),
        Claim("kv-speedup", "A", "a KV cache makes GPT-2 3.1 times faster (10 to 100 for larger models: not measured)"),
        Claim("ttft-isl", "A", "TTFT grows with the prompt: 27 / 24 / 40 ms for 5 / 20 / 45 tokens (its first two fall)"),
        Claim("itl-flat", "A", "ITL stays flat: 8.1 / 9.6 / 9.9 ms for the same"),
        Claim("kv-15gb", "A", "100 users x 4,096 tokens on GPT-2 hold 15 GB of KV cache"),
        Claim("kv-per-token-layer", "C", "tens of KB per token and layer for a 7B model"),
        Claim("prefill-compute-bound", "A B C", "prefill is limited by arithmetic"),
        Claim("decode-memory-bound", "A B C", "decode is limited by memory bandwidth"),
        Claim("sampling", "B C", "greedy, temperature, top-k, top-p behave as described"),
        Claim("fp8-halves", "A", "FP8 halves the model, so more users fit"),
        Claim("int8-minimal", "C", "INT8 loses little quality"),
        Claim("int4-tpot", "C", "INT4 makes TPOT 20 to 40% better"),
        Claim("free-lunch", "C", "quantisation is a free lunch"),
        Claim("rope-relative", "C", "rotary scores depend on the distance of two tokens only"),
        Claim("rope-learns-faster", "E", "with rotary positions a model learns faster than with a table of positions"),
        Claim("gates-win", "F", "SwiGLU leaves a smaller loss than GELU, with as many parameters"),
    ],
    "phase3_paged_attention": [
        Claim("waste", "A", "ten requests with 3,765 tokens: contiguous wastes 81%, paged 0.7%"),
        Claim("concurrency", "A", "the same memory serves 4 requests contiguous, 26 paged: 6.5 times as many"),
        Claim("o1-alloc", "A", "taking and freeing a block is O(1)"),
        Claim("waste-bound", "A", "paged memory wastes less than one block per request"),
        Claim("prefix-ttft", "C", "a prefix cache cuts TTFT from 753 to 367 ms (51%)"),
        Claim("window-8x", "D", "at 32K tokens a window of 4,096 makes the cache 8 times smaller"),
        Claim("paged-2-4x", "C", "PagedAttention serves 2 to 4 times as many requests at a time"),
    ],
    "phase4_scheduler": [
        Claim("head-of-line", "A", "static batch of 500, 10 and 800 tokens: B waits 790 steps, 80 times too long"),
        Claim("continuous-2-4x", "A", "continuous batching is 2 to 4 times static batching on mixed traffic"),
        Claim("four-patterns", "A", "summaries, chat, code and mixed traffic have their own ISL and OSL"),
        Claim("histogram-clusters", "A", "the ISL/OSL histogram shows three clusters"),
        Claim("chunked-prefill", "B", "chunking stops one long prompt from stalling the ITL of all others"),
        Claim("spec-4-for-1.5", "C", "speculative decoding: four tokens for the price of about 1.5 passes"),
        Claim("spec-concurrency", "C", "it helps with few users and hurts with many"),
        Claim("spec-exact", "B", "it costs nothing in quality"),
        Claim("kv-usage-alert", "C", "trouble starts near a KV cache usage of 0.9"),
        Claim("promql-names", "C", "four metrics to watch: TTFT, time a token, hit rate, cache usage, by their names"),
        Claim("kv-090-evicts", "C", "from a KV cache usage of 0.9 on, vLLM evicts requests"),
        Claim("oom-kv", "C", "out of memory on the GPU means that the KV cache is exhausted"),
        Claim("ttft-parts", "C", "TTFT is 45 ms idle, 300 to 500 ms under load: queueing dominates"),
        Claim("hit-rate-chat", "C", "a hit rate above 0.5 is normal for chat with one system prompt"),
        Claim("slo-guidance", "C", "an ITL under 30 ms feels smooth, over 100 ms one notices"),
        Claim("scaling-table", "C", "each of five kinds of traffic has its own symptom and its own remedy"),
        Claim("no-continuous-batching", "C", "Ollama has half of vLLM's throughput: it has no continuous batching"),
    ],
    "phase5_real_gpu": [
        Claim("t4-ttft", "A", "TinyLlama-1.1B on a T4: TTFT 25 / 30 / 55 / 95 ms for 10 / 100 / 500 / 1000 tokens"),
        Claim("t4-throughput", "A", "the same at batch 1 / 8 / 32 / 64: 180 / 800 / 2400 / 2800 tokens per second"),
        Claim("triton-vs-python", "A", "Triton paged attention against the plain Python of the earlier phases"),
        Claim("tp-all-reduce", "B", "tensor parallelism needs one all-reduce per layer"),
        Claim("pp-activations", "B", "pipeline parallelism sends activations from stage to stage, once per step"),
        Claim("pd-contention", "C", "separating prefill and decode eliminates their contention"),
    ],
}
# fmt: on

SOURCE_OF = {claim.id: claim.source for claims in CLAIMS.values() for claim in claims}
"""The letters of the articles that make a claim, such as "A B", by its id."""

# Of several measurements of one claim, the gravest verdict counts.
GRAVITY = ["reproduced", "needs a download", "needs vLLM", "needs a GPU", "differs here", "corrected"]


def measured_claims() -> tuple[dict[str, list[Prediction]], list[str]]:
    """Return all predictions of the reports in the outputs folder, by claim id, and a line for each damaged report."""
    reports, problems = all_predictions()
    found: dict[str, list[Prediction]] = {}
    for p in chain.from_iterable(reports):
        found.setdefault(p.claim, []).append(p)
    return found, problems


def verdict_of(predictions: list[Prediction]) -> str:
    """Return one verdict for all measurements of a claim; "not run yet" if there are none."""
    if not predictions:
        return "not run yet"
    return max((p.verdict for p in predictions), key=GRAVITY.index)


def values_of(predictions: list[Prediction]) -> str:
    """Return the measurements of a claim as text."""
    return "; ".join(show_value(p.measured, p.unit) for p in predictions if not p.needs)


def reference_run() -> dict[str, Any]:
    """Return the committed run: `machine`, `when`, and `claims`: verdict and values by claim id."""
    return json.loads(REFERENCE_RUN.read_text(encoding="utf-8"))


def write_reference_run() -> None:
    """Make the reports in the outputs folder the reference run."""
    from labkit.machine import environment

    here = environment()
    gpu = f", {here['gpu']['name']}" if here["gpu"] else ", no GPU"
    machine = f"{here['cpu']}, {here['cores']} cores{gpu}, torch {here['packages']['torch']}"
    found, _ = measured_claims()
    claims = {name: [verdict_of(ps), values_of(ps)] for name, ps in found.items() if name in SOURCE_OF}
    document = {"machine": machine, "when": here["when"][:10], "claims": claims}
    REFERENCE_RUN.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_reference_run()
