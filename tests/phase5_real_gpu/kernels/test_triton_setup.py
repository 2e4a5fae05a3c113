"""What the machine needs for the kernels: Triton, a card that is new enough, a C compiler."""

import re
import subprocess
import sys

import pytest
import torch

from phase5_real_gpu.kernels import triton_setup
from phase5_real_gpu.kernels.triton_setup import card_problem

NO_TRITON = """
import sys
sys.modules["triton"] = None  # as if it were not there
import torch
from labkit.errors import LabError
from phase5_real_gpu.kernels import TritonPagedKVCache, gpu_runner, paged_decode, write_kv
from phase5_real_gpu.kernels.triton_setup import card_problem
from phase2_attention_kvcache.model.config import ModelConfig
config = ModelConfig(name="test", family="llama", vocab_size=97, d_model=32, num_layers=1, num_heads=2,
                     num_kv_heads=1, head_dim=32, d_ff=48, max_context=256, tied=True)
cache = torch.zeros(4, 16, 1, 32)
table, one = torch.zeros(1, 2, dtype=torch.int32), torch.ones(1, dtype=torch.int32)
for call in (
    lambda: paged_decode(cache[0, :1], cache, cache, table, one),
    lambda: write_kv(cache[0, :1], cache[0, :1], cache, cache, one),
    lambda: TritonPagedKVCache(config, 4),
):
    try:
        call()
    except LabError as error:
        print(error)
print(card_problem(torch.float32))
from phase5_real_gpu import compile_report, decode_ladder
assert compile_report.main(["--quick"]) == decode_ladder.main(["--quick"]) == 2
"""


def test_on_a_machine_without_triton():
    """Reading and importing is possible; the first launch, and a script, say what still runs."""
    done = subprocess.run([sys.executable, "-c", NO_TRITON], capture_output=True, text=True, timeout=240)
    *kernels, card = done.stdout.splitlines()
    scripts = done.stderr.splitlines()
    assert done.returncode == 0 and (len(kernels), len(scripts)) == (3, 2), done.stderr[-2000:]
    assert all("Triton is not installed" in line and "still run" in line for line in (*kernels, *scripts))
    assert "not installed" in card


@pytest.mark.parametrize(
    ("capability", "dtype", "problem"),
    [
        ((7, 0), torch.float16, "capability 7.0, Triton needs 7.5"),
        ((7, 5), torch.float16, None),
        ((7, 5), torch.bfloat16, "capability 7.5, bfloat16 needs 8.0 or more: use --dtype float16"),
        ((8, 0), torch.bfloat16, None),
        ((8, 0), torch.float8_e4m3fn, "capability 8.0, an fp8 KV cache needs 8.9 or more: use a 16-bit one"),
        ((8, 9), torch.float8_e4m3fn, None),
        ((10, 0), torch.bfloat16, None),
    ],
    ids=str,
)
def test_cards(monkeypatch, capability, dtype, problem):
    """What each card can do; of a card that is not here, by its number."""
    monkeypatch.setattr(triton_setup, "HAS_TRITON", True)
    monkeypatch.setattr(triton_setup, "INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(triton_setup, "_card", lambda: (capability, "Some Card", None))
    found = card_problem(dtype)
    if problem is None:
        assert found is None
    else:
        assert found.startswith("Some Card has compute") and re.search(problem, found)


def test_what_triton_needs_to_start_kernels(monkeypatch, tmp_path):
    """The first launch on a card compiles a small piece of C. Better to say beforehand what is missing."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "Some Card")
    monkeypatch.delenv("CC", raising=False)
    look = triton_setup._card.__wrapped__
    monkeypatch.setattr(triton_setup.shutil, "which", lambda name: None)
    assert "install gcc" in look()[2]
    monkeypatch.setattr(triton_setup.shutil, "which", lambda name: "/usr/bin/" + name)
    paths = triton_setup.sysconfig
    monkeypatch.setattr(paths, "get_paths", lambda scheme: {"include": str(tmp_path / scheme)})
    # Debian's own Python, and the usual.
    for scheme, where in (("posix_local", "posix_prefix"), ("venv", "venv")):
        monkeypatch.setattr(paths, "get_default_scheme", lambda scheme=scheme: scheme)
        assert "Python.h" in look()[2]
        (tmp_path / where).mkdir()
        (tmp_path / where / "Python.h").touch()
        assert look() == ((9, 0), "Some Card", None)
