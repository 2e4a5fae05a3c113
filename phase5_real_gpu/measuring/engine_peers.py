"""The other engines of the engine benchmark: transformers, with the weights of our own model.

Two ways to serve many users with it:

    static       `model.generate`: prompts padded to the longest one; all wait for the longest answer
    continuous   its own continuous batching: a paged cache and a scheduler, as in Phase 4

The model is made from ours without a file: its parameters are views of our tensors where the layout allows it.
"""

import logging as python_logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from labkit.machine import synchronize
from phase2_attention_kvcache.model import ModelConfig, Transformer
from phase2_attention_kvcache.model.checkpoint import names_for
from phase5_real_gpu.measuring.engine_bench import Bench
from phase5_real_gpu.measuring.engine_cases import BenchModel, Workload, blocks_of, num_output_tokens

PAGE = 256  # tokens a page of transformers' paged cache, its default


def quiet_transformers() -> None:
    """Only errors, no progress bars: the tables are ours."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    python_logging.getLogger("ContinuousBatchingLogger").setLevel(python_logging.CRITICAL)


def hf_config(config: ModelConfig) -> Any:
    """Our shape as transformers writes it. Nothing ends a text: every answer has the length asked for."""
    from transformers import GPT2Config, LlamaConfig

    if config.family == "gpt2":
        return GPT2Config(
            vocab_size=config.vocab_size, n_positions=config.max_context, n_embd=config.d_model,
            n_layer=config.num_layers, n_head=config.num_heads, n_inner=config.d_ff,
            layer_norm_epsilon=config.norm_eps, tie_word_embeddings=config.tied,
            bos_token_id=None, eos_token_id=None, architectures=["GPT2LMHeadModel"],
        )  # fmt: skip
    return LlamaConfig(
        vocab_size=config.vocab_size, max_position_embeddings=config.max_context, hidden_size=config.d_model,
        num_hidden_layers=config.num_layers, num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads, head_dim=config.head_dim, intermediate_size=config.d_ff,
        rms_norm_eps=config.norm_eps, tie_word_embeddings=config.tied, attention_bias=config.attention_bias,
        mlp_bias=config.mlp_bias, rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        bos_token_id=None, eos_token_id=None, architectures=["LlamaForCausalLM"],
    )  # fmt: skip


def hf_state(model: Transformer) -> dict[str, Tensor]:
    """Our parameters under transformers' names, split and turned as it wants them."""
    config = model.config
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    rows = {3: [q, kv, kv], 2: [config.d_ff, config.d_ff]}
    prefix = "transformer." if config.family == "gpt2" else "model."
    state: dict[str, Tensor] = {}
    for ours, tensor in model.state_dict().items():
        names = names_for(config, ours)
        pieces = tensor.split(rows[len(names)]) if len(names) > 1 else [tensor]
        for name, piece in zip(names, pieces, strict=True):
            if config.family == "gpt2" and piece.ndim == 2 and ours.startswith("blocks"):
                piece = piece.T.contiguous()  # GPT-2 stores [in, out]
            state[name if name.startswith("lm_head") else prefix + name] = piece
    if config.tied:
        state["lm_head.weight"] = model.token_table.weight
    return state


def to_transformers(model: Transformer) -> Any:
    """transformers' model with our weights. Call it before packing, which lets the plain weights go."""
    from transformers import GPT2LMHeadModel, LlamaForCausalLM

    quiet_transformers()
    config = hf_config(model.config)
    with torch.device("meta"):  # shapes without memory
        theirs = (GPT2LMHeadModel if model.config.family == "gpt2" else LlamaForCausalLM)(config)
    theirs.load_state_dict(hf_state(model), assign=True)
    if model.config.family == "llama":  # its frequencies are in no state
        theirs.model.rotary_emb = type(theirs.model.rotary_emb)(config).to(model.device)
    return theirs.requires_grad_(False).eval()


class StaticBatches:
    """`generate` on a padded batch."""

    name = "transformers-static"

    def __init__(self, model: Any) -> None:
        self.model = model

    @torch.inference_mode()
    def run(self, workload: Workload) -> list[list[int]]:
        """The tokens of each answer; what a request got beyond its own length is dropped."""
        width = max(len(prompt) for prompt, _ in workload)
        steps = max(osl for _, osl in workload)
        padding = [width - len(prompt) for prompt, _ in workload]
        device = self.model.device
        ids = torch.tensor([[0] * pad + p for pad, (p, _) in zip(padding, workload)], device=device)
        mask = torch.tensor([[0] * pad + [1] * (width - pad) for pad in padding], device=device)
        out = self.model.generate(
            ids, attention_mask=mask, max_new_tokens=steps, min_new_tokens=steps, do_sample=False,
            pad_token_id=0, eos_token_id=None,
        )  # fmt: skip
        written = out[:, width:].tolist()  # waits for a GPU
        return [tokens[:osl] for tokens, (_, osl) in zip(written, workload, strict=True)]


