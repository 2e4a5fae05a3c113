"""How Triton kernels run on this machine: compiled on a GPU, interpreted without one, or not at all.

Triton compiles a Python function to machine code for a GPU. It can also *interpret* the function, line by line with numpy: slowly,
but well enough to check a kernel's results. Triton chooses when a kernel is defined, so modules import Triton from here.
"""

import functools
import os
import shutil
import sysconfig
from pathlib import Path

import torch

from labkit.errors import LabError
from labkit.machine import has_gpu

if not has_gpu():
    os.environ.setdefault("TRITON_INTERPRET", "1")

try:
    import triton
    import triton.language as tl

    HAS_TRITON = True
except ImportError:  # macOS, Windows
    HAS_TRITON = False

    class WithoutTriton:
        """Lets a module with kernels be imported; `require_triton` refuses each launch."""

        constexpr = staticmethod(lambda value: value)

        @staticmethod
        def jit(kernel=None, **options):
            return kernel if kernel is not None else lambda kernel: kernel

    triton = tl = WithoutTriton

INTERPRETED = HAS_TRITON and triton.knobs.runtime.interpret  # TRITON_INTERPRET


if INTERPRETED:
    from labkit.triton_interpreter import mend

    mend()

compiling_for: tuple[int, int] | None = None
"""Compute capability of a card that is not here: `ahead_of_time.py` sets it before it records a launch."""


def require_triton() -> None:
    """Raise a LabError that says what to do if Triton is not installed."""
    if not HAS_TRITON:
        raise LabError(
            "Triton is not installed (it exists for Linux only). Without it still run: memory_hierarchy.py, "
            "kernel_benchmark.py, engine_benchmark.py and compare_to_reference.py, all on the CPU"
        )


def card_problem(dtype: torch.dtype) -> str | None:
    """One line that says why this machine's GPU cannot run the kernels in this dtype; None if it can."""
    if not HAS_TRITON:
        return "Triton is not installed"
    if INTERPRETED or compiling_for is not None:
        return None
    if not torch.cuda.is_available():
        return "TRITON_INTERPRET=0 asks for compiled kernels, and there is no GPU to run them: unset it"
    capability, name, compiler_missing = _card()
    if compiler_missing:
        return compiler_missing
    has = f"{name} has compute capability {capability[0]}.{capability[1]}"
    if capability < (7, 5):
        return f"{has}, Triton needs 7.5 or more"
    if dtype == torch.bfloat16 and capability < (8, 0):
        return f"{has}, bfloat16 needs 8.0 or more: use --dtype float16"
    if dtype == torch.float8_e4m3fn and capability < (8, 9):
        return f"{has}, an fp8 KV cache needs 8.9 or more: use a 16-bit one"
    return None


@functools.cache  # asked at every launch
def _card() -> tuple[tuple[int, int], str, str | None]:
    """Capability and name of the GPU, and what Triton lacks to launch kernels on it."""
    missing = None
    if not (shutil.which("gcc") or shutil.which("clang") or os.environ.get("CC")):
        missing = "Triton needs a C compiler to start kernels: install gcc"
    # Debian's own Python names a folder in /usr/local that it does not use.
    scheme = sysconfig.get_default_scheme()
    paths = sysconfig.get_paths("posix_prefix" if scheme == "posix_local" else scheme)
    if missing is None and not (Path(paths["include"]) / "Python.h").exists():
        missing = "Triton needs Python.h to start kernels: install Python's headers (python3-dev)"
    return torch.cuda.get_device_capability(), torch.cuda.get_device_name(), missing


def capability() -> tuple[int, int]:
    """Compute capability of the GPU for which kernels are compiled."""
    if compiling_for is not None:
        return compiling_for
    return (9, 0) if INTERPRETED or not torch.cuda.is_available() else _card()[0]


def has_matrix_instructions(itemsize: int) -> bool:
    """Whether Triton multiplies tiles on tensor cores: not in float32, and not before sm_80."""
    return INTERPRETED or (itemsize <= 2 and capability() >= (8, 0))
