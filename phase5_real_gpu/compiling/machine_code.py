"""The resources that a compiled kernel takes of a GPU, read from the compiler's output and from the machine code."""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from typing import Any

from phase5_real_gpu.kernels.split_rule import programs_that_fit

KB = 1024


@dataclass(frozen=True)
class Limits:
    """The limits of a compute capability (CUDA C++ Programming Guide, table of technical specifications).

    Attributes:
        cards: some GPUs that have it.
        shared_program, shared_multiprocessor: bytes of shared memory. threads: of a multiprocessor.
    """

    name: str
    cards: str
    shared_program: int
    shared_multiprocessor: int
    threads: int
    registers: int = 65536  # of a multiprocessor; at most 255 a thread


LIMITS = {  # by compute capability; phase 1's cards.py has what differs from card to card
    75: Limits("sm_75", "T4", 64 * KB, 64 * KB, 1024),
    80: Limits("sm_80", "A100", 163 * KB, 164 * KB, 2048),
    86: Limits("sm_86", "RTX 3090, A10", 99 * KB, 100 * KB, 1536),
    89: Limits("sm_89", "RTX 4090, L4", 99 * KB, 100 * KB, 1536),
    90: Limits("sm_90", "H100, H200", 227 * KB, 228 * KB, 2048),
    100: Limits("sm_100", "B200", 227 * KB, 228 * KB, 2048),
    120: Limits("sm_120", "RTX 5090", 99 * KB, 100 * KB, 1536),
}


@dataclass(frozen=True)
class Compiled:
    """A kernel as machine code.

    Attributes:
        instructions: of the machine code. registers: of a thread; 255 is the most.
        spills: instructions that move registers to memory and back. spills_in_loops: those of them inside
            loops. single_conversions: instructions that convert one number between formats, where others
            convert two. All are 0 if the compiler refused.
        shared: bytes of shared memory of a program.
        mma, wgmma, tcgen05: matrix instructions: of 32 threads, of 128 (sm_90), of the unit itself (sm_100).
        async_copies: instructions that start a copy and do not wait. waits: for each point where the code
            waits for them, the number of copies that may still be in flight.
        buffers: tiles of keys, or of values, that fit at the same time; 0: no tile is fetched ahead.
        wide_loads: instructions that load 16 bytes per thread. narrow_copies: async copies of fewer than 16.
        error: the compiler's refusal, in a line.
    """

    case: str
    kernel: str
    capability: int
    dtype: str
    num_warps: int = 0
    instructions: int = 0
    registers: int = 0
    spills: int = 0
    spills_in_loops: int = 0
    single_conversions: int = 0
    shared: int = 0
    mma: int = 0
    wgmma: int = 0
    tcgen05: int = 0
    async_copies: int = 0
    narrow_copies: int = 0
    waits: tuple[int, ...] = ()
    buffers: int = 0
    wide_loads: int = 0
    error: str = ""

    @property
    def fits(self) -> bool:
        """Whether the GPU can start it."""
        return not self.error and self.shared <= LIMITS[self.capability].shared_program

    @property
    def programs_per_multiprocessor(self) -> int | None:
        """The number of programs that one multiprocessor holds, by registers, shared memory and threads."""
        if not self.fits:
            return None
        limits = LIMITS[self.capability]
        return programs_that_fit(
            self.registers, self.shared, self.num_warps, limits.shared_multiprocessor, limits.threads,
            self.capability // 10,
        )  # fmt: skip


def read_code(asm: Any) -> dict[str, Any]:
    """Counts from the compiler's output. asm: "ttgir" and "ptx" texts, "cubin" bytes."""
    ptx, ttgir = asm["ptx"], asm["ttgir"]
    copies = re.findall(r"cp\.async\.c[ag]\.shared\.global\s+\[[^]]*\], \[[^]]*\], (0x[0-9a-f]+|\d+)", ptx)
    # A tile that is fetched ahead lies in an array of tiles: memdesc<buffers x tokens x dims x type>.
    tiles = re.findall(r"ttg\.local_alloc\s*:\s*\(\)\s*->\s*!ttg\.memdesc<(\d+)x\d+x\d+x", ttgir)
    return dict(
        mma=len(re.findall(r"\bmma\.sync", ptx)),
        wgmma=len(re.findall(r"\bwgmma\.mma_async", ptx)),
        tcgen05=len(re.findall(r"\btcgen05\.mma", ptx)),
        async_copies=len(copies),
        narrow_copies=sum(int(size, 0) < 16 for size in copies),
        waits=tuple(int(n) for n in re.findall(r"cp\.async\.wait_group\s+(\d+)", ptx)),
        buffers=max(map(int, tiles), default=0),
        wide_loads=len(re.findall(r"ld\.global[\w.:]*\.v4\.(?:b32|f32|u32)", ptx)),
    ) | read_machine_code(asm["cubin"])


def read_machine_code(cubin: bytes) -> dict[str, int]:
    """Registers and spills of a compiled kernel, from `cuobjdump`, which Triton's wheel contains."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", "-sass", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers = re.search(r"REG:(\d+)", text)
    spills, in_loops = count_spills(text)
    return dict(
        instructions=len(re.findall(r"/\*[0-9a-f]{4,6}\*/ +\S", text)),
        registers=int(registers[1]),
        spills=spills,
        spills_in_loops=in_loops,
        single_conversions=len(re.findall(r"\bF2F\.", text)),
    )


def count_spills(sass: str) -> tuple[int, int]:
    """Spills of a listing of machine code: all, and those in loops, between a jump back and its target.

    LDL and STL load from and store to a thread's "local" memory, which is in the GPU's main memory.
    """
    lines = [(int(m[1], 16), m[2]) for m in re.finditer(r"/\*([0-9a-f]{4,6})\*/\s+(.*?);", sass)]
    spills = [address for address, code in lines if re.search(r"\b(?:LDL|STL)\b", code)]
    jumps = [
        (int(m[1], 16), address)
        for address, code in lines
        if (m := re.search(r"\bBRA\b.* 0x([0-9a-f]+)", code))
    ]
    return len(spills), sum(any(target <= s <= jump for target, jump in jumps) for s in spills)
