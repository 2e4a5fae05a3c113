"""`PagedKVCache`: the third object at the seam. Keys and values of many requests, in blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from phase2_attention_kvcache.model.blocks import ModelConfig
from phase2_attention_kvcache.model.caches import causal_attention
from phase3_paged_attention.paging.block_table import BlockCopy

try:
    from phase3_paged_attention.paging.cpu_kernel import paged_decode_cpu
except (ImportError, RuntimeError):  # no numba, or no folder for its cache: slower, and equally right
    paged_decode_cpu = None


@dataclass
class StepLayout:
    """Who the tokens of a step belong to, and where their keys and values lie.

    Attributes:
        query_lens: tokens of each request in this step.
        context_lens: tokens of each request after this step.
        block_tables: physical blocks of each request.
        slot_mapping: for each of the N tokens, block_id * block_size + offset.
    """

    query_lens: list[int]
    context_lens: list[int]
    block_tables: list[list[int]]
    slot_mapping: Tensor

    # Worked out once a step; all layers use it.
    decodes: list[int] = field(init=False)  # requests with a single new token
    prefills: list[tuple[int, int]] = field(init=False)  # (request, its first row)
    decode_rows: Tensor | slice = field(init=False)

    def __post_init__(self) -> None:
        self.decodes, self.prefills, rows, start = [], [], [], 0
        for i, query_len in enumerate(self.query_lens):
            if query_len == 1:
                self.decodes.append(i)
                rows.append(start)
            elif query_len > 1:
                self.prefills.append((i, start))
            start += query_len
        if rows and rows[-1] - rows[0] + 1 == len(rows):
            self.decode_rows = slice(rows[0], rows[-1] + 1)  # side by side: no need to gather them
        else:
            self.decode_rows = torch.tensor(rows, dtype=torch.long)


class PagedKVCache:
    """Keys and values of many requests, in blocks; the object behind `kv.attend` from here on.

    Args:
        config: shape of the model.
        num_blocks, block_size: size of the cache. Block 0 is the null block.
        dtype, device: of the keys and values.
        num_swap_blocks: blocks of main memory for requests that had to make room.
        use_kernel: False copies blocks together to decode, even where the compiled kernel could run.

    Before each step call `begin_step` with that step's layout.

    Layout in memory, for each layer: k_cache, v_cache [num_blocks, block_size, num_kv_heads, head_dim]
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        num_swap_blocks: int = 0,
        use_kernel: bool = True,
    ) -> None:
        # One tensor for everything, so that copying a block copies it in all layers at once.
        shape = (2, config.num_layers, num_blocks, block_size, config.num_kv_heads, config.head_dim)
        self.data = torch.empty(shape, dtype=dtype, device=device)
        swap_shape = (2, config.num_layers, num_swap_blocks, *shape[3:])
        self.swap = torch.empty(swap_shape, dtype=dtype)
        self.k_cache, self.v_cache = self.data[0].unbind(0), self.data[1].unbind(0)
        self.num_blocks, self.block_size = num_blocks, block_size
        self.num_kv_heads, self.head_dim = config.num_kv_heads, config.head_dim
        self.scale = config.head_dim**-0.5
        self.layout: StepLayout | None = None
        # The compiled kernel reads the memory of the tensors as numpy arrays (bfloat16 as its 16 bits).
        self._compiled = (
            use_kernel
            and paged_decode_cpu is not None
            and self.data.device.type == "cpu"
            and dtype in (torch.float32, torch.bfloat16)
        )
        self._room_for_rows = [self.data.new_empty(0) for _ in range(2)]
        if self._compiled:
            import numba

            # As many threads as torch, and never more. (Starting numba's threads sets torch's number, too,
            # since both have the same ones. Put it back.)
            threads = torch.get_num_threads()
            numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
            torch.set_num_threads(threads)
            bits = self.data.view(torch.uint16) if dtype == torch.bfloat16 else self.data
            self._k_numpy, self._v_numpy = list(bits[0].numpy()), list(bits[1].numpy())

    def apply_copies(self, copies: Sequence[BlockCopy]) -> None:
        """Copy blocks, and move them to and from main memory, in the order given."""
        for kind, source, target in copies:
            if kind == "copy":
                self.data[:, :, target] = self.data[:, :, source]
            elif kind == "out":
                self.swap[:, :, target] = self.data[:, :, source].to("cpu")
            else:
                self.data[:, :, target] = self.swap[:, :, source].to(self.data.device)

    def begin_step(self, layout: StepLayout) -> None:
        """Say where the tokens of the next step lie."""
        self.layout = layout
        device = self.data.device
        # For prompts of which a part was computed before: their blocks, on the device, once for all layers.
        self._prompt_blocks = {
            i: torch.tensor(
                layout.block_tables[i][: -(-layout.context_lens[i] // self.block_size)], device=device
            )
            for i, _ in layout.prefills
            if layout.context_lens[i] > layout.query_lens[i]
        }
        if isinstance(layout.decode_rows, Tensor):
            layout.decode_rows = layout.decode_rows.to(device)
        if not layout.decodes:
            return
        lens = [layout.context_lens[i] for i in layout.decodes]
        tables = [layout.block_tables[i] for i in layout.decodes]
        padded = np.zeros((len(tables), max(map(len, tables))), dtype=np.int32)  # 0: the null block
        for row, table in zip(padded, tables, strict=True):
            row[: len(table)] = table
        self._decode_tables, self._decode_lens = padded, np.array(lens, dtype=np.int32)
        if not self._compiled:
            self._pad_decodes(padded, lens)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store the new keys and values in their slots; attend from each new token to all of its own.

        Args:
            q: [N, num_heads, head_dim]. k, v: [N, num_kv_heads, head_dim].

        Returns:
            [N, num_heads, head_dim].
        """
        layout = self.layout
        # All of them are stored before any is read: a request may read a block that another one fills in
        # this very step.
        self.k_cache[layer].view(-1, self.num_kv_heads, self.head_dim).index_copy_(0, layout.slot_mapping, k)
        self.v_cache[layer].view(-1, self.num_kv_heads, self.head_dim).index_copy_(0, layout.slot_mapping, v)
        if not layout.prefills:
            return self._decode(layer, q)
        out = torch.empty_like(q)
        if layout.decodes:
            out[layout.decode_rows] = self._decode(layer, q[layout.decode_rows])
        for i, start in layout.prefills:
            rows = slice(start, start + layout.query_lens[i])
            keys, values = k[rows], v[rows]
            if i in self._prompt_blocks:
                keys, values = self._gather(layer, self._prompt_blocks[i], layout.context_lens[i])
            out[rows] = causal_attention(q[rows], keys, values)
        return out

    def _gather(self, layer: int, blocks: Tensor, context_len: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one request in one row. For a prompt the copy is small beside the work."""
        keys = self.k_cache[layer].index_select(0, blocks).flatten(0, 1)[:context_len]
        values = self.v_cache[layer].index_select(0, blocks).flatten(0, 1)[:context_len]
        return keys, values

    # ------------------------------------------------------------------ one new token a request

    def _decode(self, layer: int, q: Tensor) -> Tensor:
        """q: [B, num_heads, head_dim], one token of each request of `layout.decodes`."""
        if not self._compiled:
            return self._decode_by_gather(layer, q)
        out = torch.empty(q.shape, dtype=torch.float32)
        # A few items of work for each core, and no more: merging parts costs something as well.
        num_splits = max(1, -(-2 * torch.get_num_threads() // len(q)))
        paged_decode_cpu(
            q.float().contiguous().numpy(),
            self._k_numpy[layer],
            self._v_numpy[layer],
            self._decode_tables,
            self._decode_lens,
            np.float32(self.scale),
            num_splits,
            out.numpy(),
        )
        return out.to(q.dtype)

    def _pad_decodes(self, tables: np.ndarray, lens: list[int]) -> None:
        """What the gather needs: which slot holds which token, and which places are padding."""
        device = self.data.device
        places = torch.arange(tables.shape[1] * self.block_size, device=device)
        self._padded_tables = torch.from_numpy(tables).flatten().to(device)
        holds_token = places < torch.tensor(lens, device=device)[:, None]  # [B, places]
        self._padded_mask = holds_token[:, None, None, :]
        self._padding = (~holds_token).flatten().nonzero()[:, 0]

    def _gather_padded(self, blocks: Tensor, room: Tensor) -> Tensor:
        """[B, num_kv_heads, places, head_dim]: every request's blocks in one row, 0 where there is no token."""
        # Into rows that are there from the layer before: fresh memory has to be cleared by the system first,
        # which takes several times as long as the copy itself.
        size = len(self._padded_tables) * blocks[0].numel()
        if room.numel() < size:
            room.resize_(size)
        rows = room[:size].view(-1, *blocks.shape[1:])
        torch.index_select(blocks, 0, self._padded_tables, out=rows)
        rows = rows.flatten(0, 1)  # [B * places, num_kv_heads, head_dim]
        # Memory that was never written may hold NaN, which no mask takes away: the mask is added to a score,
        # NaN + (-inf) is NaN; a masked value counts with weight 0, 0 x NaN is NaN. So wipe it.
        rows.index_fill_(0, self._padding, 0)
        return rows.view(len(self._decode_lens), -1, *rows.shape[1:]).transpose(1, 2)

    def _decode_by_gather(self, layer: int, q: Tensor) -> Tensor:
        """Where there is no compiled kernel: copy all blocks together, then attend."""
        batch, num_heads, head_dim = q.shape
        keys = self._gather_padded(self.k_cache[layer], self._room_for_rows[0])
        values = self._gather_padded(self.v_cache[layer], self._room_for_rows[1])
        rows = q.view(batch, self.num_kv_heads, num_heads // self.num_kv_heads, head_dim)
        out = F.scaled_dot_product_attention(rows, keys, values, attn_mask=self._padded_mask)
        return out.reshape(batch, num_heads, head_dim)
