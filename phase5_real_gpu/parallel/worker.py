"""The process of one rank: it holds a part of the model and of the cache, and executes the calls of the engine's process."""

import os
import pickle
import signal
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.interrupts import end_with_parent
from phase2_attention_kvcache.model.checkpoint import parse_dtype
from phase2_attention_kvcache.model.sampling import BadLogitsError, SampledTokens, Sampler
from phase3_paged_attention.paging import PagedKVCache, StepLayout
from phase3_paged_attention.sharing import QuantizedKVStorage
from phase4_scheduler.engine import EngineConfig, ModelRunner, StepBatch
from phase5_real_gpu.parallel.collectives import Collectives
from phase5_real_gpu.parallel.placement import Place
from phase5_real_gpu.parallel.shard_loading import load_shard


@dataclass(frozen=True)
class WorkerSettings:
    """Settings of a worker.

    Attributes:
        port: of the store on this machine through which the ranks connect.
        timeout: seconds that a step may take. A rank stops waiting for another one after twice this time.
    """

    place: Place
    folder: Path
    dtype: str
    device: str
    port: int
    num_threads: int
    timeout: float


class Facts(NamedTuple):
    """Sent by a rank once it is ready. weight_bytes: in memory. bytes_read: of the checkpoint's weights."""

    weight_bytes: int
    bytes_read: int


class Failed(NamedTuple):
    """Sent instead of an answer: the error."""

    message: str


class Refused(NamedTuple):
    """Sent instead of tokens: the fields of a `BadLogitsError`."""

    rows: list[int]
    reason: str


class Worker:
    """A rank's part of the model, and the methods that the engine's process calls."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings, place = settings, settings.place
        torch.set_num_threads(settings.num_threads)
        device_type = settings.device
        self.device = f"cuda:{place.rank}" if device_type == "cuda" else "cpu"
        if device_type == "cuda":
            torch.cuda.set_device(self.device)
        world_size = place.tensor_parallel_size * place.num_stages
        # Longer than the engine's process, which can tell which rank has not answered.
        waits = timedelta(seconds=2 * settings.timeout)
        store = dist.TCPStore("127.0.0.1", settings.port, None, False, waits, use_libuv=os.name != "nt")
        backend = "nccl" if device_type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=place.rank, world_size=world_size, timeout=waits)
        self.collectives = Collectives(place, device_type)
        dtype = parse_dtype(settings.dtype)
        self.model, read = load_shard(settings.folder, dtype, self.device, self.collectives)
        held = sum(parameter.nbytes for parameter in self.model.parameters())
        self.facts = Facts(held, read)
        self.hidden: Tensor | None = None  # of the last step

    def initialize_kv_cache(self, config: EngineConfig, num_blocks: int, kv_cache_dtype: str) -> None:
        """Make a runner over as many blocks as the engine has, for this rank's KV heads of this stage's layers."""
        sizes = (num_blocks, config.block_size, self.model.dtype, self.device)
        storage = self.runner = None
        if kv_cache_dtype != "auto":
            storage = QuantizedKVStorage(self.model.config, *sizes, kv_cache_dtype=kv_cache_dtype)
        if self.device != "cpu":
            # Triton takes a second to import.
            from phase5_real_gpu.parallel.rank_runner import RankRunner

            # Transfers between stages are not recorded.
            eager = config.enforce_eager or self.settings.place.num_stages > 1
            config = replace(config, enforce_eager=eager)
            self.runner = RankRunner.create(self.model, config, num_blocks, storage)
        if self.runner is None:
            # Without the compiled kernel: each process would need seconds to load it.
            cache = PagedKVCache(self.model.config, *sizes, use_kernel=False, storage=storage)
            self.runner = ModelRunner(self.model, cache)
        self._shapes = self.runner.prepare()

    def prepare(self) -> str | None:
        """Record the next shape of a decode step, on a GPU. Returns which comes after it; None: none."""
        return next(self._shapes, None)

    def execute(self, token_ids: Tensor, positions: Tensor, layout: StepLayout) -> None:
        """Compute the tokens of a step. Their hidden states stay in the last stage until `logits` or `sample` needs them."""
        rows = (x.tolist() for x in (token_ids, positions, layout.slot_mapping))
        self.hidden = self.runner.execute(
            StepBatch(layout.query_lens, layout.context_lens, layout.block_tables, *rows)
        )

    def _logits(self, rows: Tensor) -> Tensor | None:
        """Scores [len(rows), vocab_size] on the last stage's first rank; None on all others."""
        if not self.settings.place.is_last:
            return None
        return self.model.logits(self.hidden[rows.to(self.hidden.device)])

    @torch.inference_mode()
    def logits(self, rows: Tensor) -> Tensor | None:
        """As `_logits`, for the engine's process."""
        found = self._logits(rows)
        return None if found is None else found.cpu()

    @torch.inference_mode()
    def sample(self, rows: Tensor, eos_token_ids: set[int], *asked: list) -> SampledTokens | Refused | None:
        """The next token of these rows, from the last stage's first rank; None from all others.

        Args:
            asked: `params`, `prompt_ids`, `output_ids` and `generators` of `Sampler.sample`; the last are random numbers.
        """
        logits = self._logits(rows)
        try:
            return None if logits is None else Sampler(eos_token_ids).sample(logits, *asked)
        except BadLogitsError as error:  # a request caused it, not this rank
            return Refused(error.rows, str(error).partition(": ")[2])

    def traffic(self) -> dict[str, tuple[int, int]]:
        """The calls of each kind and the bytes that this rank passed since the last call of `traffic`."""
        counted = self.collectives
        found = {call: (counted.calls[call], counted.nbytes[call]) for call in counted.calls}
        counted.calls.clear()
        counted.nbytes.clear()
        return found


def run_worker(settings: WorkerSettings, connection: Connection) -> None:
    """The process of a rank: send `Facts`, then answer each call (a method of `Worker`, and its arguments).

    Errors are answered with `Failed`. The process ends when the engine's process has closed the pipe or has ended.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C reaches all processes; the engine's decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent()  # while it waits for other ranks it does not see that the pipe has closed
    worker = None
    try:
        while True:
            try:
                if worker is None:
                    worker = Worker(settings)
                    answer = worker.facts
                else:
                    method, arguments = pickle.loads(connection.recv_bytes())
                    answer = getattr(worker, method)(*arguments)
            except (EOFError, ConnectionError):
                raise
            except Exception as error:
                line, *_ = str(error).splitlines() or ["no message"]
                answer = Failed(f"{type(error).__name__}: {line[:200]}")
            connection.send_bytes(pickle.dumps(answer))
            if worker is None:
                return
    except (EOFError, ConnectionError):
        pass  # the engine's process has ended
