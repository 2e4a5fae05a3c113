"""One model, several processes: what each of them holds, and what goes between them."""

from phase5_real_gpu.parallel.collectives import Collectives
from phase5_real_gpu.parallel.executor import MultiprocExecutor
from phase5_real_gpu.parallel.placement import Place, check_split, config_of_rank
from phase5_real_gpu.parallel.sharded_model import (
    ParallelExperts,
    ParallelRMSNorm,
    RowParallelLinear,
    ShardedTransformer,
    VocabParallelEmbedding,
)

__all__ = [
    "Collectives", "MultiprocExecutor", "ParallelExperts", "ParallelRMSNorm", "Place", "RowParallelLinear",
    "ShardedTransformer", "VocabParallelEmbedding", "check_split", "config_of_rank",
]  # fmt: skip
