"""write_kv: each key and value in its slot, to the last bit, and nothing else in the whole memory touched."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phase5_real_gpu.kernels.write_kv_kernel import write_kv
from tests.phase5_real_gpu.conftest import DTYPES, bits
from tests.properties import unshrunk

pytest.importorskip("triton")


request = st.one_of(
    st.tuples(st.just(0), st.integers(1, 20)), st.tuples(st.integers(1, 40), st.integers(0, 8))
)


def memory(case):
    """All memory, the guards and the other layer included, as whole numbers."""
    return bits(case.data).clone()


@given(
    requests=st.lists(request, min_size=1, max_size=4),
    skipped=st.lists(st.booleans(), min_size=80, max_size=80),
    kv_heads=st.sampled_from([1, 2, 3, 5, 8]),
    dim=st.sampled_from([16, 32, 40, 80, 96, 128, 256]),
    block_size=st.sampled_from([1, 8, 16, 24, 64, 256]),
    dtype=st.sampled_from(DTYPES),
    slot_dtype=st.sampled_from([torch.int32, torch.int64]),
    seed=st.integers(0, 2**31),
)
@settings(unshrunk, max_examples=25)
def test_each_token_in_its_slot_or_in_none(lab, requests, skipped, slot_dtype, **shape):
    """And nothing else in the whole memory changes."""
    case = lab.paged_case(requests, new_too=False, **shape)
    slots = case.new_slots
    skip = torch.tensor(skipped[: len(slots)], dtype=torch.bool, device=lab.device)
    flat = [bits(cache).flatten(0, 1) for cache in (case.k_cache, case.v_cache)]
    kept = [numbers[slots[skip]] for numbers in flat]
    new = case.new(case.given[0]), case.new(case.given[1])
    write_kv(*new, case.k_cache, case.v_cache, slots.masked_fill(skip, -1).to(slot_dtype))
    got = memory(case)
    case.fill()
    for numbers, old in zip(flat, kept):
        numbers[slots[skip]] = old
    assert torch.equal(got, memory(case))


def test_keys_and_values_that_lie_in_memory_each_in_its_own_way(lab):
    """q, k and v come out of one product; and the values' rows and heads may be in another order."""
    case = lab.paged_case([(5, 4), (0, 3)], new_too=False)
    keys, values = case.new(case.given[0]), case.new(case.given[1])
    qkv = torch.cat([torch.full((7, 128), math.nan, device=lab.device), keys.flatten(1)], 1)
    k, v = qkv[:, 128:].view(7, 2, 32), values.transpose(0, 1).contiguous().transpose(0, 1)
    assert not k.is_contiguous() and not v.is_contiguous()
    write_kv(k, v, case.k_cache, case.v_cache, case.new_slots)
    got = memory(case)
    assert torch.equal(got, memory(case.fill()))
