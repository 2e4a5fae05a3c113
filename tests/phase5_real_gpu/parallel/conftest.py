"""Small checkpoints in the Hugging Face layout, and engines that answer the same requests with and without other processes."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from phase2_attention_kvcache.model import ModelConfig, SamplingParams, Transformer
from phase2_attention_kvcache.model.config import read_config
from phase2_attention_kvcache.story.small_families import write_small_model
from phase3_paged_attention.paging import PagedKVCache
from phase4_scheduler.engine import EngineConfig, LLMEngine
from phase5_real_gpu.parallel import MultiprocExecutor

VOCAB_SIZE = 203  # does not divide by 4, nor do 3 layers by 2
SIZES = dict(vocab_size=VOCAB_SIZE, num_hidden_layers=3, intermediate_size=64, max_position_embeddings=128)
MIXTURE = SIZES | dict(intermediate_size=12, num_experts_per_tok=2)
FAMILIES = {
    "gpt2": dict(vocab_size=VOCAB_SIZE, n_embd=32, n_layer=3, n_head=4, n_inner=64, n_positions=128),
    "llama": SIZES | dict(attention_bias=True),
    # Six experts, which do not divide by 4.
    "qwen3_moe": MIXTURE | dict(num_experts=6, moe_intermediate_size=12, norm_topk_prob=True),
    "mixtral": MIXTURE | dict(num_local_experts=4, tie_word_embeddings=True),
    "olmoe": MIXTURE | dict(num_experts=3),  # a norm over all heads
}
# Few blocks, so that requests make room for each other; prompts come in pieces.
SETTINGS = dict(num_blocks=180, block_size=4, max_num_seqs=32, max_num_batched_tokens=256)


@pytest.fixture(scope="session")
def folders(tmp_path_factory) -> dict[str, Path]:
    """A small model of each family with random weights, written by transformers."""
    root = tmp_path_factory.mktemp("checkpoints")
    for family, sizes in FAMILIES.items():
        write_small_model(family, root / family, sizes)
    return {family: root / family for family in FAMILIES}


@pytest.fixture(scope="session")
def configs(folders) -> dict[str, ModelConfig]:
    return {family: read_config(folder) for family, folder in folders.items()}


def prompts(number: int, seed: int = 0) -> list[list[int]]:
    """Prompts of which many share a beginning."""
    rng = np.random.default_rng(seed)
    beginnings = [rng.integers(0, VOCAB_SIZE, 24).tolist() for _ in range(4)]
    return [
        beginnings[rng.integers(4)][: rng.integers(25)]
        + rng.integers(0, VOCAB_SIZE, rng.integers(1, 30)).tolist()
        for _ in range(number)
    ]


def whole_engine(folder: Path, dtype: str = "float32", **settings) -> LLMEngine:
    """One process, and the cache that the ranks have: gathered with torch."""
    core = {n: value for n, value in (SETTINGS | settings).items() if n in EngineConfig.__dataclass_fields__}
    config = EngineConfig(**core)
    features = {n: value for n, value in settings.items() if n not in core}
    model = Transformer.from_pretrained(folder)
    model = model.double() if dtype == "float64" else model
    cache = PagedKVCache(model.config, config.num_blocks, config.block_size, model.dtype, use_kernel=False)
    return LLMEngine(model, None, config, kv_cache=cache, **features)


def parallel_engine(
    folder: Path, t: int, p: int, dtype: str = "float32", timeout: float = 60.0, **settings
) -> LLMEngine:
    return LLMEngine.from_pretrained(
        folder, dtype, "cpu", distributed_executor_backend=partial(MultiprocExecutor, timeout=timeout),
        tensor_parallel_size=t, pipeline_parallel_size=p, **SETTINGS | settings,
    )  # fmt: skip


class Answers:
    """What an engine answered: tokens of each request, and of each step its tokens and the scores it sampled from."""

    def __init__(self, engine: LLMEngine, asked: Sequence[Sequence[int]], max_tokens: int = 12) -> None:
        self.steps: list[int] = []
        self.scores: list[torch.Tensor] = []
        run, score = engine.core.runner.execute, engine.core.runner.logits
        engine.core.runner.execute = lambda batch: self.steps.append(len(batch.token_ids)) or run(batch)

        def logits(hidden, rows):
            found = score(hidden, rows)
            self.scores.append(found[:])  # brings them here, where they lie with a rank
            return found

        engine.core.runner.logits = logits
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        done = engine.generate(asked, params)
        self.tokens = [output.outputs[0].token_ids for output in done]
        self.preemptions = sum(output.metrics.num_preemptions for output in done)
        self.cached = sum(output.metrics.num_cached_tokens for output in done)
