"""What the engine does beyond its core, each feature in a file or folder of its own. README.md: how to write one."""

from phase4_scheduler.features.async_scheduling import AsyncScheduling
from phase4_scheduler.features.executor import Executors
from phase4_scheduler.features.faults import FaultIsolation
from phase4_scheduler.features.kv_events import KVEvents
from phase4_scheduler.features.kv_transfer import KVTransfer
from phase4_scheduler.features.prompt_logprobs import PromptLogprobs
from phase4_scheduler.features.quantized import QuantizedKVCache, QuantizedWeights
from phase4_scheduler.features.recording import Recording
from phase4_scheduler.features.speculation import Speculation
from phase4_scheduler.features.structured_output import StructuredOutput
from phase4_scheduler.features.swap import Swap
from phase4_scheduler.features.windows import Windows

# Outermost first: what stands before another one sees its results.
FEATURES = (
    FaultIsolation, PromptLogprobs, StructuredOutput, Swap, KVTransfer, Speculation,
    AsyncScheduling, Recording, KVEvents, Windows, QuantizedWeights, QuantizedKVCache, Executors,
)  # fmt: skip
