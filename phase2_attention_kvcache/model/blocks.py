"""The parts of the tower: norm, attention, MLP, and the block that ties them together.

GPT-2 and Llama differ in four small parts of a block. Both kinds of each part stand here side by side.

Sources: Radford et al. 2019 (GPT-2), section 2.3; Touvron et al. 2023 (Llama), section 2.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phase1_tokens_embeddings.weights.model_shapes import ModelShape
from phase2_attention_kvcache.model.positions import apply_rotary


@dataclass(frozen=True)
class ModelConfig(ModelShape):
    """The shape of a model (Phase 1), and the few settings more that computing needs.

    Attributes:
        norm_eps: keeps a norm from dividing by zero.
        attention_bias, mlp_bias: whether the matrices have a bias.
        rope_theta, rope_scaling: speeds of the rotation (see `positions.py`); not used by GPT-2.
        eos_token_ids: tokens that end a text.
    """

    norm_eps: float = 1e-5
    attention_bias: bool = True
    mlp_bias: bool = True
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None
    eos_token_ids: tuple[int, ...] = ()


class KVCache(Protocol):
    """The seam between the model and whatever stores its keys and values."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store the new keys and values of a layer; return attention over all that each token may see.

        Args:
            q: [N, num_heads, head_dim]. k, v: [N, num_kv_heads, head_dim].

        Returns:
            [N, num_heads, head_dim].
        """
        ...


class Attention(nn.Module):
    """Project to q, k, v; rotate if the family does; let the cache attend; project back."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.q_size = config.num_heads * config.head_dim
        self.kv_size = config.num_kv_heads * config.head_dim
        self.head_dim = config.head_dim
        # One matrix for q, k and v: one large product is faster than three small ones.
        self.qkv = nn.Linear(config.d_model, self.q_size + 2 * self.kv_size, bias=config.attention_bias)
        self.out = nn.Linear(self.q_size, config.d_model, bias=config.attention_bias)

    def forward(self, x: Tensor, layer: int, rotary: tuple[Tensor, Tensor] | None, kv: KVCache) -> Tensor:
        """x: [N, d_model] -> [N, d_model]."""
        n = x.shape[0]
        qk, v = self.qkv(x).split([self.q_size + self.kv_size, self.kv_size], dim=-1)
        qk, v = qk.view(n, -1, self.head_dim), v.view(n, -1, self.head_dim)
        if rotary is not None:
            qk = apply_rotary(qk, *rotary)  # queries and keys turn alike, so in one go
        q, k = qk.split([self.q_size // self.head_dim, self.kv_size // self.head_dim], dim=1)
        return self.out(kv.attend(layer, q, k, v).reshape(n, self.q_size))


class GeluMLP(nn.Module):
    """GPT-2: widen to d_ff, bend, come back. GELU in its tanh form, as GPT-2 was trained."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.d_model, config.d_ff, bias=config.mlp_bias)
        self.down = nn.Linear(config.d_ff, config.d_model, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class SwiGLUMLP(nn.Module):
    """Llama: one half of the wide vector opens and closes gates for the other half."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_up = nn.Linear(config.d_model, 2 * config.d_ff, bias=config.mlp_bias)
        self.down = nn.Linear(config.d_ff, config.d_model, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class RMSNorm(nn.Module):
    """Divide by the root of the mean square, in float32; then scale (Zhang and Sennrich 2019)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda:  # one kernel instead of eight; only the last rounding differs
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class Block(nn.Module):
    """Attention, then MLP; each on a normed copy, each added to the stream of vectors that flows past."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = make_norm(config)
        self.attention = Attention(config)
        self.mlp_norm = make_norm(config)
        self.mlp = GeluMLP(config) if config.family == "gpt2" else SwiGLUMLP(config)

    def forward(self, x: Tensor, layer: int, rotary: tuple[Tensor, Tensor] | None, kv: KVCache) -> Tensor:
        x = x + self.attention(self.attention_norm(x), layer, rotary, kv)
        return x + self.mlp(self.mlp_norm(x))


def make_norm(config: ModelConfig) -> nn.Module:
    if config.family == "gpt2":
        return nn.LayerNorm(config.d_model, eps=config.norm_eps)
    return RMSNorm(config.d_model, config.norm_eps)
