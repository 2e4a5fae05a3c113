"""What a script refuses: one line on stderr, exit code 2, no traceback."""

import pytest
import torch

from phase5_real_gpu import decode_ladder, engine_benchmark, kernel_benchmark, memory_hierarchy
from phase5_real_gpu.kernels import triton_setup


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("script", [decode_ladder, engine_benchmark, kernel_benchmark, memory_hierarchy])
def test_no_gpu(script, capsys):
    if script is decode_ladder and not triton_setup.HAS_TRITON:
        pytest.skip("needs Triton")
    assert script.main(["--device", "cuda"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: no CUDA GPU") and error.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--models", "gpt5"], ["--dtype", "int8"], ["--seed", "-1"]])
def test_bad_options(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        engine_benchmark.main(arguments)
    assert stopped.value.code == 2
    assert "Traceback" not in capsys.readouterr().err
