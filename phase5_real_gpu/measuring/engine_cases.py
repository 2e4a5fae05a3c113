"""The cases of the engine benchmark, and the floor of each of its figures.

Shapes of models (speed does not depend on the weights), workloads, their sizes for each kind of machine, and the
shortest possible time of a prefill or a decode step.
"""

import random
from dataclasses import dataclass, replace

import torch

from labkit.models import find_model
from phase1_tokens_embeddings.weights import SHAPES
from phase2_attention_kvcache.measuring.roofline import work_of_batch
from phase2_attention_kvcache.model import GPT2_124M, ModelConfig
from phase2_attention_kvcache.model.checkpoint import parse_dtype
from phase2_attention_kvcache.model.config import read_config
from phase5_real_gpu.measuring.measurements import Floor, Limits

Workload = list[tuple[list[int], int]]
"""A prompt and the number of tokens to write, for each request."""


@dataclass(frozen=True)
class BenchModel:
    """A model to run. `name` is the one in the names of measurements."""

    name: str
    title: str
    config: ModelConfig


MODEL_NAMES = ("tales", "gpt2", "tinyllama", "llama3-8b")


def bench_model(name: str) -> BenchModel:
    """The shape of a model by its short name.

    TinyLlama was trained on 2,048 tokens. Its rotary positions allow longer contexts: the speed is right, the text would
    be poor. GPT-2's table of positions ends at 1,024.
    """
    match name:
        case "tales":
            return BenchModel(name, "tales", read_config(find_model("tales")))
        case "gpt2":
            return BenchModel(name, "GPT-2 124M", GPT2_124M)
        case "tinyllama":
            return BenchModel(name, "TinyLlama-1.1B", llama_config("tinyllama-1.1b", max_context=8192))
        case "llama3-8b":
            return BenchModel(name, "Llama-3-8B", llama_config("llama-3-8b", rope_theta=500_000.0))
    raise ValueError(f"unknown model {name!r}: choose from {', '.join(MODEL_NAMES)}")


def llama_config(shape: str, **settings: float) -> ModelConfig:
    return ModelConfig(**vars(SHAPES[shape]) | settings, attention_bias=False, mlp_bias=False)


@dataclass(frozen=True)
class Plan:
    """The sizes of a benchmark.

    Attributes:
        models: names for `bench_model`.
        isls: prompt lengths whose TTFT is measured.
        batches: how many requests are served together.
        isl, osl: tokens of each one's prompt and answer.
        mixed: requests of the workload of unequal lengths, and its shortest and longest prompt and answer.
        repeats: measurements of each figure; the median counts.
        step_tokens: `max_num_batched_tokens`.
        peer_seconds: time for transformers per model. Later cases are left out, with a line.
    """

    models: tuple[str, ...]
    isls: tuple[int, ...]
    batches: tuple[int, ...]
    isl: int
    osl: int
    mixed: tuple[int, int, int]
    repeats: int
    step_tokens: int
    peer_seconds: float


ON_GPU = Plan(
    models=("gpt2", "tinyllama", "llama3-8b"), isls=(10, 100, 500, 1000, 4000), batches=(1, 8, 32, 64, 256),
    isl=128, osl=128, mixed=(64, 16, 256), repeats=3, step_tokens=8192, peer_seconds=30.0,
)  # fmt: skip
ON_CPU = Plan(
    models=("tales", "gpt2"), isls=(10, 100, 500, 1000), batches=(1, 8, 32, 64), isl=32, osl=24,
    mixed=(16, 8, 48), repeats=2, step_tokens=2048, peer_seconds=20.0,
)  # fmt: skip


def plan_for(device: str, quick: bool) -> Plan:
    """Sizes for at most five minutes on a large GPU, one or two on a CPU, seconds with `quick`."""
    if device == "cuda":
        small = dict(batches=(1, 64), osl=32, mixed=(64, 16, 64), peer_seconds=10.0)
        return replace(ON_GPU, models=("tinyllama",), repeats=1, **small) if quick else ON_GPU
    small = dict(batches=(1, 8, 32), isl=16, osl=12, mixed=(16, 4, 16))
    return replace(ON_CPU, models=("tales",), repeats=1, **small) if quick else ON_CPU


def default_dtype(device: str) -> str:
    """bfloat16; float16 on a GPU that is too old for it (before Ampere, such as a T4)."""
    if device == "cuda" and torch.cuda.get_device_capability() < (8, 0):
        return "float16"
    return "bfloat16"


# ---------------------------------------------------------------------- workloads


def equal_workload(batch: int, isl: int, osl: int, vocab_size: int, seed: int = 0) -> Workload:
    """Requests of one length that arrive together, as static batching needs them. Random token ids: no shared prefixes."""
    rng = random.Random(seed)
    return [([rng.randrange(vocab_size) for _ in range(isl)], osl) for _ in range(batch)]


def mixed_workload(count: int, low: int, high: int, vocab_size: int, seed: int = 0) -> Workload:
    """Prompts and answers with random lengths between `low` and `high`, as real requests have."""
    rng = random.Random(seed)
    lengths = [(rng.randint(low, high), rng.randint(low, high)) for _ in range(count)]
    return [([rng.randrange(vocab_size) for _ in range(isl)], osl) for isl, osl in lengths]


# ---------------------------------------------------------------------- floors


def step_floor(
    config: ModelConfig, batch: int, limits: Limits, dtype: str, context: int = 0, new_tokens: int = 1
) -> Floor:
    """Of a step that computes `new_tokens` for each of `batch` requests with `context` tokens each."""
    return limits.floor(
        work_of_batch(config, [(context, new_tokens)] * batch, parse_dtype(dtype).itemsize), dtype
    )


def run_floor(config: ModelConfig, batch: int, isl: int, osl: int, limits: Limits, dtype: str) -> Floor:
    """Of a whole run: the prompts of `batch` requests, then a step for each further token.

    `limit` is that of the decode steps, which take nearly all the time.
    """
    prefill = step_floor(config, batch, limits, dtype, new_tokens=isl)
    decode = step_floor(config, batch, limits, dtype, context=isl + osl // 2)
    return Floor(prefill.seconds + (osl - 1) * decode.seconds, decode.limit)
