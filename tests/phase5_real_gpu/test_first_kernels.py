"""The kernels to begin with: their results in the interpreter, and the figures that the chapters read out of the compiler."""

import re

import pytest
import torch

from labkit.paths import ROOT
from phase5_real_gpu.compiling import compile_cases
from phase5_real_gpu.kernels.triton_setup import INTERPRETED
from phase5_real_gpu.ladder import first_kernels
from phase5_real_gpu.story.compile_story import FIRST

pytest.importorskip("triton")

DEVICE = "cpu" if INTERPRETED else "cuda"


@pytest.mark.parametrize(("length", "stride"), [(1, 1), (1024, 1), (3000, 1), (1500, 4)])
def test_scale_doubles_each_number(length, stride):
    x = torch.randn(length * stride, device=DEVICE)
    assert torch.equal(first_kernels.scale(x, stride), 2 * x[::stride])


def test_transpose_and_multiply_are_those_of_torch():
    x = torch.randn(32, 32, device=DEVICE)
    assert torch.equal(first_kernels.transpose(x), x.T)
    a, b = torch.randn(16, 192, device=DEVICE).half(), torch.randn(192, 64, device=DEVICE).half()
    torch.testing.assert_close(first_kernels.multiply(a, b), a.float() @ b.float(), atol=1e-3, rtol=1e-3)


@pytest.fixture(scope="module")
def compiled():
    cases = (*FIRST, "decode", "prefill")
    return {
        c.case: c
        for c in compile_cases({"case": case, "dtype": "bfloat16", "capability": 90} for case in cases)
    }


@pytest.mark.proof  # the compiler takes some seconds
def test_the_chapters_quote_the_compiler(compiled):
    """Their numbers are those of this compiler: where it changes, the chapters must."""
    texts = {f.stem: f.read_text() for f in (ROOT / "phase5_real_gpu" / "chapters").glob("0*.md")}
    scale, strided, transpose, one, three = (compiled[case] for case in FIRST)
    decode, prefill = compiled["decode"], compiled["prefill"]
    assert f"It reports {scale.registers}" in texts["01-programs"] and scale.wide_loads == 2
    assert strided.wide_loads == 0 and transpose.shared == 32 * 32 * 4
    latency = re.sub(r"\s+", " ", texts["03-latency"])
    for c, stages in ((one, 1), (three, 3)):
        row = f"| `num_stages={stages}` | {c.async_copies} | {c.buffers} | {c.shared // 1024} KiB | {c.registers} |"
        assert row in latency
    assert f"what {decode.registers} registers mean" in latency
    assert f"{decode.registers} per thread · 128" in latency
    assert f"| {decode.shared // 1024} KiB, and 1 KiB reserved |" in latency
    assert decode.programs_per_multiprocessor == 3
    assert f"the kernel takes {prefill.registers} registers per thread" in texts["05-prefill"]
