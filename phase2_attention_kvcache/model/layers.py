"""The parts of the model: attention, the MLP or a mixture of experts, norms, and the layer (`Block`) that combines them.

Families differ in a dozen small choices (`FAMILIES` in Phase 1); no family has a forward pass of its own.

Sources: Radford et al. 2019 (GPT-2), section 2.3; Touvron et al. 2023 (Llama), section 2.2.
"""

from collections.abc import Iterator
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phase2_attention_kvcache.model.config import ModelConfig, Rotation
from phase2_attention_kvcache.model.positions import apply_rotary


class KVCache(Protocol):
    """The interface between the model and the object that stores its keys and values."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store the new keys and values of a layer; return the attention of each new token.

        Args:
            q: [N, num_heads, head_dim]. k, v: [N, num_kv_heads, head_dim].

        Returns:
            [N, num_heads, head_dim].
        """
        ...


Angles = tuple[Tensor, Tensor]  # cosines and sines at the tokens' positions, see `apply_rotary`


class Attention(nn.Module):
    """Project to q, k, v; normalize and rotate q and k if the family does; compute attention in the cache; project back."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.q_size = config.num_heads * config.head_dim
        self.kv_size = config.num_kv_heads * config.head_dim
        self.head_dim = config.head_dim
        # One matrix for q, k and v: one large matrix multiplication is faster than three small ones.
        bias = config.attention_bias or config.qkv_bias
        self.qkv = nn.Linear(config.d_model, self.q_size + 2 * self.kv_size, bias=bias)
        self.out = nn.Linear(self.q_size, config.d_model, bias=config.attention_bias)
        self.q_norm = self.k_norm = None
        if config.choices.qk_norm is not None:
            whole = config.choices.qk_norm == "row"
            self.q_norm = make_norm(config, self.q_size if whole else self.head_dim)
            self.k_norm = make_norm(config, self.kv_size if whole else self.head_dim)

    def forward(self, x: Tensor, layer: int, angles: Angles | None, kv: KVCache) -> Tensor:
        """x: [N, d_model] -> [N, d_model]."""
        n = x.shape[0]
        qk, v = self.qkv(x).split([self.q_size + self.kv_size, self.kv_size], dim=-1)
        if self.q_norm is not None:
            qk = self.norm_queries_and_keys(qk)
        qk, v = qk.view(n, -1, self.head_dim), v.view(n, -1, self.head_dim)
        if angles is not None:
            qk = apply_rotary(qk, *angles)  # queries and keys turn alike, so in one go
        q, k = qk.split([self.q_size // self.head_dim, self.kv_size // self.head_dim], dim=1)
        return self.out(kv.attend(layer, q, k, v).reshape(n, self.q_size))

    def norm_queries_and_keys(self, qk: Tensor) -> Tensor:
        """Normalize each head, or all heads as one row, by the norm's width: [N, q_size + kv_size] -> the same."""
        parts = zip(qk.split([self.q_size, self.kv_size], dim=-1), (self.q_norm, self.k_norm), strict=True)
        return torch.cat([norm(x.unflatten(1, (-1, *norm.weight.shape))).flatten(1) for x, norm in parts], -1)


class GeluMLP(nn.Module):
    """GPT-2: project to d_ff, apply GELU, project back to d_model. GELU in its tanh form, as GPT-2 was trained."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.d_model, config.d_ff, bias=config.mlp_bias)
        self.down = nn.Linear(config.d_ff, config.d_model, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class SwiGLUMLP(nn.Module):
    """Llama: one half of the wide vector, activated, scales the other half."""

    activate = staticmethod(F.silu)

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_up = nn.Linear(config.d_model, 2 * config.d_ff, bias=config.mlp_bias)
        self.down = nn.Linear(config.d_ff, config.d_model, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(self.activate(gate) * up)


class GeGLUMLP(SwiGLUMLP):
    """Gemma: as SwiGLU, with GPT-2's activation."""

    activate = staticmethod(partial(F.gelu, approximate="tanh"))


MLPS = {"gelu": GeluMLP, "swiglu": SwiGLUMLP, "geglu": GeGLUMLP}


