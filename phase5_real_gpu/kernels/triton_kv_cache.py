"""`TritonPagedKVCache`, the fourth cache behind `kv.attend`: keys and values are in blocks, and kernels read them in place.

The model calls `kv.attend`, as in phase 2. Requests with one new token or a few (drafts to be verified) are computed
by `paged_decode`, requests with more by `paged_prefill`; a step may contain both.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from phase2_attention_kvcache.model.caches import attention_rules
from phase2_attention_kvcache.model.config import ModelConfig
from phase3_paged_attention.paging import KVStorage, StepLayout, pad_tables
from phase5_real_gpu.kernels.decode import DecodePlan, paged_decode, program_slots, tile_tokens
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

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, **options: Any) -> Tensor:
        return paged_decode(q, keys, values, self.tables, self.lens, plan=self.plan, **options)


class Prefills(NamedTuple):
    """The rows of requests with more new tokens. starts: [B + 1] int32, counted among their own rows."""

    rows: Rows
    tables: Tensor
    starts: Tensor
    lens: Tensor

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, **options: Any) -> Tensor:
        return paged_prefill(q, keys, values, self.tables, self.starts, self.lens, **options)


class DeviceStep(NamedTuple):
    """The tensors that all layers of a step need, on the device. slots: [N]."""

    slots: Tensor
    decodes: Decodes | None
    prefills: Prefills | None


class TritonPagedKVCache:
    """Keys and values of many requests in blocks, read in place by the Triton kernels.

    Args: as for `KVStorage`, and
        compute_dtype: of q, k and v; None: dtype. storage: of that shape; None: a new one.

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
        *,
        compute_dtype: torch.dtype | None = None,
        storage: KVStorage | None = None,
    ) -> None:
        self.storage = storage or KVStorage(config, num_blocks, block_size, dtype, device)
        self.num_blocks, self.block_size = num_blocks, block_size
        check_cache(self.storage.k_cache[0], self.storage.v_cache[0])
        self.config = config
        self.options = [rule._asdict() for rule in attention_rules(config)]  # of the attention, by layer
        self.tile = tile_tokens(config.head_dim, (compute_dtype or dtype).itemsize)
        self.slots_of_card = program_slots(config.num_heads, self.storage.k_cache[0], compute_dtype or dtype)
        self.step: DeviceStep | None = None
        self.partials: Tensor | None = None  # float32: memory that all plans share

    def begin_step(self, layout: StepLayout) -> None:
        """Set the slots and block tables of the next step, in a single upload."""
        lens, decodes, prefills = layout.context_lens, layout.decodes, [i for i, _ in layout.prefills]
        tables = [
            pad_tables([layout.block_tables[i] for i in which]) if which else []
            for which in (decodes, prefills)
        ]
        starts = np.cumsum([0] + [layout.query_lens[i] for i in prefills])
        parts = [tables[0], layout.decode_lens, tables[1], starts, [lens[i] for i in prefills]]
        of_decodes, of_prefills = (found := upload(parts, self.storage.device))[:2], found[2:]
        self.step = DeviceStep(layout.slot_mapping, None, None)
        if decodes:
            plan = self.plan(self.splits(layout.decode_lens), len(decodes))
            self.step = self.step._replace(decodes=Decodes(layout.decode_rows, *of_decodes, plan))
        if prefills:
            self.step = self.step._replace(prefills=Prefills(self._prefill_rows(layout), *of_prefills))

    def splits(self, context_lens: Sequence[int]) -> Splits:
        return choose_splits(context_lens, self.config.num_kv_heads, self.slots_of_card, self.tile)

    def plan(self, splits: Splits, batch: int) -> DecodePlan:
        shape = (batch, self.config.num_heads, self.config.head_dim)
        return DecodePlan.make(*shape, splits, self.storage.device, self.partials)

    def _prefill_rows(self, layout: StepLayout) -> Rows:
        runs = [(start, start + layout.query_lens[i]) for i, start in layout.prefills]
        if all(a[1] == b[0] for a, b in zip(runs, runs[1:])):
            return slice(runs[0][0], runs[-1][1])
        rows = np.concatenate([np.arange(*run) for run in runs])
        return torch.from_numpy(rows).to(self.storage.device)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store the new keys and values in their slots; compute attention of each new token over its request's tokens up to itself.

        Args:
            q, and the result: [N, num_heads, head_dim]. k, v: [N, num_kv_heads, head_dim].
        """
        # All of them are stored before any is read: a request may read a block that another one fills in
        # this very step.
        self.store(k, v, self.storage.k_cache[layer], self.storage.v_cache[layer])
        return self.attend_stored(layer, q)

    def attend_stored(self, layer: int, q: Tensor) -> Tensor:
        """The second half of `attend`: attention over the stored keys and values."""
        keys, values, step = self.storage.k_cache[layer], self.storage.v_cache[layer], self.step
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        for part in filter(None, (step.decodes, step.prefills)):
            in_place = isinstance(part.rows, slice)
            into = out[part.rows] if in_place else None
            found = part.attend(q[part.rows], keys, values, out=into, **self.options[layer])
            if not in_place:
                out[part.rows] = found
        return out

    def store(self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
        """Write a layer's new keys and values into the slots of the step."""
        write_kv(k, v, k_cache, v_cache, self.step.slots)


def upload(parts: Sequence[np.ndarray | list[int]], device: torch.device) -> list[Tensor]:
    """Copy small integer arrays to the device, all in one transfer. Each begins at a multiple of 16 bytes."""
    arrays = [np.asarray(part, dtype=np.int32) for part in parts]
    room = [-(-a.size // ALIGNED) * ALIGNED for a in arrays]
    starts = np.cumsum([0, *room])
    packed = torch.zeros(int(starts[-1]), dtype=torch.int32, pin_memory=device.type == "cuda")
    as_numpy = packed.numpy()
    for a, start in zip(arrays, starts):
        as_numpy[start : start + a.size] = a.reshape(-1)
    packed = packed.to(device, non_blocking=True)
    return [packed[s : s + a.size].view(a.shape) for a, s in zip(arrays, starts)]
