"""Every variant of the kernels as machine code, for every card with bfloat16: it compiles, fits, and keeps its numbers in registers."""

import os

import pytest

from phase5_real_gpu.compiling import Compiled, compile_cases
from phase5_real_gpu.compiling.launches import all_variants
from phase5_real_gpu.compiling.machine_code import LIMITS

pytest.importorskip("triton")

CARDS = [capability for capability in LIMITS if capability >= 80]
FEW = [
    (80, "prefill d96 softcap"),
    (89, "prefill window softcap"),
    (89, "prefill d80 fp8"),
    (90, "decode split d256 fp8"),
]


def assert_good(kernels: list[Compiled]) -> None:
    assert not [(c.case, c.capability, c.error) for c in kernels if c.error]
    assert not [(c.case, c.capability, c.shared) for c in kernels if not c.fits]
    assert not [(c.case, c.capability, c.num_warps, c.spills) for c in kernels if c.spills]
    assert all(c.programs_per_multiprocessor >= 1 for c in kernels)


def test_a_few():
    """Those that once spilled; and fp8 becomes bfloat16 by instructions that convert two numbers."""
    kernels = list(compile_cases([r for r in all_variants() if (r["capability"], r["case"]) in FEW]))
    assert len([c for c in kernels if c.kernel != "merge_kernel"]) == len(FEW)
    assert_good(kernels)
    assert not [c.case for c in kernels if "fp8" in c.case and c.single_conversions]


@pytest.mark.skipif("ALL_VARIANTS" not in os.environ, reason="over 700 kernels to compile: `make variants`")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("capability", CARDS)
def test_all(capability):
    requests = [r for r in all_variants() if r["capability"] == capability]
    kernels = list(compile_cases(requests))
    assert {c.case for c in kernels} == {r["case"] for r in requests}
    assert_good(kernels)
