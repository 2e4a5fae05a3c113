"""The other engine of the engine benchmark: transformers, on a model of the same shape with random weights.

Two ways to serve many users with it:

    static       `model.generate`: prompts padded to the longest one; all wait for the longest answer
    continuous   its own continuous batching: a paged cache and a scheduler, as in Phase 4
"""

import logging as python_logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from phase1_tokens_embeddings.weights import ModelShape
from phase5_real_gpu.measuring.engine_cases import Workload, blocks_of

PAGE = 256  # tokens of a page of transformers' paged cache, its default


def quiet_transformers() -> None:
    """Only errors, no progress bars: the tables are ours."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    python_logging.getLogger("ContinuousBatchingLogger").setLevel(python_logging.CRITICAL)


def hf_config(shape: ModelShape, max_context: int | None = None) -> Any:
    """A shape in transformers' form. No token ends a text: every answer has the length asked for."""
    from transformers import AutoConfig

    config = AutoConfig.for_model(
        shape.family, vocab_size=shape.vocab_size, hidden_size=shape.d_model, num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads, max_position_embeddings=max_context or shape.max_context,
        tie_word_embeddings=shape.tied, bos_token_id=0, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    if shape.family == "gpt2":
        config.n_inner = shape.d_ff
        return config
    config.num_key_value_heads, config.head_dim = shape.num_kv_heads, shape.head_dim
    config.intermediate_size = shape.d_ff
    return config


def random_transformers(shape: ModelShape, dtype: str, device: str) -> Any:
    """A model of transformers with random weights."""
    from transformers import AutoModelForCausalLM

    quiet_transformers()
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(hf_config(shape), dtype=getattr(torch, dtype))
    return model.requires_grad_(False).eval()


class StaticBatches:
    """`generate` on a padded batch."""

    name = "transformers-static"

    def __init__(self, model: Any) -> None:
        self.model = model

    @torch.inference_mode()
    def run(self, workload: Workload) -> list[list[int]]:
        """The tokens of each answer, cut to the length that the request asked for."""
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
            RuntimeError: a request failed, or its thread stopped, or gave no result for `patience` seconds.
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
        most: the workload that needs the largest cache. step_tokens: most tokens of a step.

    Raises:
        ImportError, AttributeError: this transformers has none.
    """
    from transformers import GenerationConfig
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    wanted: dict[str, Any] = {}
    if model.device.type == "cpu":  # otherwise it takes most of the memory; on a GPU it may
        blocks = blocks_of(most, PAGE) + 4
        wanted = dict(num_blocks=blocks, max_batch_tokens=step_tokens, allow_block_sharing=False)
    with model.continuous_batching_context_manager(
        generation_config=GenerationConfig(
            do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=16
        ),
        continuous_batching_config=ContinuousBatchingConfig(**wanted),
        block=True,
        timeout=5,
    ) as manager:
        yield ContinuousBatches(model, manager)


@contextmanager
def cudnn_as_usual() -> Iterator[None]:
    """PyTorch's default, with all backends of fused attention. Ours leave out cuDNN's (caches.py)."""
    ours = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(ours)
