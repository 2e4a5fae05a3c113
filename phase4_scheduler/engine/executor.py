"""Where the model runs, if it does not run in the engine's own process.

A model that is too large for one device is spread over several, each with a process of its own. An executor starts them, and
puts something in the place of the model and of its cache that passes on what it is told. The rest of the engine notices nothing.

Phase 5 brings one. It is an entry point of the package, so this phase imports nothing of it.

Source: vllm/v1/executor/abstract.py.
"""

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from labkit.errors import LabError
from labkit.machine import pick_device
from phase2_attention_kvcache.model.transformer import Transformer
from phase3_paged_attention.paging import PagedCache
from phase4_scheduler.engine.config import EngineConfig

EXECUTORS = "inference_lab.executors"  # entry points of pyproject.toml


class ExecutorError(LabError):
    """A process that holds a part of the model is gone: no step can run any more."""


class Executor(Protocol):
    """Holds a model in other processes. It is made as `MultiprocExecutor(path, dtype, device, tensor_parallel_size,
    pipeline_parallel_size, enable_expert_parallel)`.

    Attributes:
        model: stands for it in the engine.
    """

    model: Transformer

    def initialize_kv_cache(
        self, num_blocks: int, block_size: int, num_swap_blocks: int, kv_cache_dtype: str
    ) -> PagedCache:
        """What stands for the cache in the engine; the processes make theirs."""
        ...

    def shutdown(self) -> None:
        """End the processes."""


def default_executor() -> Callable[..., Executor]:
    """The executor that is installed. Raises ValueError if there is none."""
    for found in entry_points(group=EXECUTORS, name="mp"):
        return found.load()
    raise ValueError(
        "no executor is installed for more than one device: pip install -e . in the course's folder (or, in "
        "Python, give distributed_executor_backend=MultiprocExecutor)"
    )


def start_executor(
    config: EngineConfig,
    path: str | Path,
    dtype: str,
    device: str,
    make: Callable[..., Executor] | None = None,
) -> Executor:
    """The processes that `config` asks for, with the model in them. `make`: which executor; None: the one that is installed.

    Raises:
        ValueError: none is installed, the model cannot be split so, or the number of blocks is missing. LabError: no such model
            or device.
    """
    if config.num_blocks is None and pick_device(device) == "cuda":
        raise ValueError(
            "how many blocks the memory of several GPUs holds is not worked out here: set num_blocks"
        )
    sizes = (config.tensor_parallel_size, config.pipeline_parallel_size)
    return (make or default_executor())(path, dtype, device, *sizes, config.enable_expert_parallel)
