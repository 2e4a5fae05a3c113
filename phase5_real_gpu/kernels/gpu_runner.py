"""The model runner for a GPU: decode steps as recorded CUDA graphs.

A decode step of a small model launches several hundred small operations. Launching one of them from Python takes longer
than running it. A CUDA graph is a recording of all operations of a step with their addresses; a single call replays it.

A recording repeats exactly the recorded operations, on the same memory. So:

- Batch sizes are rounded up to a few sizes ("buckets"). The other rows are padding: token 0, no slot, no context.
- Inputs that differ from step to step (tokens, positions, slots, lengths, tables) are copied to the recorded addresses.
- The split boundaries are inputs, too; only the number of splits, rounded to a power of two, is part of the recording.

Steps with prompts are large enough to run without a graph. They run as in phase 4.

Source: vLLM, vllm/v1/worker/gpu_model_runner.py and vllm/compilation/cuda_graph.py, for the idea and the buckets.
"""

import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from phase2_attention_kvcache.model.transformer import Transformer
from phase3_paged_attention.paging import KVStorage
from phase4_scheduler.engine import EngineConfig, ModelRunner, StepBatch
from phase5_real_gpu.kernels.decode import tile_tokens
from phase5_real_gpu.kernels.split_rule import FEW_TILES, MOST_SPLITS, Splits
from phase5_real_gpu.kernels.triton_kv_cache import ALIGNED, Decodes, DeviceStep, TritonPagedKVCache
from phase5_real_gpu.kernels.triton_setup import INTERPRETED, card_problem, triton

Recorder = Callable[[Callable[[], Tensor]], "Recording"]


@dataclass
class Recording:
    """A step that can be replayed. Each replay writes its hidden states to `result`."""

    replay: Callable[[], object]
    result: Tensor


class CUDAGraphRecorder:
    """Records steps as CUDA graphs. They are replayed one at a time, so all may use the same memory pool."""

    def __init__(self) -> None:
        self._pool = self._beside = None

    def __call__(self, step: Callable[[], Tensor]) -> Recording:
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        usual = torch.cuda.current_stream()
        try:
            # Nothing may be compiled or initialised while recording, so the step runs twice before.
            # One stream for all: cuBLAS keeps memory for each stream that it has seen.
            beside = self._beside = self._beside or torch.cuda.Stream()
            beside.wait_stream(usual)
            with torch.cuda.stream(beside):
                for _ in range(2):
                    step()
            usual.wait_stream(beside)
            graph = torch.cuda.CUDAGraph()
            # thread_local: what another thread does on the GPU meanwhile is not recorded.
            with torch.cuda.graph(graph, pool=self._pool, stream=beside, capture_error_mode="thread_local"):
                result = step()
        finally:
            torch.cuda.set_stream(usual)  # a recording that fails leaves its own stream behind
        return Recording(graph.replay, result)


def bucket_sizes(max_num_seqs: int) -> list[int]:
    """1, 2, 4, 8, then every 8 up to 64, then every 32: at most 7 rows of padding up to 64 requests, at most 31 above."""
    sizes = {1, 2, 4, *range(8, 65, 8), *range(96, max_num_seqs, 32), max_num_seqs}
    return sorted(size for size in sizes if size <= max_num_seqs)


