"""What both recordings of the real vLLM's decisions have in common: how they are read, and how each of them ends."""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

from phase3_paged_attention.paging import BlockManager
from phase4_scheduler.engine import Request, RequestStatus, Scheduler
from phase4_scheduler.engine.request import RequestLimits


class TakesAnything(Scheduler):
    """Also a request that can never finish in this cache: vLLM takes it, and is stuck."""

    limits = property(lambda self: RequestLimits(sys.maxsize))


def read_recordings(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


def check_end(recording: dict[str, Any], requests: dict[int, Request], manager: BlockManager) -> None:
    """No block is lost; and unless vLLM was stuck itself, all requests are done."""
    manager.check_integrity()
    if not recording["steps"][-1].get("stuck"):
        assert all(r.status is RequestStatus.FINISHED for r in requests.values())
        assert manager.num_free_blocks == recording["config"]["num_blocks"] - 1
