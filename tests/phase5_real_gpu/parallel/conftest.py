"""Small checkpoints in the Hugging Face layout, and engines that answer the same requests with and without other processes."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from phase2_attention_kvcache.model import ModelConfig, SamplingParams, Transformer
from phase2_attention_kvcache.model.checkpoint import is_turned, names_for
from phase3_paged_attention.paging import PagedKVCache
from phase4_scheduler.engine import EngineConfig, LLMEngine
from phase5_real_gpu.parallel import MultiprocExecutor

# A vocabulary that does not divide by 4, and layers that do not divide by 2.
SIZES = dict(vocab_size=203, d_model=32, num_layers=3, num_heads=4, head_dim=8, d_ff=64, max_context=128)
MIXTURE = SIZES | dict(d_ff=12, attention_bias=False, mlp_bias=False)
CONFIGS = {
    "gpt2": ModelConfig(name="gpt2", family="gpt2", num_kv_heads=4, tied=True, **SIZES),
    "llama": ModelConfig(
        name="llama", family="llama", num_kv_heads=2, tied=False, attention_bias=True, mlp_bias=False, **SIZES
    ),
    # Six experts, which do not divide by 4.
    "qwen3_moe": ModelConfig(
        name="qwen3_moe", family="qwen3_moe", num_kv_heads=2, tied=False, num_experts=6, experts_per_token=2,
        norm_topk_prob=True, **MIXTURE,
    ),
    "mixtral": ModelConfig(
        name="mixtral", family="mixtral", num_kv_heads=2, tied=True, num_experts=4, experts_per_token=2,
        norm_topk_prob=True, **MIXTURE,
    ),
    # A norm over all heads.
    "olmoe": ModelConfig(
        name="olmoe", family="olmoe", num_kv_heads=2, tied=False, num_experts=3, experts_per_token=2, **MIXTURE
    ),
}  # fmt: skip
# Few blocks, so that requests make room for each other; prompts come in pieces.
SETTINGS = dict(num_blocks=180, block_size=4, max_num_seqs=32, max_num_batched_tokens=256)


def write_checkpoint(config: ModelConfig, folder: Path, seed: int = 0) -> Path:
    """A model with random weights, biases too, as a folder."""
    torch.manual_seed(seed)
    model = Transformer.random(config, seed=seed)
    tensors = {}
    for ours, whole in model.state_dict().items():
        whole = whole + 0.3 * torch.randn_like(whole)
        names = names_for(config, ours)
        kv = config.num_kv_heads * config.head_dim
        rows = [config.num_heads * config.head_dim, kv, kv] if len(names) == 3 else len(whole) // len(names)
        for name, piece in zip(names, whole.split(rows), strict=True):
            turned = is_turned(config, ours) and piece.ndim == 2
            tensors[name] = (piece.t() if turned else piece).contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    raw = dict(model_type=config.family, vocab_size=config.vocab_size, tie_word_embeddings=config.tied)
    if config.family == "gpt2":
        raw |= dict(n_embd=config.d_model, n_layer=config.num_layers, n_head=config.num_heads)
        raw |= dict(n_inner=config.d_ff, n_positions=config.max_context)
    else:
        raw |= dict(hidden_size=config.d_model, num_hidden_layers=config.num_layers)
        raw |= dict(num_attention_heads=config.num_heads, num_key_value_heads=config.num_kv_heads)
        raw |= dict(
            head_dim=config.head_dim, intermediate_size=config.d_ff, attention_bias=config.attention_bias
        )
        raw |= dict(max_position_embeddings=config.max_context, rms_norm_eps=config.norm_eps)
    if config.family == "qwen3_moe":
        raw |= dict(moe_intermediate_size=config.d_ff, norm_topk_prob=True)
    if config.choices.mixture:
        number = "num_local_experts" if config.family == "mixtral" else "num_experts"
        raw |= {number: config.num_experts, "num_experts_per_tok": config.experts_per_token}
    (folder / "config.json").write_text(json.dumps(raw))
    return folder


@pytest.fixture(scope="session")
def folders(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("checkpoints")
    return {name: write_checkpoint(config, root / name) for name, config in CONFIGS.items()}


def prompts(number: int, seed: int = 0) -> list[list[int]]:
    """Prompts of which many share a beginning."""
    rng = np.random.default_rng(seed)
    beginnings = [rng.integers(0, SIZES["vocab_size"], 24).tolist() for _ in range(4)]
    return [
        beginnings[rng.integers(4)][: rng.integers(25)]
        + rng.integers(0, SIZES["vocab_size"], rng.integers(1, 30)).tolist()
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
            self.scores.append(score(hidden, rows))
            return self.scores[-1]

        engine.core.runner.logits = logits
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        done = engine.generate(asked, params)
        self.tokens = [output.outputs[0].token_ids for output in done]
        self.preemptions = sum(output.metrics.num_preemptions for output in done)
        self.cached = sum(output.metrics.num_cached_tokens for output in done)
