"""Small random models of every family, written by transformers itself."""

from pathlib import Path
from typing import Any

import torch

SMALL = dict(
    vocab_size=97, hidden_size=32, intermediate_size=40, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8, max_position_embeddings=64, initializer_range=0.3, pad_token_id=0, bos_token_id=1,
    eos_token_id=[2, 3],
)  # fmt: skip
# What a family needs to be itself at this size: a window that is shorter than the text, experts that are few.
OWN: dict[str, dict[str, Any]] = {
    "gpt2": dict(n_embd=32, n_layer=4, n_head=4, n_positions=64),
    "mistral": dict(sliding_window=7),
    "qwen3": dict(head_dim=16),
    "phi3": dict(sliding_window=9),
    "gemma2": dict(sliding_window=6, attn_logit_softcapping=2.0, final_logit_softcapping=3.0),
    "gemma3_text": dict(sliding_window=6, num_hidden_layers=7),
    "qwen3_moe": dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24, norm_topk_prob=True),
    "mixtral": dict(num_local_experts=4),
    "olmoe": dict(num_experts=6, num_experts_per_tok=2),
}  # fmt: skip


def write_small_model(family: str, folder: Path, changes: dict[str, Any] | None = None) -> torch.nn.Module:
    """A small random model of a family, in a folder. Returns transformers' model.

    Args:
        changes: of its config.json, in place of those in OWN.
    """
    from transformers import AutoConfig, AutoModelForCausalLM  # takes seconds
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **SMALL | (OWN.get(family, {}) if changes is None else changes))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:  # norms and biases begin as ones and zeros, which hides mistakes
            torch.nn.init.normal_(parameter, 0.0 if "bias" in name else 0.8, 0.3)
    model.save_pretrained(folder)
    return model
