"""The model, whole: GPT-2 and Llama from one set of blocks.

Tokens are flat: a call takes N tokens of any number of requests, and there is no batch dimension. The model
does not know where its keys and values live; it hands them to `kv.attend`, and a cache object answers.
Each phase of the course brings another such object. GPT-2 and Llama differ in four small parts (norm, MLP,
positions, biases); both kinds stand here side by side.

Sources: Radford et al. 2019 (GPT-2), section 2.3; Touvron et al. 2023 (Llama), section 2.2.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.models import find_model
from phase1_tokens_embeddings.weights.gguf_model import is_gguf
from phase2_attention_kvcache.model.checkpoint import load_checkpoint, random_model
from phase2_attention_kvcache.model.config import ModelConfig
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


class Blocks(nn.ModuleList):
    """All blocks, one after the other."""

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor] | None, kv: KVCache) -> Tensor:
        """x: [N, d_model] -> [N, d_model]. rotary: cosines and sines at the tokens' positions, see `apply_rotary`."""
        for layer, block in enumerate(self):
            x = block(x, layer, rotary, kv)
        return x


def make_norm(config: ModelConfig) -> nn.Module:
    kind = nn.LayerNorm if config.family == "gpt2" else RMSNorm
    return kind(config.d_model, config.norm_eps)


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
        if config.family == "gpt2":
            self.position_table = make_table(config.max_context, config.d_model)
        self.blocks = Blocks(Block(config) for _ in range(config.num_layers))
        self.final_norm = make_norm(config)
        # A tied model has no head of its own: its token table serves a second time.
        self.head = None if config.tied else nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.register_buffer("cos", None, persistent=False)
        self.register_buffer("sin", None, persistent=False)

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
            ValueError: ids or positions out of range. (On a GPU this would mean waiting for it, so
            there the caller checks, with `check_tokens`, before the ids leave Python.)
        """
        if token_ids.device.type == "cpu":
            self.check_tokens(token_ids, positions)
        x = self.token_table(token_ids)
        rotary = None
        if self.config.family == "gpt2":
            x = x + F.embedding(positions, self.position_table.weight)
        else:
            rotary = self.cos[positions], self.sin[positions]
        return self.final_norm(self.blocks(x, rotary, kv))

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores for the next token: hidden [N, d_model] -> [N, vocab_size]."""
        return F.linear(hidden, self.token_table.weight) if self.head is None else self.head(hidden)

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
