"""The other engine of the engine benchmark: `generate` of transformers, on a model of the same shape with random weights."""

from contextlib import AbstractContextManager
from typing import Any

import torch

from phase1_tokens_embeddings.weights import ModelShape
from phase5_real_gpu.measuring.engine_cases import Workload


def hf_config(shape: ModelShape) -> Any:
    """A shape in transformers' form. No token ends a text: every answer has the length asked for."""
    from transformers import AutoConfig

    config = AutoConfig.for_model(
        shape.family, vocab_size=shape.vocab_size, hidden_size=shape.d_model, num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads, max_position_embeddings=shape.max_context,
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
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()  # the tables are ours
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(hf_config(shape), dtype=getattr(torch, dtype))
    return model.requires_grad_(False).eval()


def every_backend() -> AbstractContextManager[None]:
    """Peers may use every kind of fused attention that PyTorch has. Ours leaves out cuDNN's (caches.py)."""
    from torch.nn.attention import SDPBackend as Backend
    from torch.nn.attention import sdpa_kernel

    every = [Backend.CUDNN_ATTENTION, Backend.FLASH_ATTENTION, Backend.EFFICIENT_ATTENTION, Backend.MATH]
    return sdpa_kernel(every)


@torch.inference_mode()
def static_batches(model: Any, workload: Workload) -> list[list[int]]:
    """`generate` on a batch: prompts padded to the longest one; all wait for the longest answer.

    Returns:
        The tokens of each answer, cut to the length that the request asked for.
    """
    width = max(len(prompt) for prompt, _ in workload)
    steps = max(osl for _, osl in workload)
    padding = [width - len(prompt) for prompt, _ in workload]
    ids = torch.tensor([[0] * pad + p for pad, (p, _) in zip(padding, workload)], device=model.device)
    mask = torch.tensor([[0] * pad + [1] * (width - pad) for pad in padding], device=model.device)
    with every_backend():
        out = model.generate(
            ids, attention_mask=mask, max_new_tokens=steps, min_new_tokens=steps, do_sample=False,
            pad_token_id=0, eos_token_id=None,
        )  # fmt: skip
    written = out[:, width:].tolist()  # waits for a GPU
    return [tokens[:osl] for tokens, (_, osl) in zip(written, workload, strict=True)]
