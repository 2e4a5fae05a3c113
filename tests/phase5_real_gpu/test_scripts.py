"""What a script refuses: one line on stderr, exit code 2, no traceback."""

import pytest
import torch

from phase5_real_gpu import decode_ladder, engine_benchmark, kernel_benchmark, memory_hierarchy
from phase5_real_gpu.kernels import triton_setup


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("script", [decode_ladder, engine_benchmark, kernel_benchmark, memory_hierarchy])
def test_no_gpu(script, mistake_of):
    if script is decode_ladder and not triton_setup.HAS_TRITON:
        pytest.skip("needs Triton")
    assert mistake_of(script, "--device", "cuda").startswith("error: no CUDA GPU")


@pytest.mark.parametrize("arguments", [["--models", "gpt5"], ["--dtype", "int8"], ["--seed", "-1"]])
def test_bad_options(arguments, mistake_of):
    assert arguments[0] in mistake_of(engine_benchmark, *arguments)
