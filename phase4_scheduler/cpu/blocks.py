"""The layers of a model, with compiled functions (`kernels.py`) between the matrix multiplications.

No half of a layer adds its result to the residual stream: the function that computes the next norm does it on the way. (In vLLM
this is the kernel `fused_add_rms_norm`.)
"""

import numpy as np
import torch
from torch import Tensor

from phase2_attention_kvcache.model.config import Rotation
from phase2_attention_kvcache.model.layers import Angles, Block, Blocks, GeluMLP, KVCache
from phase3_paged_attention.paging.kv_storage import stored_bits


class CPUGeluMLP(GeluMLP):
    """An MLP whose first layer applies the activation."""

    def forward(self, x: Tensor) -> Tensor:
        """x: [N, d_model] -> [N, d_model]."""
        return self.down(self.up(x))


class CPUBlock(Block):
    """A layer.

    Attributes:
        num_heads: of queries, and of keys. splits: of queries, keys, values.
        stream_norms: before attention, and before the MLP. head_norms: of queries and keys.
        most_few_rows: up to so many rows our kernel does all matrix multiplications, with `matrices`.
    """

    def forward(
        self, stream: np.ndarray, found: np.ndarray, layer: int, angles: tuple[np.ndarray, ...], kv: KVCache
    ) -> np.ndarray:
        """stream (changed), found and the result, each [N, d_model]: the residual stream, and what is still to be added to it."""
        from phase4_scheduler.cpu import kernels  # numba takes half a second to import

        n, attention, dtype = len(stream), self.attention, self.mlp_norm.weight.dtype
        before, after = self.stream_norms
        preparation = (*self.num_heads, self.head_norms, *angles)
        if n <= self.most_few_rows:
            qkv, out, up, down = self.matrices
            heads = torch.empty(n, sum(self.splits), attention.head_dim, dtype=dtype)
            kernels.before_attention(stream, found, before, qkv, *preparation, stored_bits(heads))
            attended = stored_bits(kv.attend(layer, *heads.split(self.splits, dim=1)))
            return kernels.after_attention(stream, attended.reshape(n, -1), out, after, up, down)
        normed = torch.empty(stream.shape, dtype=dtype)
        kernels.add_and_norm(stream, found, before, stored_bits(normed))
        heads = attention.qkv(normed).view(n, -1, attention.head_dim)
        kernels.norm_and_rotate(stored_bits(heads), *preparation)
        attended = kv.attend(layer, *heads.split(self.splits, dim=1))
        found = stored_bits(attention.out(attended.reshape(n, -1)))
        kernels.add_and_norm(stream, found, after, stored_bits(normed))
        return stored_bits(self.mlp(normed))


class CPUBlocks(Blocks):
    """All layers."""

    def forward(self, x: Tensor, angles: dict[Rotation | None, Angles | None], kv: KVCache) -> Tensor:
        """See `Blocks`."""
        x = x.clone()
        stream = stored_bits(x)
        none, found = np.empty((len(x), 0), stream.dtype), stream[:0]
        tables = {
            kind: tuple(map(stored_bits, pair)) if pair else (none, none) for kind, pair in angles.items()
        }
        for layer, block in enumerate(self):
            found = block(stream, found, layer, tables[block.rotation], kv)
        return x + torch.from_numpy(found).view(x.dtype)
