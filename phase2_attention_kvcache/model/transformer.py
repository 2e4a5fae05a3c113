"""The model, whole: GPT-2, Llama, Qwen, Gemma and their like from one set of blocks.

Tokens are flat: a call takes N tokens of any number of requests, and there is no batch dimension. The model
does not know where its keys and values live; it hands them to `kv.attend`, and a cache object answers.
Each phase of the course brings another such object. Families differ in a dozen small choices (`FAMILIES` in Phase 1);
no family has a forward of its own.

Sources: Radford et al. 2019 (GPT-2), section 2.3; Touvron et al. 2023 (Llama), section 2.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.models import find_model
from phase1_tokens_embeddings.weights.gguf_model import is_gguf
from phase2_attention_kvcache.model.caches import NoCache
from phase2_attention_kvcache.model.checkpoint import load_checkpoint, random_model
from phase2_attention_kvcache.model.config import ModelConfig, Rotation
from phase2_attention_kvcache.model.gguf_checkpoint import load_gguf
from phase2_attention_kvcache.model.positions import apply_rotary


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


Angles = tuple[Tensor, Tensor]  # cosines and sines at the tokens' positions, see `apply_rotary`


class Attention(nn.Module):
    """Project to q, k, v; norm and rotate them if the family does; let the cache attend; project back."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.q_size = config.num_heads * config.head_dim
        self.kv_size = config.num_kv_heads * config.head_dim
        self.head_dim = config.head_dim
        # One matrix for q, k and v: one large product is faster than three small ones.
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
        """Each head by itself, or all heads as one row: the norm's width says. [N, q_size + kv_size] -> the same."""
        parts = zip(qk.split([self.q_size, self.kv_size], dim=-1), (self.q_norm, self.k_norm), strict=True)
        return torch.cat([norm(x.unflatten(1, (-1, *norm.weight.shape))).flatten(1) for x, norm in parts], -1)


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
        return self.down(self.bend(gate) * up)

    def bend(self, gate: Tensor) -> Tensor:
        return F.silu(gate)


class GeGLUMLP(SwiGLUMLP):
    """Gemma: the gates are bent as GPT-2 bends."""

    def bend(self, gate: Tensor) -> Tensor:
        return F.gelu(gate, approximate="tanh")


MLPS = {"gelu": GeluMLP, "swiglu": SwiGLUMLP, "geglu": GeGLUMLP}


class Experts(nn.Module):
    """A mixture: many MLPs, of which each token takes a few. A router says which, and how much each of them counts.

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
        """Each expert that is wanted, which rows of x want it, and how much it counts for each of them, [rows, 1]."""
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
    """Gemma: the weights say how far the scale is from 1. All of it in float32."""

    def forward(self, x: Tensor) -> Tensor:
        wide = F.rms_norm(x.float(), self.weight.shape, 1.0 + self.weight.float(), self.eps)
        return wide.to(x.dtype)


NORMS = {"layer": nn.LayerNorm, "rms": RMSNorm, "offset_rms": OffsetRMSNorm}


def make_norm(config: ModelConfig, width: int | None = None) -> nn.Module:
    return NORMS[config.choices.norm](width or config.d_model, config.norm_eps)


class Block(nn.Module):
    """Attention, then MLP; what each finds is added to the stream of vectors that flows past.

    Each gets a normed copy of the stream, or its result is normed before it is added, or both.
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
    """All blocks, one after the other."""

    def forward(self, x: Tensor, angles: dict[Rotation | None, Angles | None], kv: KVCache) -> Tensor:
        """x: [N, d_model] -> [N, d_model]. angles: of each rotation that some block asks for."""
        for layer, block in enumerate(self):
            x = block(x, layer, angles[block.rotation], kv)
        return x


