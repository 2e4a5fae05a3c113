"""The engine's side: it starts a process for each rank, sends every call to all of them, and waits for all answers.

    engine's process                        workers, a process each
    scheduler, block manager, sampler       rank 0: half of layers 0 and 1, and of their keys and values
    RemoteModel, RemoteKVCache   -- pipes -->  rank 1: the other half
                                            rank 2, rank 3: layers 2 and 3
                                            between them: torch.distributed

Nothing changes for the scheduler: it allocates the same blocks, and a block has the same number on every rank, with other heads or
other layers in it. The model runner changes only by `ExecutorError`: it turns a step into tensors and calls a model and a cache. Here
these two send the calls to the ranks.

Source: vllm/v1/executor/multiproc_executor.py.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import time
import weakref
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.errors import LabError
from labkit.machine import pick_device
from labkit.models import find_model
from phase2_attention_kvcache.model.checkpoint import parse_dtype
from phase2_attention_kvcache.model.sampling import BadLogitsError, SampledTokens, Sampler, draw_points
from phase3_paged_attention.paging import StepLayout
from phase4_scheduler.engine import EngineConfig
from phase4_scheduler.engine.request import Request
from phase4_scheduler.features.executor import ExecutorError
from phase5_real_gpu.parallel.placement import Place, check_split
from phase5_real_gpu.parallel.shard_loading import open_checkpoint
from phase5_real_gpu.parallel.worker import Facts, Failed, Refused, WorkerSettings, run_worker

START_SECONDS = 300  # enough to read a large checkpoint
GRACE_SECONDS = 1.0  # in which other ranks may still report their errors


class MultiprocExecutor:
    """Runs a model in several processes of this machine.

    Args:
        path_or_name: a folder in the Hugging Face layout, or the name of a model.
        device: "cpu" or "cuda", with a card for each rank.
        enable_expert_parallel: distribute a mixture's experts whole over the ranks that share a layer.
        timeout: seconds a step may take. If a rank has not answered by then, all ranks are ended.

    Attributes:
        model: the engine's model, which calls the ranks.
        facts: of each rank.

    Raises:
        LabError: no such model or device, or fewer cards than ranks.
        ValueError: a model that cannot be split in this way. ExecutorError: a rank did not start.
    """

    def __init__(
        self,
        path_or_name: str | Path,
        dtype: str = "bfloat16",
        device: str = "auto",
        tensor_parallel_size: int = 1,
        pipeline_parallel_size: int = 1,
        enable_expert_parallel: bool = False,
        timeout: float = 60.0,
    ) -> None:
        for name, size in (
            ("tensor_parallel_size", tensor_parallel_size), ("pipeline_parallel_size", pipeline_parallel_size),
        ):  # fmt: skip
            if size < 1:
                raise ValueError(f"{name} is {size}: it must be 1 or more")
        world_size = tensor_parallel_size * pipeline_parallel_size
        folder = find_model(path_or_name)
        device = pick_device(device)
        config, _ = open_checkpoint(folder)
        check_split(config, tensor_parallel_size, pipeline_parallel_size, enable_expert_parallel)
        if device == "cuda" and torch.cuda.device_count() < world_size:
            raise LabError(
                f"{world_size} ranks need a GPU each, and this machine has {torch.cuda.device_count()}: lower "
                "tensor_parallel_size or pipeline_parallel_size"
            )
        # Through it the ranks exchange their addresses. torch for Windows is built without libuv.
        options = dict(is_master=True, wait_for_workers=False, use_libuv=os.name != "nt")
        self._store = dist.TCPStore("127.0.0.1", 0, **options)
        self._timeout = timeout
        self._dead: str | None = None
        num_threads = max(1, torch.get_num_threads() // world_size)
        settings = [
            WorkerSettings(
                Place(rank, tensor_parallel_size, pipeline_parallel_size, enable_expert_parallel),
                folder, dtype, device, self._store.port, num_threads, timeout,
            )
            for rank in range(world_size)
        ]  # fmt: skip
        self._processes, self._connections = start_workers(settings)
        self._stop = weakref.finalize(self, stop_workers, self._processes, self._connections)
        self.facts: list[Facts] = self._answers(START_SECONDS)
        self.model = RemoteModel(self, config, parse_dtype(dtype))

    def initialize_kv_cache(
        self, config: EngineConfig, num_blocks: int, kv_cache_dtype: str
    ) -> RemoteKVCache:
        """Make a cache of these blocks; every rank holds its own heads and layers of them."""
        self.collective_rpc("initialize_kv_cache", config, num_blocks, kv_cache_dtype)
        return RemoteKVCache(self, num_blocks, config.block_size)

    def collective_rpc(self, method: str, *arguments: Any) -> list[Any]:
        """Call this method of every rank's `Worker`. Returns all answers, by rank.

        Raises:
            ExecutorError: a rank died, failed, or did not answer in time. Every later call raises it as well. (Only the answers
                have a time limit: a message larger than the pipe's buffer waits until the rank reads it.)
        """
        if self._dead is not None:
            raise ExecutorError(self._dead)
        message = pickle.dumps((method, arguments))
        for rank, connection in enumerate(self._connections):
            try:
                connection.send_bytes(message)
            except OSError:
                self._give_up([f"rank {rank} {self._end_of(rank)}"])
        return self._answers(self._timeout)

    def _answers(self, seconds: float) -> list[Any]:
        answers: list[Any] = [None] * len(self._connections)
        pending = dict(zip(self._connections, range(len(answers))))
        failures: list[str] = []
        until = time.monotonic() + seconds
        while pending:
            ready = wait(list(pending), max(0.0, until - time.monotonic()))
            if not ready:
                break
            for connection in ready:
                rank = pending.pop(connection)
                try:
                    answers[rank] = pickle.loads(connection.recv_bytes())
                except (EOFError, OSError):
                    # In front: the others fail because this rank has ended, and may answer first.
                    failures.insert(0, f"rank {rank} {self._end_of(rank)}")
                else:
                    if isinstance(answers[rank], Failed):
                        failures.append(f"rank {rank} failed ({answers[rank].message})")
            if failures:  # the others wait for the failed rank and will not answer
                until = min(until, time.monotonic() + GRACE_SECONDS)
        if failures or pending:
            silent = ", ".join(map(str, sorted(pending.values())))
            self._give_up(failures or [f"no answer from rank {silent} within {seconds:g} seconds"])
        return answers

    def _end_of(self, rank: int) -> str:
        self._processes[rank].join(GRACE_SECONDS)
        return f"ended (exit code {self._processes[rank].exitcode})"

    def _give_up(self, failures: list[str]) -> None:
        self._dead = f"{failures[0]}, so no rank can go on: all were ended; build a new engine"
        self.shutdown()
        raise ExecutorError(self._dead)

    def traffic(self) -> list[dict[str, tuple[int, int]]]:
        """By rank: calls and bytes of each kind since the last call of `traffic`."""
        return self.collective_rpc("traffic")

    def shutdown(self) -> None:
        """End all ranks. This also happens when the last reference to this object is gone, and at the program's end."""
        self._dead = self._dead or "the executor was shut down: build a new engine"
        self._stop()


class RemoteModel:
    """Takes the place of the engine's model. The hidden states of a step stay in the last stage; here they are row numbers."""

    device = torch.device("cpu")  # of arguments and results

    def __init__(self, executor: MultiprocExecutor, config: Any, dtype: torch.dtype) -> None:
        self.executor, self.config, self.dtype = executor, config, dtype

    def __call__(self, token_ids: Tensor, positions: Tensor, kv: RemoteKVCache) -> Tensor:
        """Compute the tokens of a step. Returns the numbers of its rows, [N, 1]."""
        self.executor.collective_rpc("execute", token_ids, positions, kv.layout)
        return torch.arange(len(token_ids))[:, None]

    def prepare(self) -> str | None:
        """See `Worker.prepare`. All ranks record the same shapes in the same order."""
        return self.executor.collective_rpc("prepare")[0]

    def logits(self, hidden: Tensor) -> RemoteLogits:
        """Scores [len(hidden), vocab_size] for rows of the last step."""
        return RemoteLogits(self.executor, hidden[:, 0])


class RemoteLogits:
    """Logits that are on a rank. Reading or changing them copies them here; `sample` copies only the tokens.

    Attributes:
        stay: whether they are still on the rank only.
    """

    def __init__(self, executor: MultiprocExecutor, rows: Tensor) -> None:
        self._executor, self._rows = executor, rows
        self._here: Tensor | None = None

    @property
    def stay(self) -> bool:
        return self._here is None

    def _ask(self, method: str, *arguments: Any) -> Any:
        answers = self._executor.collective_rpc(method, self._rows, *arguments)
        return next(answer for answer in answers if answer is not None)

    def fetch(self) -> Tensor:
        if self._here is None:
            self._here = self._ask("logits")
        return self._here

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fetch(), name)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Tensor:
        return self.fetch()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self.fetch()[index] = value

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        args = [a.fetch() if isinstance(a, cls) else a for a in args]
        return function(*args, **(kwargs or {}))

    def sample(self, sampler: Sampler, requests: Sequence[Request]) -> SampledTokens:
        """As `Sampler.sample`. The random numbers are drawn here, from the requests' own generators and from the sampler's.

        Token ids are sent only for a request whose parameters need them; of the others only their number.
        """
        params = [r.params for r in requests]
        drawn = [i for i, p in enumerate(params) if not p.greedy]
        generators = [requests[i].generator for i in drawn]
        used = {id(g): g for g in (sampler.generator, *generators) if g is not None}.values()
        before = [generator.get_state() for generator in used]
        points: list[float | None] = [None] * len(requests)
        for i, point in zip(drawn, draw_points(generators, sampler.generator).tolist(), strict=True):
            points[i] = point
        looks = [r.params.changes_logits(len(r.output_token_ids)) for r in requests]
        prompts = [r.prompt_token_ids if look else () for r, look in zip(requests, looks)]
        outputs = [
            r.output_token_ids if look else range(len(r.output_token_ids)) for r, look in zip(requests, looks)
        ]
        answer = self._ask("sample", sampler.eos_token_ids, params, prompts, outputs, points)
        if isinstance(answer, Refused):
            for generator, state in zip(used, before):
                generator.set_state(state)
            raise BadLogitsError(*answer)
        return answer


class RemoteKVCache:
    """Takes the place of the engine's cache."""

    def __init__(self, executor: MultiprocExecutor, num_blocks: int, block_size: int) -> None:
        self.executor, self.num_blocks, self.block_size = executor, num_blocks, block_size
        self.layout: StepLayout | None = None

    def begin_step(self, layout: StepLayout) -> None:
        self.layout = layout


def start_workers(settings: Sequence[WorkerSettings]) -> tuple[list[BaseProcess], list[Connection]]:
    """Start a process for each rank, with a pipe to it. All are forked from one process that has imported torch."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([run_worker.__module__])
    processes, connections = [], []
    for own in settings:
        ours, theirs = context.Pipe()
        process = context.Process(target=run_worker, args=(own, theirs), daemon=True)
        process.start()
        theirs.close()  # so that the pipe ends with the worker
        processes.append(process)
        connections.append(ours)
    return processes, connections


def stop_workers(processes: Sequence[BaseProcess], connections: Sequence[Connection]) -> None:
    """Close the pipes, which ends every rank that reads them. A rank that hangs is killed."""
    for connection in connections:
        connection.close()
    for process in processes:
        process.join(0.2)
        if process.is_alive():
            process.kill()
            process.join()
