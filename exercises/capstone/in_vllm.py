"""`lab mine --in-vllm PYTHON`: a policy decides in the real vLLM 0.32, and vLLM's own metrics beside those of its built-in order."""

import json
import os
import random
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from exercises.capstone.decisions import workloads
from labkit.errors import LabError
from labkit.models import find_model
from labkit.paths import ROOT
from phase5_real_gpu.benchmarks.vllm_process import VERSION, Worker

WORKLOADS = 20
SCHEDULER = "exercises.capstone.vllm_policy.PolicyScheduler"
# A cache that holds about six of the requests below at a time.
SETTINGS = dict(
    max_num_seqs=8, max_num_batched_tokens=128, num_gpu_blocks_override=24, block_size=32, max_model_len=256,
    async_scheduling=False, skip_tokenizer_init=True, dtype="float32", enable_prefix_caching=True, in_process=True,
    disable_log_stats=False,
)  # fmt: skip


def compare_policies(console: Console, python: Path, policy: str, timeout: int) -> int:
    """Serve the same requests with vLLM's order and with the policy's.

    Args:
        policy: FILE:CLASS.
        timeout: seconds, see `Worker`.

    Raises:
        LabError: this Python cannot be run or holds no vLLM, or the policy failed in it.
    """
    file, _, name = policy.rpartition(":")
    if not Path(file).is_file():
        raise LabError(f"no policy at {policy!r}: give FILE:CLASS, such as my_engine/policy.py:Policy")
    os.environ |= {"PYTHONPATH": str(ROOT), "LAB_POLICY": f"{Path(file).resolve()}:{name}"}
    python = python.absolute()
    ways = (Column(name, justify="right") for name in ("built-in order", "your policy"))
    table = Table("vLLM's own metrics", *ways, box=None, pad_edge=False)
    requests, found = make_requests(), []
    for kind in ({}, {"scheduler_cls": SCHEDULER}):
        with (
            console.status("vLLM serves tales ..."),
            Worker(str(python), timeout=timeout, model=str(find_model("tales")), **SETTINGS, **kind) as vllm,
        ):
            if not vllm.version.startswith(VERSION) and not found:
                console.print(
                    f"This is vLLM {vllm.version}; the recordings are of {VERSION}: decisions may differ."
                )
            vllm.ask("serve", requests=requests)
            found.append(vllm.ask("metrics"))
    for name, value in found[0].items():
        table.add_row(name, f"{value:,.3g}", f"{found[1][name]:,.3g}")
    console.print(table)
    with console.status("vLLM decides recorded workloads with your policy ..."):
        differ = [step for step in replay(python, timeout) if step is not None]
    console.print(
        f"With your policy vLLM decides {WORKLOADS - len(differ)} of {WORKLOADS} recorded workloads as with its own order, "
        "first come, first served."
    )
    return 0


def replay(python: Path, timeout: float) -> list[int | None]:
    """Of recorded workloads that all end, the first step that is another one with the policy."""
    ended = [w for w in workloads() if not w["steps"][-1].get("stuck") and len(w["steps"]) < 400][:WORKLOADS]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "workloads.jsonl"
        file.write_text("\n".join(map(json.dumps, ended)), encoding="utf-8")
        command = [str(python), "-m", "exercises.capstone.vllm_replay", str(find_model("tales")), str(file)]
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout)
        except subprocess.TimeoutExpired:
            raise LabError(
                f"vLLM did not decide the workloads within {timeout:g} s (--timeout allows more)"
            ) from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise LabError(f"vLLM stopped with your policy: {last[:300]}")
    return json.loads(done.stdout.splitlines()[-1])


def make_requests() -> list[list[Any]]:
    """(second of arrival, prompt, tokens to write): 48 requests at once, in a mixed order, with six beginnings of 96 tokens."""
    rng = random.Random(4)
    beginnings = [[rng.randrange(100, 8000) for _ in range(96)] for _ in range(6)]
    ends = [[rng.randrange(100, 8000) for _ in range(rng.randrange(4, 30))] for _ in range(48)]
    return [[0.0, beginnings[rng.randrange(6)] + end, 24] for end in ends]
