"""How fast a GPU reads from each of its memories, and how long a single load takes.

One kernel measures all memories: every program reads the same working set again and again, and each program starts at
another place. A set that fits in the L1 cache of a multiprocessor is read from there, a larger set from the L2 cache that all
multiprocessors share, and a set larger than that from the GPU's main memory.
"""

import torch

from phase5_real_gpu.kernels.triton_setup import require_triton, tl, triton
from phase5_real_gpu.measuring import memory_cpu
from phase5_real_gpu.measuring.measurements import GB
from phase5_real_gpu.measuring.memory_cpu import KIB, circle
from phase5_real_gpu.measuring.timing import time_call

BLOCK = 4096  # numbers that a program reads at a time: 16 KiB
# A program has 256 threads of 40 to 63 registers (compiled for sm_75 to sm_120), so every GPU holds four at once. With more,
# some programs would start late and read alone at the end, which would lower the measured rate.
PROGRAMS_PER_MULTIPROCESSOR = 4


@triton.jit
def sweep_kernel(
    out,  # [programs] int32
    numbers,  # [SIZE] int32
    size,  # a power of two, and a multiple of BLOCK
    stride,  # how far apart the programs begin, a multiple of BLOCK
    turns,
    BLOCK: tl.constexpr,
):
    """Each program adds up `turns` blocks. At the end of the set it continues at the beginning."""
    program = tl.program_id(0)
    places = tl.arange(0, BLOCK)
    start = (program.to(tl.int64) * stride) & (size - 1)
    total = tl.zeros([BLOCK], tl.int32)
    for turn in range(turns):
        # The place depends on the turn: the compiler would move a load of a constant address out of the loop.
        first = tl.multiple_of((start + turn * BLOCK) & (size - 1), BLOCK)  # the compiler cannot infer it
        total += tl.load(numbers + first + places)
    tl.store(out + program, tl.sum(total, axis=0))


@triton.jit
def jump_kernel(out, following, jumps):
    """One program follows `jumps` links: each number is the index of the next one. `out` holds the first index, then the last."""
    place = tl.load(out)
    for _ in range(jumps):
        place = tl.load(following + place)
    tl.store(out, place)


def cache_sizes() -> dict[str, int]:
    """{"L1": bytes of one multiprocessor, "L2": bytes that all multiprocessors share}, as the driver reports them."""
    card = torch.cuda.get_device_properties(0)
    # L1 cache and shared memory divide one memory between them. The driver reports the part that shared memory can take.
    return {"L1": card.shared_memory_per_multiprocessor, "L2": card.L2_cache_size}


def sweep_sizes(largest: int, quick: bool = False) -> list[int]:
    """Powers of two from 16 KiB, as the kernel needs them."""
    sizes = memory_cpu.sweep_sizes(largest, quick)
    return [size for size in sizes if size >= 16 * KIB and size & (size - 1) == 0]


def sweep(numbers: torch.Tensor, programs: int, turns: int) -> torch.Tensor:
    """[programs]: the sum of each program's `turns` blocks.

    Args:
        numbers: int32, a power of two of them, at least BLOCK.

    Raises:
        LabError: Triton is not installed.
    """
    require_triton()
    size = numbers.numel()
    out = torch.zeros(programs, dtype=torch.int32, device=numbers.device)
    # Programs start far apart, so that no program finds data in L1 that another program has just loaded.
    stride = max(37, size // programs // BLOCK) * BLOCK
    sweep_kernel[(programs,)](out, numbers, size, stride, turns, BLOCK=BLOCK, num_warps=8)
    return out


def read_speed(size: int, seconds: float = 0.02) -> float:
    """GB/s of the whole GPU while it reads a set of `size` bytes, a power of two, again and again."""
    card = torch.cuda.get_device_properties(0)
    programs = card.multi_processor_count * PROGRAMS_PER_MULTIPROCESSOR
    numbers = torch.ones(size // 4, dtype=torch.int32, device="cuda")
    turns = max(8, 16 * 2**30 // (programs * BLOCK * 4))  # 16 GiB in all: a millisecond from a cache
    if int(sweep(numbers, programs, turns)[0]) != turns * BLOCK:
        raise AssertionError("the sum is wrong")
    timing = time_call(lambda: sweep(numbers, programs, turns), "cuda", seconds, cold=False)
    return programs * turns * BLOCK * 4 / (timing.low_us / 1e6) / GB


def jump_time(size: int, jumps: int = 20_000) -> float:
    """Nanoseconds to load one number whose address depends on the previous load.

    Each call continues where the previous call stopped. From the same start it would follow the same links again, and
    they would be in a cache by then.
    """
    following = torch.from_numpy(circle(size)).to("cuda")
    out = torch.zeros(1, dtype=torch.int64, device="cuda")
    timing = time_call(
        lambda: jump_kernel[(1,)](out, following, jumps, num_warps=1), "cuda", 0.02, least=3, cold=False
    )
    return 1000 * timing.median_us / jumps