class Transformer(nn.Module):
    """The whole model: token ids in, one vector a token out; `logits` turns vectors into scores.

    >>> model = Transformer.from_pretrained("tales")
    >>> hidden = model(torch.tensor([412, 77]), torch.tensor([0, 1]), NoCache())   # [2, d_model]
    >>> scores = model.logits(hidden[-1:])                                         # [1, vocab_size]
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.token_table = make_table(config.vocab_size, config.d_model)
        if config.choices.positions == "learned":
            self.position_table = make_table(config.max_context, config.d_model)
        self.blocks = Blocks(Block(config, layer) for layer in range(config.num_layers))
        self.final_norm = make_norm(config)
        # A tied model has no head of its own: its token table serves a second time.
        self.head = None if config.tied else nn.Linear(config.d_model, config.vocab_size, bias=False)
        # Worked out when the weights are there (`finish_loading`): [max_context, head_dim / 2], and one number.
        for name in ("cos", "sin", "local_cos", "local_sin", "embedding_scale"):
            self.register_buffer(name, None, persistent=False)

    @classmethod
    def from_pretrained(
        cls, path_or_hub_name: str | Path, dtype: str | torch.dtype = "float32", device: str = "cpu"
    ) -> Transformer:
        """Load an embedded model, a folder in the Hugging Face layout, a .gguf file, or a model from the hub.

        Matrices that a GGUF file holds in few bits stay so in memory; `dtype` is what everything else is computed in.

        Raises:
            LabError: no such model. ValueError: files that do not hold what they should; the message says what.
        """
        path = find_model(path_or_hub_name)
        return (load_gguf if is_gguf(path) else load_checkpoint)(cls, path, dtype, device)

    @classmethod
    def random(
        cls, config: ModelConfig, dtype: str | torch.dtype = "float32", device: str = "cpu", seed: int = 0
    ) -> Transformer:
        """A model with random weights. Its text is noise; its speed is that of a real model."""
        return random_model(cls, config, dtype, device, seed)

    @property
    def device(self) -> torch.device:
        return self.final_norm.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.final_norm.weight.dtype

    def forward(self, token_ids: Tensor, positions: Tensor, kv: KVCache) -> Tensor:
        """Run all blocks.

        Args:
            token_ids: [N] integers. positions: [N], each token's place in its own sequence.
            kv: stores keys and values and attends.

        Returns:
            hidden [N, d_model], after the last norm.

        Raises:
            ValueError: a `NoCache` that was not told how this model attends; ids or positions out of range.
                (On a GPU the latter would mean waiting for it, so there the caller checks, with `check_tokens`,
                before the ids leave Python.)
        """
        if token_ids.device.type == "cpu":
            self.check_tokens(token_ids, positions)
        if isinstance(kv, NoCache):
            kv.check(self.config)
        return self.final_norm(self.blocks(self.embed(token_ids, positions), self.rotary(positions), kv))

    def embed(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        """What goes into the first block: [N, d_model]."""
        x = self.token_table(token_ids)
        if self.embedding_scale is not None:
            x = x * self.embedding_scale
        if self.config.choices.positions == "learned":
            x = x + F.embedding(positions, self.position_table.weight)
        return x

    def rotary(self, positions: Tensor) -> dict[Rotation | None, Angles | None]:
        """What turns queries and keys, see `apply_rotary`: of each rotation that some block asks for."""
        angles: dict[Rotation | None, Angles | None] = {None: None}
        if self.cos is not None:
            angles["full"] = self.cos[positions], self.sin[positions]
        if self.local_cos is not None:
            angles["local"] = self.local_cos[positions], self.local_sin[positions]
        return angles

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores for the next token: hidden [N, d_model] -> [N, vocab_size]."""
        scores = F.linear(hidden, self.token_table.weight) if self.head is None else self.head(hidden)
        cap = self.config.final_softcap
        return scores if cap is None else cap * torch.tanh(scores / cap)

    def check_tokens(self, token_ids: Tensor, positions: Tensor) -> None:
        """Raise a ValueError that names the first id or position out of range."""
        if token_ids.ndim != 1 or token_ids.shape != positions.shape:
            shapes = f"{list(token_ids.shape)} and {list(positions.shape)}"
            raise ValueError(f"token_ids and positions must be two rows of equal length, not {shapes}")
        vocab, context = self.config.vocab_size, self.config.max_context
        for name, values, limit in (("token id", token_ids, vocab), ("position", positions, context)):
            if len(wrong := values[(values < 0) | (values >= limit)]):
                raise ValueError(f"{name} {wrong[0]} is out of range: this model takes 0 to {limit - 1}")


def make_table(rows: int, width: int) -> nn.Embedding:
    """A table of vectors, not filled yet. (`nn.Embedding` would draw them, and on the "meta" device, where shapes
    are made without memory, load torch's compiler for it: a second for every script.)
    """
    return nn.Embedding(rows, width, _weight=torch.empty(rows, width))