class Experts(nn.Module):
    """A mixture of experts: many MLPs, of which each token uses a few. A router chooses and weights them.

    Source: Jiang et al. 2024 (Mixtral), section 2.1.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.router = nn.Linear(config.d_model, config.num_experts, bias=False)
        kind = MLPS[config.choices.mlp]
        self.experts = nn.ModuleList(kind(config) for _ in range(config.num_experts))
        self.per_token, self.norm_topk_prob = config.experts_per_token, config.norm_topk_prob

    def forward(self, x: Tensor) -> Tensor:
        """x: [N, d_model] -> [N, d_model]."""
        out = torch.zeros_like(x)
        for expert, rows, share in self.dispatch(x):
            out.index_add_(0, rows, expert(x[rows]) * share)
        return out

    def dispatch(self, x: Tensor) -> Iterator[tuple[nn.Module, Tensor, Tensor]]:
        """Each expert that a token chose, the rows of x that chose it, and its weight for each of these rows, [rows, 1]."""
        shares, chosen = self.router(x).float().softmax(-1).topk(self.per_token)  # [N, per_token] each
        if self.norm_topk_prob:
            shares = shares / shares.sum(-1, keepdim=True)
        # Tokens that chose the same expert go through it together: its weights are read once for all of them.
        places = chosen.flatten().argsort(stable=True)  # into the N * per_token choices, grouped by expert
        tokens, shares = places // self.per_token, shares.flatten()[places, None].to(x.dtype)
        groups = chosen.flatten().bincount(minlength=len(self.experts)).tolist()
        for expert, rows, share in zip(self.experts, tokens.split(groups), shares.split(groups), strict=True):
            if len(rows):
                yield expert, rows, share


class RMSNorm(nn.Module):
    """Divide by the root of the mean square, in float32 or wider; then scale (Zhang and Sennrich 2019)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda:  # one kernel instead of eight; only the last rounding differs
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))  # float64 stays
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class OffsetRMSNorm(RMSNorm):
    """Gemma: the weights are the scale minus 1. Computed in float32."""

    def forward(self, x: Tensor) -> Tensor:
        wide = F.rms_norm(x.float(), self.weight.shape, 1.0 + self.weight.float(), self.eps)
        return wide.to(x.dtype)


NORMS = {"layer": nn.LayerNorm, "rms": RMSNorm, "offset_rms": OffsetRMSNorm}


def make_norm(config: ModelConfig, width: int | None = None) -> nn.Module:
    return NORMS[config.choices.norm](width or config.d_model, config.norm_eps)


class Block(nn.Module):
    """Attention, then MLP; the result of each is added to the residual stream.

    Each gets a normalized copy of the stream, or its result is normalized before it is added, or both.
    """

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        choices = config.choices
        self.rotation = config.rotation(layer)
        self.attention_norm = make_norm(config) if choices.normed_before else None
        self.attention = Attention(config)
        self.attention_post_norm = make_norm(config) if choices.normed_after else None
        self.mlp_norm = make_norm(config) if choices.normed_before else None
        self.mlp = Experts(config) if choices.mixture else MLPS[choices.mlp](config)
        self.mlp_post_norm = make_norm(config) if choices.normed_after else None

    def forward(self, x: Tensor, layer: int, angles: Angles | None, kv: KVCache) -> Tensor:
        found = self.attention(normed(x, self.attention_norm), layer, angles, kv)
        x = x + normed(found, self.attention_post_norm)
        found = self.mlp(normed(x, self.mlp_norm))
        return x + normed(found, self.mlp_post_norm)


def normed(x: Tensor, norm: nn.Module | None) -> Tensor:
    return x if norm is None else norm(x)


class Blocks(nn.ModuleList):
    def forward(self, x: Tensor, angles: dict[Rotation | None, Angles | None], kv: KVCache) -> Tensor:
        """All layers in order: [N, d_model] -> [N, d_model]. angles: the tables of each rotation that a layer uses."""
        for layer, block in enumerate(self):
            x = block(x, layer, angles[block.rotation], kv)
        return x
