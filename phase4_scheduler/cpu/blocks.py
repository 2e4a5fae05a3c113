"""The layers of a model, with compiled functions between the matrix multiplications (`fused.py`).

No half of a layer adds its result to the residual stream: the function that computes the next norm does it on the way. (In vLLM
this is the kernel `fused_add_rms_norm`.)
"""

from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from phase2_attention_kvcache.model.config import Rotation
from phase2_attention_kvcache.model.layers import (
    Angles,
    Attention,
    Block,
    Blocks,
    GeluMLP,
    KVCache,
    RMSNorm,
    SwiGLUMLP,
)
from phase3_paged_attention.paging.kv_storage import stored_bits
from phase4_scheduler.cpu.choice import ROWS
from phase4_scheduler.cpu.linear import FEW, CPULinear

# With our kernel a layer is two calls, and the time between the matrix multiplications is saved. On a Xeon with AMX a step was a
# quarter faster where our multiplications took as long as oneDNN's, and as fast where they took 1.4 times as long.
SAVED = 1.2


class CPUGeluMLP(GeluMLP):
    """An MLP whose first layer applies the activation."""

    def forward(self, x: Tensor) -> Tensor:
        """x: [N, d_model] -> [N, d_model]."""
        return self.down(self.up(x))


class CPUSwiGLUMLP(SwiGLUMLP):
    """An MLP with a compiled activation."""

    def forward(self, x: Tensor) -> Tensor:
        """x: [N, d_model] -> [N, d_model]."""
        from phase4_scheduler.cpu.fused import silu_and_multiply  # numba takes half a second to import

        gate_up = self.gate_up(x)
        activated = torch.empty(len(x), gate_up.shape[1] // 2, dtype=x.dtype)
        silu_and_multiply(stored_bits(gate_up), stored_bits(activated))
        return self.down(activated)


class CPUBlock(Block):
    """A layer.

    Attributes:
        num_heads: of queries, and of keys. splits: of queries, keys, values. stream_norms: before attention, and before the MLP.
        head_norms: of queries and keys.
        most_few_rows: up to so many rows our kernel does all four matrix multiplications, with `matrices`.
    """

    @staticmethod
    def knows(block: nn.Module) -> bool:
        """Whether the compiled functions can do all that a layer does beside its MLP."""
        norm = getattr(getattr(block, "attention", None), "q_norm", None)
        return (
            type(block) is Block
            and type(block.attention) is Attention
            and type(block.attention_norm) is type(block.mlp_norm) in (nn.LayerNorm, RMSNorm)
            and block.attention_post_norm is block.mlp_post_norm is None
            and (
                norm is None or (len(norm.weight) == block.attention.head_dim and block.rotation is not None)
            )
        )

    def read_weights(self) -> Self:
        attention, mlp = self.attention, self.mlp
        head_dim = attention.head_dim
        q_heads, kv_heads = self.num_heads = attention.q_size // head_dim, attention.kv_size // head_dim
        self.splits = [q_heads, kv_heads, kv_heads]
        self.stream_norms = numbers(self.attention_norm), numbers(self.mlp_norm)
        self.head_norms = np.ones(head_dim, np.float32), np.ones(head_dim, np.float32), np.float32(-1)
        if attention.q_norm is not None:
            self.head_norms = (numbers(attention.q_norm)[0], *numbers(attention.k_norm)[:3:2])
        up = {CPUGeluMLP: "up", CPUSwiGLUMLP: "gate_up"}.get(type(mlp))
        linears = (attention.qkv, attention.out, getattr(mlp, up), mlp.down) if up else (mlp,)
        self.most_few_rows = most_few_rows(linears)
        self.matrices = [x.few_rows().matrix for x in linears] if self.most_few_rows else []
        return self

    def forward(
        self, stream: np.ndarray, found: np.ndarray, layer: int, angles: tuple[np.ndarray, ...], kv: KVCache
    ) -> np.ndarray:
        """stream (changed), found and the result, each [N, d_model]: the residual stream, and what is still to be added to it."""
        from phase4_scheduler.cpu import fused

        n, attention, head_dim = len(stream), self.attention, self.attention.head_dim
        preparation = (*self.num_heads, self.head_norms, *angles)
        before, after = self.stream_norms
        if n <= self.most_few_rows:
            qkv, out, up, down = self.matrices
            heads = self.empty(n, sum(self.splits), head_dim)
            fused.before_attention(stream, found, before, qkv, *preparation, stored_bits(heads))
            attended = kv.attend(layer, *heads.split(self.splits, dim=1))
            return fused.after_attention(stream, stored_bits(attended).reshape(n, -1), out, after, up, down)
        normed = self.empty(*stream.shape)
        fused.add_and_norm(stream, found, before, stored_bits(normed))
        heads = attention.qkv(normed).view(n, -1, head_dim)
        fused.norm_and_rotate(stored_bits(heads), *preparation)
        attended = kv.attend(layer, *heads.split(self.splits, dim=1))
        found = attention.out(attended.reshape(n, -1))
        fused.add_and_norm(stream, stored_bits(found), after, stored_bits(normed))
        return stored_bits(self.mlp(normed))

    def empty(self, *shape: int) -> Tensor:
        return torch.empty(*shape, dtype=self.mlp_norm.weight.dtype)


class CPUBlocks(Blocks):
    """All layers."""

    def forward(self, x: Tensor, angles: dict[Rotation | None, Angles | None], kv: KVCache) -> Tensor:
        """See `Blocks`."""
        x = x.clone()
        stream = stored_bits(x)
        none = np.empty((len(x), 0), stream.dtype)
        tables = {
            kind: (none, none) if pair is None else tuple(map(stored_bits, pair))
            for kind, pair in angles.items()
        }
        found = stream[:0]
        for layer, block in enumerate(self):
            found = block(stream, found, layer, tables[block.rotation], kv)
        return x + torch.from_numpy(found).view(x.dtype)


def most_few_rows(linears: Sequence[nn.Module]) -> int:
    """Up to so many rows a layer is as fast with our kernel."""
    if not all(type(linear) is CPULinear and "few rows" in linear.times for linear in linears):
        return 0
    most = 0
    for i, rows in enumerate(ROWS[: ROWS.index(FEW) + 1]):
        ours = sum(linear.times["few rows"][i] for linear in linears)
        if ours > SAVED * sum(min(times[i] for times in linear.times.values()) for linear in linears):
            break
        most = rows
    return most


def numbers(norm: nn.Module) -> tuple[np.ndarray, np.ndarray, np.float32, np.float32]:
    """A norm as compiled code reads it, see `add_and_norm`."""
    weight, bias = norm.weight, getattr(norm, "bias", None)
    bias = torch.zeros_like(weight) if bias is None else bias
    arrays = (x.detach().float().numpy() for x in (weight, bias))
    return (*arrays, np.float32(norm.eps), np.float32(type(norm) is nn.LayerNorm))
