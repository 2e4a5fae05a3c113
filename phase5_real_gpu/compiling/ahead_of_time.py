"""Kernels compiled for cards that are not here, and what the compiler made of them.

Triton compiles a kernel when it is first launched, for the card at hand. It can do so ahead of time as well,
for any card: a compiler writes instructions, it does not run them. So without a GPU you can still see how many
registers a kernel takes, whether they suffice, and whether loads are fetched ahead.

A kernel has to be compiled exactly as it would be launched. So the launch itself is recorded: `paged_decode` and
the others are called with tensors that have a shape and no memory (torch's "meta" device), and the moment a
kernel would be started, its arguments are written down. As in a real launch, the compiler is told which of them
are multiples of 16: it cannot load 16 bytes at once from an address that might be odd.

    compiled = compile_launch(record_launches(lambda: paged_decode(...))[0], capability=90)

A function that Triton interprets cannot be compiled, and it decides that for the whole process. So this file
runs in a process of its own: `compile_cases` starts it, and reads its answers, a line of JSON for each kernel.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labkit.paths import ROOT

# ---------------------------------------------------------------------- cards


@dataclass(frozen=True)
class Card:
    """What a program may use (CUDA C++ Programming Guide, table of technical specifications).

    Attributes:
        shared_program, shared_multiprocessor: bytes of shared memory. threads: of a multiprocessor.
    """

    capability: int
    name: str
    example: str
    shared_program: int
    shared_multiprocessor: int
    threads: int
    registers: int = 65536  # of a multiprocessor; at most 255 a thread


KB = 1024
CARDS = {
    card.capability: card
    for card in (
        Card(75, "sm_75", "T4", 64 * KB, 64 * KB, 1024),
        Card(80, "sm_80", "A100", 163 * KB, 164 * KB, 2048),
        Card(86, "sm_86", "RTX 3090, A10", 99 * KB, 100 * KB, 1536),  # sm_89 (RTX 4090, L4) has as much
        Card(90, "sm_90", "H100, H200", 227 * KB, 228 * KB, 2048),
        Card(100, "sm_100", "B200", 227 * KB, 228 * KB, 2048),
        Card(120, "sm_120", "RTX 5090", 99 * KB, 100 * KB, 1536),
    )
}
SHARED_RESERVED = 1 * KB  # taken by the system from each program's share, from sm_80 on


# ---------------------------------------------------------------------- what came out


@dataclass(frozen=True)
class Compiled:
    """A kernel as machine code.

    Attributes:
        registers: of a thread; 255 is the most. stack: bytes of a thread that lie in memory instead.
        spills: instructions that move registers to memory and back. spills_in_loops: those of them that run
            again and again. All four None without `cuobjdump`.
        shared: bytes of shared memory of a program.
        mma, wgmma, tcgen05: matrix instructions: of 32 threads, of 128 (sm_90), of the unit itself (sm_100).
        async_copies: instructions that start to fetch and do not wait. waits: for each point where the code
            waits for them, how many fetches may still be under way.
        buffers: tiles of keys, or of values, that have a place at the same time; 0: no tile is fetched ahead.
        wide_loads: instructions that load 16 bytes a thread. narrow_copies: async copies of fewer than 16.
        aligned: whether the compiler was told which arguments are multiples of 16.
        error: the compiler's refusal, in a line.
    """

    case: str
    kernel: str
    capability: int
    dtype: str
    num_warps: int = 0
    num_stages: int = 0
    registers: int | None = None
    stack: int | None = None
    spills: int | None = None
    spills_in_loops: int | None = None
    shared: int = 0
    mma: int = 0
    wgmma: int = 0
    tcgen05: int = 0
    async_copies: int = 0
    narrow_copies: int = 0
    waits: tuple[int, ...] = ()
    buffers: int = 0
    wide_loads: int = 0
    aligned: bool = True
    error: str = ""

    @property
    def card(self) -> Card:
        return CARDS[self.capability]

    @property
    def fits(self) -> bool:
        """Whether the card can start it at all."""
        return not self.error and self.shared <= self.card.shared_program

    @property
    def programs_per_multiprocessor(self) -> int | None:
        """How many programs one multiprocessor holds, by registers, shared memory and threads."""
        if self.registers is None or not self.fits:
            return None
        threads = 32 * self.num_warps
        registers = -(-self.registers // 8) * 8 * threads  # handed out in units of 8
        reserved = SHARED_RESERVED if self.capability >= 80 else 0
        by_shared = self.card.shared_multiprocessor // max(1, self.shared + reserved)
        return min(self.card.registers // registers, by_shared, self.card.threads // threads, 32)


# ---------------------------------------------------------------------- recording a launch


@dataclass(frozen=True)
class Launch:
    """A kernel and the arguments it would have been started with."""

    kernel: Any
    arguments: dict[str, Any]
    options: dict[str, int]


def record_launches(call: Callable[[], object]) -> list[Launch]:
    """Run `call`, and write down each kernel that it would have launched."""
    from triton.runtime.jit import JITFunction

    launches = []

    def run(self, *args, grid, warmup=False, **kwargs):
        arguments = dict(zip(self.arg_names, args))
        options = {k: v for k, v in kwargs.items() if k not in self.arg_names}
        arguments |= {k: v for k, v in kwargs.items() if k in self.arg_names}
        launches.append(Launch(self, arguments, options))

    original = JITFunction.run
    JITFunction.run = run
    try:
        call()
    finally:
        JITFunction.run = original
    return launches


TYPES = {
    "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float8_e4m3fn": "fp8e4nv",
    "int32": "i32", "int64": "i64",
}  # fmt: skip


def describe_arguments(launch: Launch) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int], list]]:
    """What Triton wants to know of the arguments: types, constants, and which are multiples of 16.

    The rules are those of a launch: an integer that is 1 becomes a constant, pointers from torch and integers
    that are multiples of 16 are marked as such.
    """
    signature, constants, attributes = {}, {}, {}
    for i, parameter in enumerate(launch.kernel.params):
        name, value = parameter.name, launch.arguments[parameter.name]
        multiple = False
        if parameter.is_constexpr or value is None or (
            type(value) is int and value == 1 and not parameter.do_not_specialize
        ):  # fmt: skip
            signature[name], constants[name] = "constexpr", value
        elif hasattr(value, "dtype"):
            signature[name], multiple = "*" + TYPES[str(value.dtype).removeprefix("torch.")], True
        elif isinstance(value, bool):
            signature[name] = "i1"
        elif isinstance(value, int):
            signature[name], multiple = "i32" if abs(value) < 2**31 else "i64", value % 16 == 0
        else:
            signature[name] = "fp32"
        if multiple and not parameter.do_not_specialize:
            attributes[(i,)] = [["tt.divisibility", 16]]
    return signature, constants, attributes


# ---------------------------------------------------------------------- compiling


def compile_launch(
    launch: Launch, capability: int, case: str = "", dtype: str = "", aligned: bool = True, **options: int
) -> Compiled:
    """Compile a recorded launch for cards of a compute capability (90: sm_90).

    Args:
        aligned: False keeps from the compiler which arguments are multiples of 16.
        options: num_warps, num_stages, ...: instead of the launch's own.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature, constants, attributes = describe_arguments(launch)
    attributes = attributes if aligned else {}
    options = {"num_warps": 4, "num_stages": 3} | launch.options | options
    about = (case, launch.kernel.__name__, capability, dtype, options["num_warps"], options["num_stages"])
    try:
        source = ASTSource(launch.kernel, signature, constants, attributes)
        compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    except Exception as error:  # whatever a compiler may say
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return Compiled(
            *about,
            aligned=aligned,
            error=f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"[:300],
        )
    return Compiled(*about, aligned=aligned, shared=compiled.metadata.shared, **read_code(compiled.asm))