def most_splits(max_model_len: int, tile: int) -> int:
    """The largest number of splits of the longest context, rounded up to a power of two; a split has at least one tile."""
    tiles = -(-max_model_len // tile)
    return min(triton.next_power_of_2(tiles), MOST_SPLITS) if tiles > FEW_TILES else 1


class DecodeInputs:
    """All inputs of recorded steps, at fixed addresses. Steps with fewer than `most` requests read the first rows.

    numbers, int32, contiguous, so that one copy transfers all of them:

        tokens [most] | positions [most] | slots [most] | lens [most] | split_tokens [1]
    """

    def __init__(self, most: int, max_blocks: int, device: torch.device) -> None:
        row = -(-most // ALIGNED) * ALIGNED
        pinned = dict(dtype=torch.int32, pin_memory=device.type == "cuda")
        self._host = torch.zeros(4 * row + ALIGNED, **pinned)
        self._numbers = torch.zeros_like(self._host, device=device)
        self.parts = self._numbers[: 4 * row].view(4, row)  # tokens to lens
        self.split_tokens = self._numbers[4 * row : 4 * row + 1]
        self.tables = torch.zeros(most, max_blocks, dtype=torch.int32, device=device)
        # The same on the host, as an array and as lists. Their columns in use go over packed, one row behind the other.
        self._known = np.zeros(self.tables.shape, dtype=np.int32)
        self._lists: list[list[int]] = [[] for _ in range(most)]
        self._packed = torch.zeros(self.tables.numel(), **pinned)
        self._arrived = torch.zeros_like(self._packed, device=device)
        self._copied = torch.cuda.Event() if device.type == "cuda" else None  # when they have left the host

    def fill(self, batch: StepBatch, split_tokens: int) -> None:
        """Copy a step's inputs to the device. Rows after the scheduled requests are padding."""
        if self._copied is not None:
            self._copied.synchronize()  # the GPU may still be reading what is overwritten below
        host = self._host.numpy()
        rows = host[:-ALIGNED].reshape(4, -1)  # a view
        rows[:] = [[0], [0], [-1], [0]]
        for row, values in zip(rows, (batch.token_ids, batch.positions, batch.slots, batch.context_lens)):
            row[: len(values)] = values
        host[-ALIGNED] = split_tokens
        self._numbers.copy_(self._host, non_blocking=True)
        changed = [i for i, blocks in enumerate(batch.block_tables) if blocks != self._lists[i]]
        for i in changed:  # once in block_size steps, as a rule
            self._lists[i] = list(batch.block_tables[i])
            self._known[i, : len(self._lists[i])] = self._lists[i]
        if changed:
            n, width = len(batch.block_tables), max(map(len, batch.block_tables))
            packed, arrived = (x[: n * width].view(n, width) for x in (self._packed, self._arrived))
            packed.numpy()[:] = self._known[:n, :width]
            self.tables[:n, :width] = arrived.copy_(packed, non_blocking=True)
        if self._copied is not None:
            self._copied.record()


class GPURunner(ModelRunner):
    """A model runner that replays decode steps.

    Args:
        config: its `max_num_seqs`, `max_model_len` (not None) and `seed` are read.
        record: how to record a step; None: steps are not recorded ("enforce eager" in vLLM). If recording fails, no
            further steps are recorded.
    """

    def __init__(
        self,
        model: Transformer,
        kv_cache: TritonPagedKVCache,
        config: EngineConfig,
        record: Recorder | None = None,
    ) -> None:
        super().__init__(model, kv_cache, config.seed)
        self._record = record
        self._max_model_len = config.max_model_len
        max_blocks, device = -(-config.max_model_len // kv_cache.block_size), kv_cache.storage.device
        self._buckets = bucket_sizes(config.max_num_seqs)
        self.recordings: dict[tuple[int, int], Recording] = {}  # by bucket and number of splits
        num_floats = self.split_bytes(model, config) // 4
        kv_cache.partials = torch.empty(num_floats, dtype=torch.float32, device=device)
        # A graph knows addresses only. What lies there must not be freed, so hold on to it.
        self._recorded: list[DeviceStep] = []
        try:
            self._inputs = record and DecodeInputs(config.max_num_seqs, max_blocks, device)
        except RuntimeError as error:  # no memory, or none that can be pinned
            self._inputs = self.go_on_without(error)

    @classmethod
    def split_bytes(cls, model: Transformer, config: EngineConfig) -> int:
        """Memory for the splits of the largest step; all steps share it, since they run one after the other."""
        shape = model.config
        splits = most_splits(config.max_model_len, tile_tokens(shape.head_dim, model.dtype.itemsize))
        return 4 * config.max_num_seqs * shape.num_heads * splits * (shape.head_dim + 1) * (splits > 1)

    @classmethod
    def create(
        cls, model: Transformer, config: EngineConfig, num_blocks: int, storage: KVStorage | None = None
    ) -> Self | None:
        """None, with a warning, if the kernels cannot run on this card, or not over this storage."""
        problem = cls.storage_problem(storage) or card_problem(model.dtype)
        if INTERPRETED and model.device.type == "cuda":
            problem = "TRITON_INTERPRET is set, and interpreting on a GPU takes forever: unset it"
        try:
            kv_cache = None if problem else cls.make_cache(model, config, num_blocks, storage)
        except ValueError as error:  # a shape that the kernels do not take
            problem = str(error)
        if problem:
            warnings.warn(
                f"{problem}. The engine gathers keys with torch instead, which is slower.", stacklevel=2
            )
            return None
        # Which experts of a mixture a step needs, only the step itself finds out: it cannot be replayed for another.
        record = None if config.enforce_eager or model.config.num_experts else CUDAGraphRecorder()
        return cls(model, kv_cache, config, record)

    @classmethod
    def storage_problem(cls, storage: KVStorage | None) -> str | None:
        """One line that says why the kernels cannot read this storage; None if they can. (storage None: the model's dtype.)"""
        return None if storage is None else "the kernels read keys and values as the model computes them"

    @classmethod
    def make_cache(
        cls, model: Transformer, config: EngineConfig, num_blocks: int, storage: KVStorage | None
    ) -> TritonPagedKVCache:
        """The cache, over a storage without a problem."""
        return TritonPagedKVCache(model.config, num_blocks, config.block_size, model.dtype, model.device)

    @torch.inference_mode()
    def execute(self, batch: StepBatch) -> Tensor:
        """As `ModelRunner.execute`. The result is overwritten by the next step."""
        n = len(batch.query_lens)
        bucket = next((size for size in self._buckets if size >= n), None)
        if self._inputs is None or bucket is None or len(batch.token_ids) > n:
            return super().execute(batch)
        splits = self.kv_cache.splits(batch.context_lens)
        num_splits = triton.next_power_of_2(splits.num_splits)
        if self._record is None and (bucket, num_splits) not in self.recordings:
            return super().execute(batch)
        try:
            self._inputs.fill(batch, splits.split_tokens)
            self.complete(self._inputs.parts[0])
            recording = self._recording(bucket, num_splits)
        except Exception as error:
            return self.go_on_without(error, batch)
        recording.replay()
        return recording.result[:n]

    def _recording(self, bucket: int, num_splits: int) -> Recording:
        """The recording for a step of this shape, made if there is none yet."""
        if (bucket, num_splits) not in self.recordings:
            kv, inputs = self.kv_cache, self._inputs
            plan = kv.plan(Splits(num_splits, kv.tile), bucket)
            plan.split_tokens = inputs.split_tokens
            tokens, positions, slots, lens = (part[:bucket] for part in inputs.parts)
            where = DeviceStep(slots, Decodes(slice(0, bucket), inputs.tables[:bucket], lens, plan), None)

            def step() -> Tensor:
                kv.step = where
                return self.model(tokens, positions, kv)

            self.recordings[bucket, num_splits] = self._record(step)
            self._recorded.append(where)
        return self.recordings[bucket, num_splits]

    def go_on_without(self, error: Exception, batch: StepBatch | None = None) -> Tensor | None:
        """Record no more steps. Returns the result of this step without a recording; if it fails, too, recording is not the cause."""
        hidden = super().execute(batch) if batch else None
        what = f"a step cannot be recorded ({type(error).__name__}: {error})"
        warnings.warn(f"{what}: going on without further CUDA graphs", stacklevel=3)
        self._record = None
        return hidden

    @torch.inference_mode()
    def prepare(self) -> Iterator[str]:
        """Record a step of every shape, the largest first, so that the others reuse its memory pool. All rows are padding."""
        kv = self.kv_cache
        most = 1 if kv.slots_of_card <= 1 else most_splits(self._max_model_len, kv.tile)
        splits = [1 << i for i in range(most.bit_length())]
        shapes = sorted(itertools.product(self._buckets if self._record else [], splits), reverse=True)
        for number, (bucket, num_splits) in enumerate(shapes, 1):
            yield f"CUDA graph {number} of {len(shapes)}: {bucket} requests, {num_splits} splits"
            try:
                self._inputs.fill(StepBatch([], [], []), kv.tile)
                self._recording(bucket, num_splits)
            except Exception as error:
                return self.go_on_without(error)
