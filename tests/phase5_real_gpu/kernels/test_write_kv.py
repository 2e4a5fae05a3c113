"""write_kv: each key and value in its slot, to the last bit, and nothing else in the whole memory touched."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phase5_real_gpu.kernels.triton_setup import HAS_TRITON, card_problem

if not HAS_TRITON:
    pytest.skip("needs Triton", allow_module_level=True)

from phase5_real_gpu.kernels.write_kv_kernel import write_kv
from tests.properties import unshrunk

FP8 = torch.float8_e4m3fn
DTYPES = [t for t in (torch.float32, torch.float16, torch.bfloat16) if not card_problem(t)]

request = st.one_of(
    st.tuples(st.just(0), st.integers(1, 20)),
    st.tuples(st.integers(1, 40), st.integers(0, 8)),
)


def make(lab, requests, **settings):
    """The tokens before the step's own are in their blocks."""
    case = lab.Case([n for _, n in requests], [p + n for p, n in requests], **settings)
    return case.fill(new_too=False)


def write(case, slots=None, **options):
    new = case.new(case.given[0]), case.new(case.given[1])
    scales = dict(k_scale=case.k_scale, v_scale=case.v_scale)
    slots = case.new_slots if slots is None else slots
    write_kv(*new, case.k_cache, case.v_cache, slots, **scales | options)
    return memory(case)


def memory(case):
    """All memory, the guards and the other layer included, as whole numbers."""
    return case.data.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[case.data.element_size()]).clone()


@given(
    requests=st.lists(request, min_size=1, max_size=4),
    kv_heads=st.sampled_from([1, 2, 3, 5, 8]),
    dim=st.sampled_from([16, 32, 40, 80, 96, 128, 256]),
    block_size=st.sampled_from([1, 8, 16, 24, 64, 256]),
    dtype=st.sampled_from(DTYPES),
    slot_dtype=st.sampled_from([torch.int32, torch.int64]),
    seed=st.integers(0, 2**31),
)
@settings(unshrunk, max_examples=20)
def test_each_token_in_its_slot(lab, requests, slot_dtype, **shape):
    case = make(lab, requests, **shape)
    got = write(case, case.new_slots.to(slot_dtype), checked=True)
    case.fill()
    assert torch.equal(got, memory(case))


@given(
    requests=st.lists(request, min_size=1, max_size=3),
    skipped=st.lists(st.booleans(), min_size=60, max_size=60),
    seed=st.integers(0, 2**31),
)
@settings(unshrunk, max_examples=10)
def test_tokens_without_a_slot_are_skipped(lab, requests, skipped, seed):
    case = make(lab, requests, seed=seed)
    slots = case.new_slots
    skip = torch.tensor(skipped[: len(slots)], dtype=torch.bool, device=lab.device)
    before = case.data.clone()
    write(case, slots.masked_fill(skip, -1))
    written = case.data.clone()
    case.fill()
    for i in range(2):
        flat = [t[i, 1, lab.guard : -lab.guard].reshape(-1, 2, 32) for t in (before, written, case.data)]
        assert torch.equal(lab.bits(flat[1][slots[skip]]), lab.bits(flat[0][slots[skip]]))
        assert torch.equal(flat[1][slots[~skip]], flat[2][slots[~skip]])
    # Nothing else changed.
    changed = (lab.bits(before) != lab.bits(written)).any(-1).any(-1).sum().item()
    assert changed == 2 * (~skip).sum().item()


def test_all_skipped_or_none_there(lab):
    case = make(lab, [(3, 5)])
    before = memory(case)
    assert torch.equal(write(case, torch.full((5,), -1, device=lab.device)), before)
    case = make(lab, [(3, 0)])
    before = memory(case)
    assert torch.equal(write(case), before)


