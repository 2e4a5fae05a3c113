"""The runner of a rank on a GPU. A recorded decode step has the all-reduces between the ranks in it."""

from torch import Tensor

from phase4_scheduler.engine import StepBatch
from phase5_real_gpu.fused.runner import FusedRunner


class RankRunner(FusedRunner):
    """All ranks record the same steps at the same time, since an all-reduce waits for every rank. A rank without recordings
    would call other all-reduces than its peers, and their sums would be wrong. So it fails instead."""

    def go_on_without(self, error: Exception, batch: StepBatch | None = None) -> Tensor | None:
        what = f"a step cannot be recorded ({type(error).__name__}: {error})"
        raise RuntimeError(f"{what}: build the engine with enforce_eager=True") from error
