"""Who works when in a pipeline.

Stage s can begin with a micro-batch when the stage before has handed it on, and when it is done with the one before.

Source: Huang et al., "GPipe" (2019), section 2.
"""


def timeline(num_stages: int, num_micro_batches: int) -> list[tuple[int, int, int]]:
    """(stage, micro-batch, start) of all pieces of work, each of them one unit of time.

    >>> timeline(2, 2)
    [(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 2)]
    """
    return [(stage, m, stage + m) for stage in range(num_stages) for m in range(num_micro_batches)]


def idle_share(num_stages: int, num_micro_batches: int) -> float:
    """The bubble: the share of all stages' time in which nothing is done. It is (s - 1) / (m + s - 1)."""
    work = timeline(num_stages, num_micro_batches)
    until = max(start + 1 for _, _, start in work)
    return 1 - len(work) / (num_stages * until)
