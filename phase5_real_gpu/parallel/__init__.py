"""One model in several processes: the part that each holds, and the communication between them."""

from phase5_real_gpu.parallel.executor import MultiprocExecutor
from phase5_real_gpu.parallel.placement import Place, check_split
from phase5_real_gpu.parallel.sharded_model import ShardedTransformer
