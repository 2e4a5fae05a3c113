"""Keys and values from other engines: a request may wait while a connector fills its blocks.

Changes: a request whose tokens another engine computed gets its blocks at once, and is admitted when they are filled.
Attaches to: `Scheduler.candidates`, `find_computed`, `reserve`, `remove`, `release`; `EngineCore.execute` and `step`. Its
setting is `kv_connector`, a `KVConnector`; phase5_real_gpu/parallel brings one over shared memory.

Read: connector.py, scheduler.py, core.py.
"""

from phase4_scheduler.features.kv_transfer.connector import KVConnector, KVTransferParams
from phase4_scheduler.features.kv_transfer.core import KVTransfer, KVTransferCore
from phase4_scheduler.features.kv_transfer.scheduler import KVTransferScheduler
