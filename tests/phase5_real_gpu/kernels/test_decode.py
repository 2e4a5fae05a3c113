"""paged_decode alone: splits and plans. What holds for prefill as well is in test_attention.py."""

import math
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phase5_real_gpu.kernels import decode, paged_decode
from phase5_real_gpu.kernels.decode import DecodePlan
from phase5_real_gpu.kernels.split_rule import MOST_SPLITS, Splits
from phase5_real_gpu.kernels.triton_setup import INTERPRETED
from phase5_real_gpu.ladder.counted_loads import count_loads
from tests.phase5_real_gpu.conftest import DTYPES
from tests.properties import softcaps, unshrunk, windows

pytest.importorskip("triton")


@given(
    context_lens=st.lists(st.one_of(st.integers(0, 3), st.integers(0, 140)), min_size=1, max_size=4),
    kv_heads=st.integers(1, 2),
    group=st.integers(1, 16),
    dim=st.sampled_from([16, 32, 40, 48, 64, 80, 96, 128, 192, 256]),
    block_size=st.sampled_from([1, 3, 8, 16, 24, 32, 64, 128, 256]),
    dtype=st.sampled_from(DTYPES),
    num_splits=st.sampled_from([None, 1, 2, 3, 5, 8, MOST_SPLITS]),
    window=windows,
    softcap=softcaps,
    seed=st.integers(0, 2**31),
)
@settings(unshrunk, max_examples=14)
def test_is_the_definition(lab, context_lens, num_splits, **shape):
    case = lab.decode_case(context_lens, **shape)
    case.assert_right(case.decode(num_splits=num_splits, out=torch.full_like(case.q, math.nan)))


@pytest.mark.skipif(not INTERPRETED, reason="loads are counted in the interpreter")
def test_empty_splits_do_nothing(lab):
    """One long request among short ones: a program without tokens loads no query, no block number, no key."""
    case = lab.decode_case([300, 10, 5], kv_heads=1, group=2, dim=32, block_size=16, seed=5)
    tables = case.block_tables()
    with count_loads(q=case.q, keys=case.k_cache, tables=tables) as counted:
        out = paged_decode(case.q, case.k_cache, case.v_cache, tables, case.lens(), num_splits=5)
    case.assert_right(out)
    with_tokens = 3 + 1 + 1  # splits of 128 tokens
    assert counted.programs == 3 * 5 + 3 * 2  # and those that merge
    assert counted.loaded["q"] == with_tokens * 2 * 32 * 4
    assert counted.loaded["keys"] == sum(case.context_lens) * 32 * 4
    assert counted.loaded["tables"] == sum(case.context_lens) * 4


@pytest.mark.skipif(not INTERPRETED, reason="instructions are counted in the interpreter")
def test_an_empty_split_is_a_short_program(lab, monkeypatch):
    """With one context of 128k tokens beside 63 of 200, nearly all programs of a layer are such."""
    from triton.runtime.interpreter import interpreter_builder as builder

    done = []
    # Compiled kernels do not look for overflow.
    monkeypatch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))
    for name in dir(builder):
        if name.startswith("create_"):
            real = getattr(builder, name)
            monkeypatch.setattr(
                builder, name, lambda *a, real=real, name=name, **k: done.append(name) or real(*a, **k)
            )
    monkeypatch.setattr(decode, "merge_kernel", {(3, 4): lambda *a, **k: None})
    for window in (None, 100):
        done.clear()
        case = lab.decode_case([0, 0, 0], kv_heads=2, group=2, window=window)
        case.decode(num_splits=5)
        assert 0 < len(done) / (3 * 2 * 5) <= 50, done[: len(done) // 30]


# ---------------------------------------------------------------------- memory


def test_a_plan_serves_other_lengths_and_is_not_used_up(lab):
    """As in a recorded CUDA graph: the same launch and the same room, with other numbers in them."""
    plan = DecodePlan.make(3, 4, 32, Splits(4, 64), lab.device)
    for lens in ([200, 10, 0], [1, 256, 70], [0, 0, 5]):
        case = lab.decode_case(lens, seed=sum(lens))
        case.assert_right(case.decode(plan=plan))
    plan.split_tokens.fill_(128)  # other lengths are cut elsewhere
    case = lab.decode_case([500, 129, 3], kv_heads=2, seed=11)
    case.assert_right(case.decode(plan=plan))


OUTSIDE = """
import ctypes
import mmap
import torch
from phase5_real_gpu.kernels import paged_decode, paged_prefill, write_kv
from phase5_real_gpu.kernels.triton_setup import INTERPRETED

device = "cpu" if INTERPRETED else "cuda"
kept = []

def at_the_edge(x):  # a copy, right behind which memory begins that may not be touched
    if not INTERPRETED:
        return x.to(device)
    size = x.numel() * x.element_size()
    room = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, room + mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + room), mmap.PAGESIZE, 0) == 0
    kept.append(memory)
    copy = torch.frombuffer(memory, dtype=x.dtype, count=x.numel(), offset=room - size).view(x.shape)
    return copy.copy_(x)

q = at_the_edge(torch.randn(21, 3, 40))
k, v, new_k, new_v = (at_the_edge(torch.randn(n, 8, 1, 40)) for n in (6, 6, 3, 3))
new_k, new_v = new_k.view(24, 1, 40)[3:], new_v.view(24, 1, 40)[3:]
far = 2**30  # hundreds of gigabytes behind the pool
lens = at_the_edge(torch.tensor([5, 16], dtype=torch.int32))
starts = at_the_edge(torch.tensor([0, 5, 21], dtype=torch.int32))
slots = at_the_edge(torch.tensor([*range(40, 45), *range(24, 32), *range(8, 16)]))
room = at_the_edge(torch.empty(21, 3, 40))
for tables in ([[5, far], [3, 1]], [[5, far, -far, far], [3, 1, far, -far]]):
    tables = at_the_edge(torch.tensor(tables, dtype=torch.int32))
    write_kv(new_k, new_v, k, v, slots)
    for num_splits in (1, 2):
        assert paged_decode(q[19:], k, v, tables, lens, num_splits=num_splits, out=room[19:]).isfinite().all()
    assert paged_prefill(q, k, v, tables, starts, lens, out=room).isfinite().all()
print("alive", flush=True)
"""


def test_nothing_is_read_or_written_outside():
    """Every tensor lies at the edge of what may be touched, and tables go on with numbers that lead far away.

    In a process of its own: the first wrong address would end it. (On a GPU only the numbers in the tables would.)
    """
    done = subprocess.run([sys.executable, "-c", OUTSIDE], capture_output=True, text=True, timeout=240)
    assert done.stdout == "alive\n", done.stderr[-2000:] or f"ended with {done.returncode}"
