"""A model in several processes: an executor starts them and represents the model and its cache in the engine.

Changes: where the model runs. The decisions stay the same, and so do the tokens but for rounding.
Attaches to: the loading of the model, and the cache. Phase 5 brings an executor as an entry point of the package, so this
phase imports nothing of it.

Source: vllm/v1/executor/abstract.py.
"""

from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from labkit.checks import whole
from labkit.errors import LabError
from phase2_attention_kvcache.model.sampling import SampledTokens, Sampler
from phase2_attention_kvcache.model.transformer import Transformer
from phase3_paged_attention.paging import PagedCache
from phase4_scheduler.assembly import Feature
from phase4_scheduler.engine.config import EngineConfig
from phase4_scheduler.engine.core import EngineCore, EngineDeadError
from phase4_scheduler.engine.model_runner import ModelRunner
from phase4_scheduler.engine.request import Request

EXECUTORS = "inference_lab.executors"  # entry points of pyproject.toml


class ExecutorError(LabError, EngineDeadError):
    """A process that holds a part of the model is gone: no step can run any more."""


class Executor(Protocol):
    """Holds a model in other processes. It is made as `MultiprocExecutor(path, dtype, device, tensor_parallel_size,
    pipeline_parallel_size, enable_expert_parallel)`.

    Attributes:
        model: represents it in the engine.
    """

    # Its `logits` may stay with the ranks: then they have a method `sample`, see `RemoteRunner`. Its `prepare` does the next
    # piece of what the first steps would wait for, and says which comes then; None: none.
    model: Transformer

    def initialize_kv_cache(self, config: EngineConfig, num_blocks: int, kv_cache_dtype: str) -> PagedCache:
        """Represents the cache in the engine; the processes make theirs."""
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


class RemoteRunner(ModelRunner):
    """Has tokens sampled where the logits are: to bring [64, 128k] of them here would take longer than the step.

    A feature that reads or changes logits gets them all the same; then the tokens are sampled here, from those.
    """

    def next_tokens(self, logits: Any, requests: Sequence[Request]) -> SampledTokens:
        if type(self.sampler) is not Sampler or not getattr(logits, "stay", False):
            return super().next_tokens(logits, requests)
        return logits.sample(self.sampler, requests)

    def prepare(self) -> Iterator[str]:
        return iter(self.model.prepare, None)


class ExecutorCore(EngineCore):
    """
    Args:
        executor: holds the model.
    """

    def __init__(self, *args, executor: Executor, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.executor = executor

    def shutdown(self) -> None:
        super().shutdown()
        self.executor.shutdown()


class Executors(Feature):
    """Settings:

    tensor_parallel_size, pipeline_parallel_size: devices that share each layer, and groups of them that share the layers
        (phase5_real_gpu/chapters/10-several-gpus.md).
    enable_expert_parallel: the devices that share a layer of a mixture hold whole experts, and not a slice of each.
    distributed_executor_backend: makes the executor; None: the one that is installed.
    """

    settings = {
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "enable_expert_parallel": False,
        "distributed_executor_backend": None,
        "kv_cache_dtype": "auto",
        "executor": None,
    }
    runner, core = RemoteRunner, ExecutorCore

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name in ("tensor_parallel_size", "pipeline_parallel_size"):
            whole(1)(name, getattr(self, name))
        self._on_gpus = False

    @property
    def world_size(self) -> int:
        """Devices in all."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    def load_model(self, path: Path, dtype: str, device: str) -> Transformer | None:
        if self.world_size == 1:
            return None
        make = self.distributed_executor_backend or default_executor()
        sizes = (self.tensor_parallel_size, self.pipeline_parallel_size)
        self._on_gpus = device == "cuda"
        self.executor = make(path, dtype, device, *sizes, self.enable_expert_parallel)
        return self.executor.model

    def is_on(self, model: Transformer, config: EngineConfig, features: Sequence[Feature]) -> bool:
        if self.world_size > 1 and self.executor is None:
            raise ValueError(
                f"{self.world_size} devices are asked for, and this model lies in one process: use "
                "LLMEngine.from_pretrained, or give an executor"
            )
        if self._on_gpus and config.num_blocks is None:
            raise ValueError(
                "how many blocks the memory of several GPUs holds is not worked out here: set num_blocks"
            )
        return self.executor is not None

    def kv_cache(self, model: Transformer, config: EngineConfig, num_blocks: int) -> PagedCache:
        return self.executor.initialize_kv_cache(config, num_blocks, self.kv_cache_dtype)

    def arguments(self, part: str) -> dict[str, Any]:
        return {"executor": self.executor} if part == "core" else {}
