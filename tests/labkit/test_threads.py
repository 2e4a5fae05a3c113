"""How threads wait is settled before torch is loaded."""

import os
import subprocess
import sys

import pytest

from labkit.paths import ROOT

WATCH = """
import os, sys, importlib.abc
class Watch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "torch":
            print(os.environ.get("GOMP_SPINCOUNT"), flush=True)
            os._exit(0)  # torch itself is not needed
sys.meta_path.insert(0, Watch())
"""


@pytest.mark.parametrize(
    ("package", "setting", "expected"),
    [
        ("phase1_tokens_embeddings.weights", {}, "5000"),
        ("phase3_paged_attention.paging", {}, "5000"),
        ("phase4_scheduler.engine", {"OMP_WAIT_POLICY": "PASSIVE"}, "None"),
        ("phase5_real_gpu.kernels", {"GOMP_SPINCOUNT": "7"}, "7"),
    ],
)
def test_it_is_settled_whatever_is_imported_first(package, setting, expected):
    env = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    out = subprocess.run(
        [sys.executable, "-c", f"{WATCH}\nimport {package}, torch"],
        env=env | setting, cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert out.stdout.split() == [expected]
