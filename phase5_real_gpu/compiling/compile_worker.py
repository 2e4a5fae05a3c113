"""The process in which kernels are compiled: reads requests, writes a line of JSON for each kernel."""

import json
import runpy
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from phase5_real_gpu.compiling.launches import CASES
from phase5_real_gpu.compiling.machine_code import Compiled, read_code
from phase5_real_gpu.kernels import triton_setup


def compile_launches(call: Callable[[], object], capability: int) -> list[dict]:
    """Run `call`, and compile each kernel that it launches; nothing is started."""
    compiled, run = [], JITFunction.run

    def compile_only(kernel, *args, grid, warmup, **kwargs):
        found = dict(kernel=kernel.__name__, num_warps=kwargs["num_warps"])
        try:
            code = run(kernel, *args, grid=grid, warmup=True, **kwargs)
            found |= dict(shared=code.metadata.shared) | read_code(code.asm)
        except Exception as error:  # whatever a compiler may say
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            found |= dict(error=f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"[:300])
        compiled.append(found)

    absent_card = SimpleNamespace(  # what Triton asks a driver before it compiles
        get_current_target=lambda: GPUTarget("cuda", capability, 32),
        get_current_device=lambda: capability,  # Triton keeps compiled kernels by the number of their device
        get_current_stream=lambda device: 0,
    )
    driver.set_active(absent_card)
    triton_setup.compiling_for = divmod(capability, 10)  # the card that a launch is to suit
    with patch.object(JITFunction, "run", compile_only):
        call()
    return compiled


def launch_from(file: str, kernel: str, arguments: list[Any], constants: dict[str, Any]) -> None:
    """Launch a kernel of a file. A list among the arguments is a tensor: its shape and its dtype."""
    given = [
        torch.empty(x[0], dtype=getattr(torch, x[1]), device="meta") if isinstance(x, list) else x
        for x in arguments
    ]
    runpy.run_path(file)[kernel][(1,)](*given, **{"num_warps": 4} | constants)


def main() -> int:
    for request in json.load(sys.stdin):
        case, dtype, capability = (request[key] for key in ("case", "dtype", "capability"))
        launch = request.get("launch")
        call = partial(launch_from, **launch) if launch else partial(CASES[case], dtype)
        for found in compile_launches(call, capability):
            compiled = Compiled(case=case, capability=capability, dtype=dtype, **found)
            print(json.dumps(asdict(compiled)), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