def read_code(asm: Any) -> dict[str, Any]:
    """Counts from the compiler's output. asm: "ttgir" and "ptx" texts, "cubin" bytes."""
    ptx, ttgir = asm["ptx"], asm["ttgir"]
    copies = re.findall(r"cp\.async\.c[ag]\.shared\.global\s+\[[^]]*\], \[[^]]*\], (0x[0-9a-f]+|\d+)", ptx)
    # A tile that is fetched ahead lies in an array of tiles: memdesc<buffers x tokens x dims x type>.
    tiles = re.findall(r"ttg\.local_alloc\s*:\s*\(\)\s*->\s*!ttg\.memdesc<(\d+)x\d+x\d+x", ttgir)
    counts: dict[str, Any] = dict(
        mma=len(re.findall(r"\bmma\.sync", ptx)),
        wgmma=len(re.findall(r"\bwgmma\.mma_async", ptx)),
        tcgen05=len(re.findall(r"\btcgen05\.mma", ptx)),
        async_copies=len(copies),
        narrow_copies=sum(int(size, 0) < 16 for size in copies),
        waits=tuple(int(n) for n in re.findall(r"cp\.async\.wait_group\s+(\d+)", ptx)),
        buffers=max(map(int, tiles), default=0),
        wide_loads=len(re.findall(r"ld\.global[\w.:]*\.v4\.(?:b32|f32|u32)", ptx)),
    )
    return counts | read_machine_code(asm["cubin"])


