"""An inference engine: requests, a scheduler, a model runner, and the loop around them."""

from phase4_scheduler.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from phase4_scheduler.engine.engine import LLMEngine
from phase4_scheduler.engine.events import Event
from phase4_scheduler.engine.executor import Executor, ExecutorError
from phase4_scheduler.engine.model_runner import ModelRunner
from phase4_scheduler.engine.outputs import CompletionOutput, RequestMetrics, RequestOutput
from phase4_scheduler.engine.request import Request, RequestStatus
from phase4_scheduler.engine.scheduler import Scheduler
from phase4_scheduler.engine.scheduler_output import Scheduled, SchedulerOutput

__all__ = [
    "CacheConfig", "CompletionOutput", "EngineConfig", "Event", "Executor", "ExecutorError", "LLMEngine", "ModelRunner", "Request", "RequestMetrics",
    "RequestOutput", "RequestStatus", "Scheduled", "Scheduler", "SchedulerConfig", "SchedulerOutput",
]  # fmt: skip
