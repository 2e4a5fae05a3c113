"""Models of families that the course does not know: what their files announce, and one that is written to disk."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import save_file

from phase1_tokens_embeddings.weights.families import FAMILIES, Family
from phase2_attention_kvcache.model import ModelConfig, Transformer
from phase2_attention_kvcache.model.checkpoint import names_for
from phase2_attention_kvcache.model.weight_names import (
    EXPERT_NAMES,
    LLAMA_NAMES,
    NORMED_AFTER_NAMES,
    QK_NORM_NAMES,
    WEIGHT_NAMES,
)

NAME = "unknown_family"
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class UnknownModel:
    """A family, and the sizes of one of its models."""

    family: Family
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 8
    biases: bool = False
    fused: bool = False  # gate and up are one matrix in the file

    @property
    def config(self) -> ModelConfig:
        """A small model of it."""
        experts = dict(num_experts=4, experts_per_token=2) if self.family.mixture else {}
        return ModelConfig(
            name=NAME, family=NAME, vocab_size=61, d_model=24, num_layers=2, num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads, head_dim=self.head_dim, d_ff=40, max_context=96, tied=False,
            attention_bias=self.biases, mlp_bias=self.biases, norm_eps=1e-5, **experts,
        )  # fmt: skip

    @property
    def config_file(self) -> dict[str, Any]:
        """What its config.json says."""
        c = self.config
        activation = "silu" if self.family.mlp == "swiglu" else "gelu_pytorch_tanh"
        return {
            "model_type": NAME, "vocab_size": c.vocab_size, "hidden_size": c.d_model, "hidden_act": activation,
            "num_hidden_layers": c.num_layers, "num_attention_heads": c.num_heads, "intermediate_size": c.d_ff,
            "num_key_value_heads": c.num_kv_heads, "head_dim": c.head_dim, "rms_norm_eps": c.norm_eps,
            "max_position_embeddings": c.max_context, "tie_word_embeddings": c.tied,
            "attention_bias": c.attention_bias, "mlp_bias": c.mlp_bias,
        }  # fmt: skip

    @property
    def names(self) -> dict[str, list[str]]:
        """Ours -> its own."""
        names = LLAMA_NAMES | QK_NORM_NAMES | {"position_table.{}": ["embed_positions.{}"]}
        names |= {"blocks.{}.mlp.up.{}": ["layers.{}.mlp.up_proj.{}"]}
        if self.family.mixture:
            names |= EXPERT_NAMES
            names |= {"blocks.{}.mlp.experts.{}.up.{}": ["layers.{}.mlp.experts.{}.up_proj.{}"]}
        names |= NORMED_AFTER_NAMES if self.family.normed_after else {}
        return names | ({"blocks.{}.mlp.gate_up.{}": ["layers.{}.mlp.gate_up_proj.{}"]} if self.fused else {})

    def tensors(self, model: Transformer) -> dict[str, torch.Tensor]:
        """A model of it, by the names of its files."""
        c, theirs = self.config, {}
        for ours, tensor in model.state_dict().items():
            names = names_for(c, ours, self.names)
            heads = [c.num_heads, c.num_kv_heads, c.num_kv_heads]
            rows = [n * c.head_dim for n in heads] if len(names) == 3 else len(tensor) // len(names)
            theirs |= {f"model.{name}".replace("model.lm_head", "lm_head"): piece.contiguous()
                       for name, piece in zip(names, tensor.split(rows), strict=True)}  # fmt: skip
        return theirs

    def announced(self) -> tuple[dict[str, Any], Shapes]:
        """config.json without the family's name, and the shapes in front of the weights."""
        with known(self), torch.device("meta"):
            shapes = {name: tuple(t.shape) for name, t in self.tensors(Transformer(self.config)).items()}
        return {k: v for k, v in self.config_file.items() if k != "model_type"}, shapes


@contextmanager
def known(model: UnknownModel) -> Iterator[None]:
    """The family is in the course's tables for a while."""
    with patch.dict(FAMILIES, {NAME: model.family}), patch.dict(WEIGHT_NAMES, {NAME: model.names}):
        yield


# LayerNorm and an MLP without gates as in GPT-2, rotary positions and grouped heads as in Llama. StarCoder2 is such a family.
UNKNOWN = UnknownModel(
    Family(norm="layer", mlp="gelu", settings={"attention_bias": False, "mlp_bias": False}), biases=True
)


@torch.no_grad()
def large_weights(model: Transformer) -> Transformer:
    """The model with its matrices times 8: with small weights tokens hardly attend to others."""
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.mul_(8)
    return model


def write_unknown_model(folder: Path) -> tuple[Transformer, dict[str, Any], Shapes]:
    """Write a small random model of an unknown family. Returns it, and what its files announce."""
    with known(UNKNOWN):
        model = large_weights(Transformer.random(UNKNOWN.config, seed=5))
        save_file(UNKNOWN.tensors(model), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(UNKNOWN.config_file))
    return model, *UNKNOWN.announced()


@contextmanager
def family_added(row: dict[str, Any]) -> Iterator[None]:
    """The course knows the written model's family by this row."""
    with known(replace(UNKNOWN, family=replace(UNKNOWN.family, **row))):
        yield
