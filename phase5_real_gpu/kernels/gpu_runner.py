"""The model runner for a GPU: decode steps as recorded CUDA graphs.

A decode step of a small model is some hundred small operations. Python needs longer to start each of them than
the GPU needs to do it. A CUDA graph is a recording: all operations of a step with their addresses, started
again with a single call.

A recording repeats exactly what was recorded, on the same memory. So:

- Batch sizes are rounded up to a few sizes ("buckets"), and the rest is padding: token 0, no slot, no context.
- What differs from step to step (tokens, positions, slots, lengths, tables) is copied to where it was recorded.
- How contexts are cut is data, too; only the number of splits is in the recording (rounded to a power of two).

Steps with prompts in them are large enough to do without. They run as in Phase 4.

Source: vLLM, vllm/v1/worker/gpu_model_runner.py and vllm/compilation/cuda_graph.py, for the idea and the buckets.
"""

import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

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
    """A step that can be repeated. `result` is where each repetition leaves its hidden states."""

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
    """Of the longest context, rounded up to a power of two: a split is a tile at least."""
    tiles = -(-max_model_len // tile)
    return min(triton.next_power_of_2(tiles), MOST_SPLITS) if tiles > FEW_TILES else 1


class DecodeInputs:
    """Everything that a recorded step of `bucket` requests reads, at addresses that never change.

    numbers, int32, in one piece, so that one copy brings all of it:

        tokens [bucket] | positions [bucket] | slots [bucket] | lens [bucket] | split_tokens [1]
    """

    def __init__(self, bucket: int, max_blocks: int, device: torch.device) -> None:
        row = -(-bucket // ALIGNED) * ALIGNED
        on_gpu = device.type == "cuda"
        self._host = torch.zeros(4 * row + ALIGNED, dtype=torch.int32, pin_memory=on_gpu)
        self._host_tables = torch.zeros(bucket, max_blocks, dtype=torch.int32, pin_memory=on_gpu)
        self._numbers = torch.zeros_like(self._host, device=device)
        self.parts = [part[:bucket] for part in self._numbers[: 4 * row].view(4, row)]  # tokens to lens
        self.split_tokens = self._numbers[4 * row : 4 * row + 1]
        self.tables = torch.zeros_like(self._host_tables, device=device)
        self._lists: list[list[int]] = [[] for _ in range(bucket)]  # what each row of the tables holds
        self._tables_changed = False
        self._copied = torch.cuda.Event() if on_gpu else None  # when the copies from the host are done

    def fill(self, batch: StepBatch, split_tokens: int) -> None:
        """Bring a step's numbers to the device. Rows beyond the scheduled requests are padding."""
        if self._copied is not None:
            self._copied.synchronize()  # the GPU may still be reading what is overwritten below
        for i, blocks in enumerate(batch.block_tables):
            if blocks != self._lists[i]:  # once in block_size steps, as a rule
                self._host_tables.numpy()[i, : len(blocks)] = blocks
                self._lists[i] = list(blocks)
                self._tables_changed = True
        host = self._host.numpy()
        rows = host[:-ALIGNED].reshape(4, -1)  # a view
        rows[:] = 0
        rows[2] = -1
        for row, values in zip(rows, (batch.token_ids, batch.positions, batch.slots, batch.context_lens)):
            row[: len(values)] = values
        host[-ALIGNED] = split_tokens
        self._numbers.copy_(self._host, non_blocking=True)
        if self._tables_changed:
            self.tables.copy_(self._host_tables, non_blocking=True)
            self._tables_changed = False
        if self._copied is not None:
            self._copied.record()


class GPURunner(ModelRunner):
    """A model runner that replays decode steps.

    Args:
        config: its `max_num_seqs`, `max_model_len` (not None) and `seed` are read.
        record: how a step is recorded; None: none is (vLLM calls that "enforce eager"). If it fails, none is from
            then on.
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
        buckets = bucket_sizes(config.max_num_seqs) if record else []
        self._inputs = {bucket: DecodeInputs(bucket, max_blocks, device) for bucket in buckets}
        self.recordings: dict[tuple[int, int], Recording] = {}  # by bucket and number of splits
        num_floats = self.work_bytes(model, config) // 4
        kv_cache.partials = torch.empty(num_floats, dtype=torch.float32, device=device)
        # A graph knows addresses only. What lies there must not be freed, so hold on to it.
        self._recorded: list[DeviceStep] = []

    @classmethod
    def work_bytes(cls, model: Transformer, config: EngineConfig) -> int:
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
        if problem:
            warnings.warn(
                f"{problem}. The engine gathers keys with torch instead, which is slower.", stacklevel=2
            )
            return None
        kv_cache = cls.make_cache(model, config, num_blocks, storage)
        # Which experts of a mixture a step needs, only the step itself finds out: it cannot be replayed for another.
        record = None if config.enforce_eager or model.config.num_experts else CUDAGraphRecorder()
        return cls(model, kv_cache, config, record)

    @classmethod
    def storage_problem(cls, storage: KVStorage | None) -> str | None:
        """Why the kernels cannot read it, in a line; None if they can. (None: as the model computes.)"""
        return None if storage is None else "the kernels read keys and values as the model computes them"

    @classmethod
    def make_cache(
        cls, model: Transformer, config: EngineConfig, num_blocks: int, storage: KVStorage | None
    ) -> TritonPagedKVCache:
        """The cache, over a storage that has no problem."""
        return TritonPagedKVCache(model.config, num_blocks, config.block_size, model.dtype, model.device)

    @torch.inference_mode()
    def execute(self, batch: StepBatch) -> Tensor:
        """As `ModelRunner.execute`. The result is overwritten by the next step."""
        n = len(batch.query_lens)
        bucket = next((size for size in self._inputs if size >= n), None)
        if self._record is None or bucket is None or len(batch.token_ids) > n:
            return super().execute(batch)
        splits = self.kv_cache.splits(batch.context_lens)
        num_splits = triton.next_power_of_2(splits.num_splits)
        try:
            self._inputs[bucket].fill(batch, splits.split_tokens)
            self.complete(self._inputs[bucket].parts[0])
            recording = self._recording(bucket, num_splits)
        except Exception as error:
            hidden = super().execute(batch)  # if this fails as well, recording is not to blame
            self._without_recordings(error)
            return hidden
        recording.replay()
        return recording.result[:n]

    def _recording(self, bucket: int, num_splits: int) -> Recording:
        """Of a step of this shape, made if there is none yet."""
        if (bucket, num_splits) not in self.recordings:
            kv, inputs = self.kv_cache, self._inputs[bucket]
            plan = kv.plan(Splits(num_splits, kv.tile), bucket)
            plan.split_tokens = inputs.split_tokens
            tokens, positions, slots, lens = inputs.parts
            where = DeviceStep(slots, Decodes(slice(0, bucket), inputs.tables, lens, plan), None)

            def step() -> Tensor:
                kv.step = where
                return self.model(tokens, positions, kv)

            self.recordings[bucket, num_splits] = self._record(step)
            self._recorded.append(where)
        return self.recordings[bucket, num_splits]

    def _without_recordings(self, error: Exception) -> None:
        what = f"a step cannot be recorded ({type(error).__name__}: {error})"
        warnings.warn(f"{what}: going on without CUDA graphs", stacklevel=3)
        self._record = None

    @torch.inference_mode()
    def prepare(self) -> Iterator[str]:
        """Record a step of every shape, the largest first: the others then find memory in its pool. All rows are padding."""
        kv = self.kv_cache
        most = 1 if kv.slots_of_card <= 1 else most_splits(self._max_model_len, kv.tile)
        splits = [1 << i for i in range(most.bit_length())]
        shapes = sorted(itertools.product(self._inputs if self._record else [], splits), reverse=True)
        for number, (bucket, num_splits) in enumerate(shapes, 1):
            yield f"CUDA graph {number} of {len(shapes)}: {bucket} requests, {num_splits} splits"
            try:
                self._inputs[bucket].fill(StepBatch([], [], []), kv.tile)
                self._recording(bucket, num_splits)
            except Exception as error:
                return self._without_recordings(error)
