"""An inference engine: requests, a scheduler, a model runner, and the loop around them."""

from phase4_scheduler.engine.config import EngineConfig, SchedulerConfig
from phase4_scheduler.engine.core import EngineCore, EngineDeadError
from phase4_scheduler.engine.engine import LLMEngine
from phase4_scheduler.engine.model_runner import ModelRunner, Sampled, StepBatch
from phase4_scheduler.engine.outputs import CompletionOutput, RequestMetrics, RequestOutput
from phase4_scheduler.engine.request import Request, RequestStatus
from phase4_scheduler.engine.scheduler import Scheduled, Scheduler, SchedulerOutput
