"""The race in few bits: who is held against whom, and that both engines read the same files."""

import os
import sys

import pytest

from labkit.errors import LabError
from phase5_real_gpu.benchmarks import quantized_benchmark
from phase5_real_gpu.benchmarks.vllm_process import Worker

PYTHON = os.environ.get("LLAMA_CPP_PYTHON")


def test_ratios():
    times = {"ours bfloat16": [4.0, 6.0], "ours q8_0": [2.0, 2.0], "llama.cpp Q8_0": [3.0, 1.0]}
    assert quantized_benchmark.ratios({"batch1": times}) == {
        "batch1": {"ours q8_0 / llama.cpp Q8_0": [1.5, 0.5], "ours q8_0 / ours bfloat16": [2.0, 3.0]}
    }


def test_a_python_without_llama_cpp():
    settings = dict(model="none", max_num_seqs=1, max_model_len=64, threads=1)
    with pytest.raises(LabError, match="holds no xllamacpp"):
        Worker(sys.executable, quantized_benchmark.GGUF_WORKER, "xllamacpp", engine="xllamacpp", **settings)


@pytest.mark.proof
@pytest.mark.skipif(not PYTHON, reason="needs llama.cpp: LLAMA_CPP_PYTHON=a Python that has xllamacpp")
def test_a_short_race(capsys):
    arguments = ["--rounds", "1", "--workloads", "batch1", "--formats", "q4_0", "--llamacpp-python", PYTHON]
    assert quantized_benchmark.main(arguments) == 0
    assert "ours q4_0 / llama.cpp Q4_0" in capsys.readouterr().out
