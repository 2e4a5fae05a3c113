"""`TritonPagedKVCache`: the seam's fourth object. Keys and values lie in blocks, and kernels read them in place.

The model calls `kv.attend`, as it did in Phase 2. Requests with one new token, or a few (drafts to be verified), go
through `paged_decode`, those with more through `paged_prefill`; a step may hold both.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from phase2_attention_kvcache.model.caches import attention_rules
from phase2_attention_kvcache.model.config import ModelConfig
from phase3_paged_attention.paging import BlockCopy, KVStorage, StepLayout, pad_tables
from phase5_real_gpu.kernels.decode_kernel import DecodePlan, paged_decode, program_slots, tile_tokens
from phase5_real_gpu.kernels.kernel_checks import check_cache
from phase5_real_gpu.kernels.prefill_kernel import paged_prefill
from phase5_real_gpu.kernels.split_rule import Splits, choose_splits
from phase5_real_gpu.kernels.write_kv_kernel import write_kv

Rows = slice | Tensor  # which rows of the step: side by side, or one by one

ALIGNED = 4  # int32s in 16 bytes. Triton compiles a kernel anew for an address that is not a multiple of 16.


class Decodes(NamedTuple):
    """The rows of a step that are decoded. tables: [B, most blocks] int32; lens: [B] int32."""

    rows: Rows
    tables: Tensor
    lens: Tensor
    plan: DecodePlan


class Prefills(NamedTuple):
    """Those with more. starts: [B + 1] int32, counted among their own rows."""

    rows: Rows
    tables: Tensor
    starts: Tensor
    lens: Tensor


class DeviceStep(NamedTuple):
    """What all layers of a step need, on the device. slots: [N]."""

    slots: Tensor
    decodes: Decodes | None
    prefills: Prefills | None


class TritonPagedKVCache:
    """Keys and values of many requests in blocks, read in place by the Triton kernels.

    Args: as for `KVStorage`, and
        dtype: also torch.float8_e4m3fn: half the memory of 16 bit, and half the bytes to read.
        compute_dtype: of q, k and v; None: dtype. With an fp8 cache it must be said.
        k_scale, v_scale: what fp8 keys and values are divided by when stored.

    Raises:
        LabError: Triton is not installed. ValueError: a size or number format that the kernels do not take.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        num_swap_blocks: int = 0,
        *,
        compute_dtype: torch.dtype | None = None,
        k_scale: float = 1.0,
        v_scale: float = 1.0,
    ) -> None:
        self.storage = KVStorage(config, num_blocks, block_size, dtype, device, num_swap_blocks)
        self.num_blocks, self.block_size = num_blocks, block_size
        check_cache(self.storage.k_cache[0], self.storage.v_cache[0])
        if not (k_scale > 0 and v_scale > 0):
            raise ValueError(f"k_scale is {k_scale}, v_scale {v_scale}: both must be above 0")
        self.k_scale, self.v_scale = k_scale, v_scale
        self.num_heads, self.num_kv_heads, self.head_dim = (
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
        )
        self.rules = attention_rules(config)
        self.tile = tile_tokens(config.head_dim, (compute_dtype or dtype).itemsize)
        self.slots_of_card = program_slots(self.storage.device)
        self.step: DeviceStep | None = None

    def apply_copies(self, copies: Sequence[BlockCopy]) -> None:
        self.storage.apply_copies(copies)

    def begin_step(self, layout: StepLayout) -> None:
        """Say where the tokens of the next step lie. One upload for everything."""
        lens, parts = layout.context_lens, []
        decodes, prefills = layout.decodes, [i for i, _ in layout.prefills]
        if decodes:
            parts += [pad_tables([layout.block_tables[i] for i in decodes]), layout.decode_lens]
        if prefills:
            starts = np.cumsum([0] + [layout.query_lens[i] for i in prefills])
            parts += [
                pad_tables([layout.block_tables[i] for i in prefills]),
                starts,
                [lens[i] for i in prefills],
            ]
        uploaded = iter(upload(parts, self.storage.device))
        self.step = DeviceStep(
            layout.slot_mapping,
            Decodes(layout.decode_rows, next(uploaded), next(uploaded), self.plan(self.splits(layout.decode_lens), len(decodes)))
            if decodes
            else None,
            Prefills(self._prefill_rows(layout), next(uploaded), next(uploaded), next(uploaded))
            if prefills
            else None,
        )  # fmt: skip

    def splits(self, context_lens: Sequence[int]) -> Splits:
        return choose_splits(context_lens, self.num_kv_heads, self.slots_of_card, self.tile)

    def plan(self, splits: Splits, batch: int) -> DecodePlan:
        return DecodePlan.make(batch, self.num_heads, self.head_dim, splits, self.storage.device)

    def _prefill_rows(self, layout: StepLayout) -> Rows:
        runs = [(start, start + layout.query_lens[i]) for i, start in layout.prefills]
        if all(a[1] == b[0] for a, b in zip(runs, runs[1:])):
            return slice(runs[0][0], runs[-1][1])
        rows = np.concatenate([np.arange(*run) for run in runs])
        return torch.from_numpy(rows).to(self.storage.device)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store the new keys and values in their slots; attend from each new token to those of its own that it may see.

        Args:
            q: [N, num_heads, head_dim]. k, v: [N, num_kv_heads, head_dim].

        Returns:
            [N, num_heads, head_dim].
        """
        keys, values, step = self.storage.k_cache[layer], self.storage.v_cache[layer], self.step
        scales = {"k_scale": self.k_scale, "v_scale": self.v_scale}
        how = scales | self.rules[layer]._asdict()
        # All of them are stored before any is read: a request may read a block that another one fills in
        # this very step.
        write_kv(k, v, keys, values, step.slots, **scales)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if step.decodes:
            rows, tables, lens, plan = step.decodes
            into = out[rows] if isinstance(rows, slice) else None
            found = paged_decode(q[rows], keys, values, tables, lens, plan=plan, out=into, **how)
            if into is None:
                out[rows] = found
        if step.prefills:
            rows, tables, starts, lens = step.prefills
            into = out[rows] if isinstance(rows, slice) else None
            found = paged_prefill(q[rows], keys, values, tables, starts, lens, out=into, **how)
            if into is None:
                out[rows] = found
        return out


def upload(parts: Sequence[np.ndarray | list[int]], device: torch.device) -> list[Tensor]:
    """Bring small integer arrays to the device, all in one copy. Each begins at a multiple of 16 bytes."""
    arrays = [np.asarray(part, dtype=np.int32) for part in parts]
    room = [-(-a.size // ALIGNED) * ALIGNED for a in arrays]
    starts = np.cumsum([0, *room])
    packed = torch.zeros(int(starts[-1]), dtype=torch.int32, pin_memory=device.type == "cuda")
    as_numpy = packed.numpy()
    for a, start in zip(arrays, starts):
        as_numpy[start : start + a.size] = a.reshape(-1)
    packed = packed.to(device, non_blocking=True)
    return [packed[s : s + a.size].view(a.shape) for a, s in zip(arrays, starts)]
