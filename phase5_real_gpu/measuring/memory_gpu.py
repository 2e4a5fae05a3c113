"""How fast a GPU reads from each of its memories, and how long it waits for a single number.

One kernel for all of them: every program goes over the same working set again and again, each from another
place on. A set that fits beside a multiprocessor is read from its L1 cache, a larger one from the L2 cache that
all share, one larger still from HBM. Registers have no addresses to sweep: they are timed with multiplications
that find all their numbers there.
"""

import torch

from phase5_real_gpu.kernels.triton_setup import require_triton, tl, triton
from phase5_real_gpu.measuring import memory_cpu
from phase5_real_gpu.measuring.measurements import GB
from phase5_real_gpu.measuring.memory_cpu import KIB, circle
from phase5_real_gpu.measuring.timing import time_call

BLOCK = 4096  # numbers that a program reads at a time: 16 KiB
PROGRAMS_PER_MULTIPROCESSOR = 8


@triton.jit
def sweep_kernel(
    out,  # [programs] int32
    numbers,  # [SIZE] int32
    size,  # a power of two, and a multiple of BLOCK
    stride,  # how far apart the programs begin, a multiple of BLOCK
    turns,
    BLOCK: tl.constexpr,
):
    """Each program adds up `turns` blocks, and begins again at the front when it comes to the end."""
    program = tl.program_id(0)
    places = tl.arange(0, BLOCK)
    start = (program.to(tl.int64) * stride) & (size - 1)
    total = tl.zeros([BLOCK], tl.int32)
    for turn in range(turns):
        # The place depends on the turn: a load that were always the same would be moved out of the loop.
        first = tl.multiple_of((start + turn * BLOCK) & (size - 1), BLOCK)  # the compiler does not see it
        total += tl.load(numbers + first + places)
    tl.store(out + program, tl.sum(total, axis=0))


@triton.jit
def jump_kernel(out, following, jumps):
    """One program, one number at a time: each says where the next one lies. It goes on where `out` says."""
    place = tl.load(out)
    for _ in range(jumps):
        place = tl.load(following + place)
    tl.store(out, place)


def cache_sizes() -> dict[str, int]:
    """{"L1": bytes beside one multiprocessor, "L2": bytes that all share}, as the driver says."""
    card = torch.cuda.get_device_properties(0)
    # L1 cache and shared memory are one piece of silicon, divided at need.
    return {"L1": card.shared_memory_per_multiprocessor, "L2": card.L2_cache_size}


def sweep_sizes(largest: int, quick: bool = False) -> list[int]:
    """Powers of two from 16 KiB, as the kernel needs them."""
    sizes = memory_cpu.sweep_sizes(largest, quick)
    return [size for size in sizes if size >= 16 * KIB and size & (size - 1) == 0]


def sweep(numbers: torch.Tensor, programs: int, turns: int) -> torch.Tensor:
    """[programs]: what each program's `turns` blocks add up to.

    Args:
        numbers: int32, a power of two of them, at least BLOCK.

    Raises:
        LabError: Triton is not installed.
    """
    require_triton()
    size = numbers.numel()
    out = torch.zeros(programs, dtype=torch.int32, device=numbers.device)
    # Neighbours begin far apart: one must not find in L1 what another has just fetched.
    stride = max(37, size // programs // BLOCK) * BLOCK
    sweep_kernel[(programs,)](out, numbers, size, stride, turns, BLOCK=BLOCK, num_warps=8)
    return out


def read_speed(size: int, seconds: float = 0.02) -> float:
    """GB/s of the whole card that reads a set of `size` bytes, a power of two, again and again."""
    card = torch.cuda.get_device_properties(0)
    programs = card.multi_processor_count * PROGRAMS_PER_MULTIPROCESSOR
    numbers = torch.ones(size // 4, dtype=torch.int32, device="cuda")
    turns = max(8, 16 * 2**30 // (programs * BLOCK * 4))  # 16 GiB in all: a millisecond from a cache
    if int(sweep(numbers, programs, turns)[0]) != turns * BLOCK:
        raise AssertionError("the sum is wrong")
    timing = time_call(lambda: sweep(numbers, programs, turns), "cuda", seconds, cold=False)
    return programs * turns * BLOCK * 4 / (timing.low_us / 1e6) / GB


def jump_time(size: int, jumps: int = 20_000) -> float:
    """Nanoseconds to fetch one number whose address was not known before.

    Each call goes on where the one before stopped. From the same start it would walk the same few lines again, and
    those would be in a cache by then.
    """
    following = torch.from_numpy(circle(size)).to("cuda")
    out = torch.zeros(1, dtype=torch.int64, device="cuda")
    timing = time_call(
        lambda: jump_kernel[(1,)](out, following, jumps, num_warps=1), "cuda", 0.02, least=3, cold=False
    )
    return 1000 * timing.median_us / jumps
