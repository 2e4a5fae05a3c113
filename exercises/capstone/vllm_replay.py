"""Recorded workloads decided once more by the real vLLM with a policy of one's own. Runs in vLLM's environment; see in_vllm.py.

    python -m exercises.capstone.vllm_replay MODEL_FOLDER WORKLOADS     (LAB_POLICY: see vllm_policy.py)

WORKLOADS: a file of JSON lines. Prints a line of JSON: of each workload the first step that differs, or null.
"""

import json
import sys
from pathlib import Path
from typing import Any

import vllm.v1.core.sched.scheduler as its_module

from exercises.capstone.vllm_policy import PolicyScheduler
from phase5_real_gpu.benchmarks import vllm_worker
from tests.phase4_scheduler.engine.record_decisions import Recorder


def first_difference(model_config: Any, workload: dict[str, Any]) -> int | None:
    steps = Recorder(model_config, workload).record()["steps"]
    for mine, theirs in zip(steps, workload["steps"]):  # (vLLM may need a last step to clean up)
        theirs = theirs | {"finished": sorted(theirs["finished"])}
        if any(mine[what] != value for what, value in theirs.items()):
            return theirs["step"]
    return None if len(steps) >= len(workload["steps"]) else len(steps)


def main() -> None:
    its_module.Scheduler = PolicyScheduler  # what the worker makes
    settings = dict(only_scheduler=True, model=sys.argv[1], skip_tokenizer_init=True)
    model_config = vllm_worker.start(settings)
    lines = Path(sys.argv[2]).read_text(encoding="utf-8").splitlines()
    print(json.dumps([first_difference(model_config, json.loads(line)) for line in lines]))


if __name__ == "__main__":
    main()
