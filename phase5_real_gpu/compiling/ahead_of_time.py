"""Compiles kernels for GPUs of other machines.

Triton compiles a kernel at its first launch, for the GPU of the machine. It can also compile ahead of time,
for any GPU: the compiler writes instructions and does not run them. So without a GPU you can see how many
registers a kernel takes, whether they suffice, and whether loads are fetched ahead.

A kernel must be compiled exactly as it would be launched. So it is launched: `paged_decode` and the others are
called with tensors that have a shape and no memory (torch's "meta" device), Triton gets another GPU as its target,
and each launch stops when the kernel is compiled.

A function that Triton interprets cannot be compiled, and Triton decides this for the whole process. So
`compile_worker.py` runs in a process of its own; `compile_cases` starts it and reads its answers, a line of JSON
for each kernel.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from labkit.errors import LabError
from labkit.paths import ROOT
from phase5_real_gpu.compiling.machine_code import Compiled
from phase5_real_gpu.kernels.triton_setup import require_triton


def compile_cases(requests: Iterable[dict[str, Any]]) -> Iterator[Compiled]:
    """Compile cases of `launches.py`, one after the other.

    Args:
        requests: each has "case", "dtype" and "capability" (90: sm_90), and may have a "launch" of another kernel
            (see `compile_kernel`).

    Raises:
        LabError: Triton is missing, or its compiler does not start.
    """
    require_triton()
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": path}
    command = [sys.executable, "-m", "phase5_real_gpu.compiling.compile_worker"]
    with (
        # The worker and ptxas keep files there, and a signal to all of them leaves them no time to remove the files.
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch,
        tempfile.TemporaryFile("w+", encoding="utf-8") as complaints,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints,
            env=environment | {"TMPDIR": scratch}, cwd=ROOT, text=True, encoding="utf-8",
        ) as process,
    ):  # fmt: skip
        with contextlib.suppress(BrokenPipeError):  # it is gone already, and said why
            process.stdin.write(json.dumps(list(requests)))
            process.stdin.close()
        for line in process.stdout:
            if line.startswith("{"):
                fields = json.loads(line)
                yield Compiled(**fields | {"waits": tuple(fields["waits"])})
        if process.wait():
            complaints.seek(0)
            lines = complaints.read().strip().splitlines()
            raise LabError(
                f"Triton's compiler did not run ({lines[-1] if lines else 'no message'}): reinstall triton"
            )


HEADER = "from phase5_real_gpu.kernels.triton_setup import tl, triton\n\n\n"


def compile_kernel(
    source: str, name: str, arguments: Sequence[Any], constants: Sequence[Mapping[str, Any]], capability: int
) -> list[Compiled]:
    """Compile a kernel that is in no file of the course.

    Args:
        source: the kernel with its `@triton.jit`, under this name.
        arguments: of a launch; of tensors only shape and dtype count. constants: those of each launch.
    """
    given = [
        (list(x.shape), str(x.dtype).removeprefix("torch.")) if isinstance(x, Tensor) else x
        for x in arguments
    ]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.py"
        file.write_text(HEADER + source, encoding="utf-8")
        launch = dict(file=str(file), kernel=name, arguments=given)
        request = dict(case=name, dtype="", capability=capability)
        return list(compile_cases(request | dict(launch=launch | dict(constants=dict(c))) for c in constants))