class ContinuousBatches:
    """transformers' continuous batching. Made by `continuous_batches`."""

    name = "transformers-continuous"

    def __init__(self, model: Any, manager: Any) -> None:
        self.model, self.manager = model, manager

    def run(self, workload: Workload, patience: float = 120.0) -> list[list[int]]:
        """The tokens of each answer.

        Raises:
            RuntimeError: a request failed, or its thread stopped, or nothing came for `patience` seconds.
        """
        ids = [
            self.manager.add_request(prompt, max_new_tokens=osl, eos_token_id=-1) for prompt, osl in workload
        ]
        written: dict[str, list[int]] = {}
        last = time.monotonic()
        while len(written) < len(ids):
            result = self.manager.get_result(timeout=1)
            if result is not None and result.is_finished():
                if result.error:
                    raise RuntimeError(str(result.error))
                written[result.request_id] = list(result.generated_tokens)
                last = time.monotonic()
            elif not self.manager.is_running() or time.monotonic() - last > patience:
                raise RuntimeError("its generation thread stopped, or gave no result")
        return [written[i] for i in ids]


@contextmanager
def continuous_batches(model: Any, most: Workload, step_tokens: int) -> Iterator[ContinuousBatches]:
    """Start continuous batching; its graphs are captured here, before anything is timed.

    Args:
        most: the workload that needs the largest cache.
        step_tokens: most tokens of a step.

    Raises:
        ImportError, AttributeError: this transformers has none.
    """
    from transformers import GenerationConfig
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    wanted: dict[str, Any] = {}
    if model.device.type == "cpu":  # otherwise it takes most of the memory; on a GPU it may
        blocks = sum(-(-(len(prompt) + osl) // PAGE) for prompt, osl in most) + 4
        wanted = dict(num_blocks=blocks, max_batch_tokens=step_tokens, allow_block_sharing=False)
    generation = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=16)
    with model.continuous_batching_context_manager(
        generation_config=generation,
        continuous_batching_config=ContinuousBatchingConfig(**wanted),
        block=True,
        timeout=5,
    ) as manager:
        yield ContinuousBatches(model, manager)


@contextmanager
def cudnn_as_usual() -> Iterator[None]:
    """PyTorch as transformers finds it: all ways of fused attention. Ours leave out cuDNN's (caches.py)."""
    ours = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(ours)


# ---------------------------------------------------------------------- measuring


def measure_peers(bench: Bench, bm: BenchModel, theirs: Any, workloads: dict[str, Workload]) -> None:
    """transformers on the same workloads, within the time that the plan gives it."""
    batches = bench.plan.peer_batches
    workloads = {e: w for e, w in workloads.items() if len(w) in batches or e.startswith("mixed")}
    largest = max(workloads.values(), key=lambda w: blocks_of(w, PAGE))
    engines: dict[str, Callable[[], AbstractContextManager[StaticBatches | ContinuousBatches]]] = {
        "transformers, static": lambda: nullcontext(StaticBatches(theirs)),
        "transformers, continuous": lambda: continuous_batches(theirs, largest, bench.plan.step_tokens),
    }
    for title, start in engines.items():

        def run_all(title: str = title, start: Callable = start) -> None:
            deadline = min(time.monotonic() + bench.plan.peer_seconds / len(engines), bench.peers_until)
            with cudnn_as_usual(), start() as engine:
                for ending, workload in workloads.items():
                    what = f"{title}, {bm.title}, {ending}"
                    if time.monotonic() > deadline:
                        bench.left_out.append(f"{what} and later: no time left for it")
                        break
                    bench.attempt(
                        what, partial(_throughput, bench, bm, engine, ending, workload), foreign=True
                    )

        bench.attempt(f"{title}, {bm.title}", run_all, foreign=True)


def _throughput(bench: Bench, bm: BenchModel, engine: Any, ending: str, workload: Workload) -> None:
    if bench.device == "cpu":
        engine.run([(prompt, 2) for prompt, _ in workload[:1]])
    else:  # graphs, kernels and memory for every size of batch that occurs
        engine.run(workload)
    synchronize(bench.device)
    began = time.perf_counter()
    answers = engine.run(workload)
    seconds = time.perf_counter() - began
    if [len(a) for a in answers] != [osl for _, osl in workload]:
        raise RuntimeError("it wrote answers of the wrong length")
    tokens = num_output_tokens(workload)
    name = f"{engine.name}-throughput-{bm.name}-{ending}"
    details = dict(batch=len(workload), tokens=tokens, attention=engine.model.config._attn_implementation)
    bench.add(name, [tokens / seconds], "tok/s", None, **details)