def cuobjdump() -> str | None:
    """The tool that looks into machine code. Triton's wheel carries it."""
    import triton

    own = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    return str(own) if own.is_file() else shutil.which("cuobjdump")


def read_machine_code(cubin: bytes) -> dict[str, int | None]:
    """Registers, stack and spills of a compiled kernel; all None where `cuobjdump` is missing or fails."""
    nothing = dict.fromkeys(("registers", "stack", "spills", "spills_in_loops"))
    tool = cuobjdump()
    if tool is None:
        return nothing
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        try:
            command = [tool, "-res-usage", "-sass", str(path)]
            text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            return nothing
    usage = re.search(r"REG:(\d+) STACK:(\d+)", text)
    if usage is None:
        return nothing
    spills, in_loops = count_spills(text)
    return {"registers": int(usage[1]), "stack": int(usage[2]), "spills": spills, "spills_in_loops": in_loops}


def count_spills(sass: str) -> tuple[int, int]:
    """Spills of a listing of machine code: all, and those in loops, between a jump back and its target.

    LDL and STL load from and store to a thread's "local" memory, which is ordinary, slow memory.
    """
    lines = [(int(m[1], 16), m[2]) for m in re.finditer(r"/\*([0-9a-f]{4,6})\*/\s+(.*?);", sass)]
    spills = [address for address, code in lines if re.search(r"\b(?:LDL|STL)\b", code)]
    jumps = [
        (int(m[1], 16), address)
        for address, code in lines
        if (m := re.search(r"\bBRA\b.* 0x([0-9a-f]+)", code))
    ]
    loops = [(target, address) for target, address in jumps if target < address]
    return len(spills), sum(any(begin <= s <= end for begin, end in loops) for s in spills)


# ---------------------------------------------------------------------- in a process of its own


def compile_cases(requests: Iterable[dict[str, Any]]) -> Iterator[Compiled]:
    """Compile cases of `compile_cases.py`, one after the other.

    Args:
        requests: each has "case", "dtype" and "capability", and may have "aligned", "num_warps" and
            "num_stages".

    Raises:
        LabError: Triton is missing, or its compiler does not start.
    """
    from phase5_real_gpu.kernels.triton_setup import require_triton

    require_triton()
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": path}
    command = [sys.executable, "-m", "phase5_real_gpu.compiling.ahead_of_time"]
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as complaints,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints,
            env=environment, cwd=ROOT, text=True, encoding="utf-8",
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


def main() -> int:
    """Read requests from the input, write a line of JSON for each kernel."""
    from phase5_real_gpu.compiling.compile_cases import CASES
    from phase5_real_gpu.kernels import triton_setup

    for request in json.load(sys.stdin):
        case, dtype, capability = (request.pop(key) for key in ("case", "dtype", "capability"))
        triton_setup.compiling_for = divmod(capability, 10)  # the card that a launch is to suit
        for launch in record_launches(lambda case=case, dtype=dtype: CASES[case](dtype)):
            compiled = compile_launch(launch, capability, case, dtype, **request)
            print(json.dumps(asdict(compiled)), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