def test_keys_and_values_cut_out_of_one_tensor(lab):
    """q, k and v come out of one product; k and v may also lie in memory each in its own way."""
    case = make(lab, [(5, 4), (0, 3)], kv_heads=2, dim=32)
    keys, values = case.new(case.given[0]), case.new(case.given[1])
    qkv = torch.cat(
        [torch.full((7, 128), math.nan, device=lab.device), keys.flatten(1), values.flatten(1)], 1
    )
    k, v = qkv[:, 128:192].view(7, 2, 32), qkv[:, 192:].view(7, 2, 32)
    assert not k.is_contiguous()
    write_kv(k, v, case.k_cache, case.v_cache, case.new_slots)
    got = memory(case)
    assert torch.equal(got, memory(case.fill()))
    case = make(lab, [(5, 4), (0, 3)], kv_heads=2, dim=32)
    turned = values.transpose(0, 1).contiguous().transpose(0, 1)  # another order of rows and heads
    assert turned.stride() != k.stride()
    write_kv(k, turned, case.k_cache, case.v_cache, case.new_slots)
    assert torch.equal(memory(case), got)


# ---------------------------------------------------------------------- fp8
#
# Only a GPU shows how a card rounds. The interpreter's conversion to 8 bits is wrong (it loses the carry: 1.97 becomes
# 1.0), so there the kernel rounds by itself first. What is proven are its scales, its limits and its addresses.


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scales", [(1.0, 1.0), (0.25, 2.0), (0.02, 0.3)], ids=str)
def test_fp8_is_within_its_rounding(lab, dtype, scales):
    case = make(
        lab, [(5, 20), (0, 9)], kv_heads=3, dim=80, dtype=dtype, cache_dtype=FP8, k_scale=scales[0],
        v_scale=scales[1], seed=1,
    )  # fmt: skip
    write(case)
    for cache, texts, scale in zip((case.k_cache, case.v_cache), case.given, scales):
        got = cache.float().view(-1, 3, 80)[case.new_slots].double() * scale
        wanted = case.new(texts).double()
        # 3 bits behind the point: half of the last one is 1/16 of the number. Below 2^-6 steps stay equal.
        assert ((got - wanted).abs() <= (wanted.abs() / 16).clamp_min(scale * 2**-10) * (1 + 1e-5)).all()


@pytest.mark.parametrize("scales", [(1.0, 1.0), (0.25, 2.0)], ids=str)
def test_fp8_is_rounded_as_torch_rounds(lab, scales):
    """(By powers of two: with others, the division itself may round differently.)"""
    case = make(
        lab, [(0, 33)], kv_heads=2, dim=64, cache_dtype=FP8, k_scale=scales[0], v_scale=scales[1], seed=2
    )
    write(case)
    got = [cache.float() for cache in (case.k_cache, case.v_cache)]
    case.fill()
    for have, cache in zip(got, (case.k_cache, case.v_cache)):
        assert torch.equal(have.nan_to_num(7.0), cache.float().nan_to_num(7.0))  # (0 and -0 are the same)


FP8_ENDS = {
    448.0: 448, 470.0: 448, 1e6: 448, -500.0: -448, math.inf: 448, -math.inf: -448,
    0.0: 0, 2.0**-9: 2.0**-9, 2.0**-8 * 1.6: 2.0**-9 * 3, 2.0**-12: 0,
}  # fmt: skip


def test_fp8_stops_at_its_largest_number_and_at_its_smallest(lab):
    """Beyond 448 there is only NaN, and one NaN among the keys ruins every later token of its request. The smallest
    steps are 2^-9."""
    case = make(lab, [(0, len(FP8_ENDS))], kv_heads=1, cache_dtype=FP8)
    for texts in case.given:
        texts[0][:] = torch.tensor(list(FP8_ENDS), device=lab.device)[:, None, None]
    write(case)
    for cache in (case.k_cache, case.v_cache):
        got = cache.float().view(-1, 32)[case.new_slots]
        assert got[:, 0].tolist() == list(FP8_ENDS.values()) and (got == got[:, :1]).all()


def test_numbers_that_broke_down_stay_so_in_fp8(lab):
    """Infinity stops at the largest number, as any that is too large; NaN is not made into a number."""
    case = make(lab, [(0, 3)], kv_heads=1, cache_dtype=FP8)
    for texts in case.given:
        texts[0][:] = torch.tensor([float("nan"), float("inf"), -float("inf")], device=lab.device)[
            :, None, None
        ]
    write(case)
    for cache in (case.k_cache, case.v_cache):
        broken, largest, smallest = cache.float().view(-1, 32)[case.new_slots]
        assert broken.isnan().all() and (largest == 448).all() and (smallest == -448).all()
