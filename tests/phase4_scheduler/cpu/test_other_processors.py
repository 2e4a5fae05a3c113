"""The numerical tests on other processors, as far as the libraries can be told to take this one for another."""

import os
import subprocess
import sys

import pytest
import torch

from labkit.paths import ROOT

# torch's own kernels, oneDNN's, and threads. The three settings do not meet, so each run takes one of each.
PROCESSORS = [("default", "AVX2", "4"), ("avx2", "AVX512_CORE", "1"), ("avx512", "AVX512_CORE_BF16", "4")]
CPU = "tests/phase4_scheduler/cpu"
NUMERICAL = [
    "tests/phase2_attention_kvcache/model/test_families.py::test_logits_equal_those_of_transformers",
    "tests/phase3_paged_attention/paging/test_paged_kv_cache.py::test_compiled_kernel",
    f"{CPU}/test_linear.py::test_every_way_is_exact",
    f"{CPU}/test_linear.py::test_quantized",
    f"{CPU}/test_linear.py::test_with_the_activation",
    f"{CPU}/test_backend.py::test_the_same_numbers",
    f"{CPU}/test_backend.py::test_the_settings_of_the_process_stay",
]


@pytest.mark.proof
@pytest.mark.parametrize(("aten", "onednn", "threads"), PROCESSORS)
def test_numbers_hold(aten, onednn, threads, tmp_path):
    if aten == "avx512" and torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("torch does not check: on this processor it would end with an illegal instruction")
    settings = {"ATEN_CPU_CAPABILITY": aten, "ONEDNN_MAX_CPU_ISA": onednn, "OMP_NUM_THREADS": threads}
    env = os.environ | settings | {"NUMBA_NUM_THREADS": threads, "INFERENCE_LAB_CACHE": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
    ran = subprocess.run([*command, *NUMERICAL], env=env, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-3000:]
