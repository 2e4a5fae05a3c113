"""The fp8 KV cache: stored numbers are right to their last bit, attention reads them as what they stand for.

Only a GPU shows how a card rounds. The interpreter's conversion to 8 bits is wrong (it loses the carry: 1.97 becomes
1.0), so there the kernel rounds by itself first. Limits and addresses are proven here.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phase5_real_gpu.fused.store_kernel import store
from tests.phase5_real_gpu.conftest import DTYPES
from tests.properties import unshrunk

pytest.importorskip("triton")

FP8 = torch.float8_e4m3fn


def write(case):
    new = (case.new(given) for given in case.given)
    store(*new, case.k_cache, case.v_cache, case.new_slots)


# ---------------------------------------------------------------------- storing


def test_fp8_is_rounded_as_torch_rounds(lab):
    case = lab.Case([33], [33], dim=64, seed=2, cache_dtype=FP8)
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
    case = lab.Case([len(FP8_ENDS)], [len(FP8_ENDS)], kv_heads=1, cache_dtype=FP8)
    for texts in case.given:
        texts[0][:] = torch.tensor(list(FP8_ENDS), device=lab.device)[:, None, None]
    write(case)
    for cache in (case.k_cache, case.v_cache):
        got = cache.float().view(-1, 32)[case.new_slots]
        assert got[:, 0].tolist() == list(FP8_ENDS.values()) and (got == got[:, :1]).all()
    case.given[0][0][0] = math.nan
    write(case)
    assert case.k_cache.float().view(-1, 32)[case.new_slots[0]].isnan().all()


# ---------------------------------------------------------------------- attention


@pytest.mark.parametrize("attention", ["prefill", 1, 3])
@given(
    requests=st.lists(st.tuples(st.integers(0, 70), st.integers(1, 20)), min_size=1, max_size=3),
    group=st.integers(1, 8),
    dim=st.sampled_from([32, 80, 128]),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**31),
)
@settings(unshrunk, max_examples=5)
def test_attention_over_fp8(lab, attention, requests, **shape):
    """Equal to the definition over the numbers that the 8 bits stand for."""
    settings = dict(kv_heads=1, cache_dtype=FP8, **shape)
    if attention == "prefill":
        case = lab.paged_case(requests, **settings)
        case.assert_right(case.prefill())
    else:
        case = lab.decode_case([sum(r) for r in requests], **settings)
        case.assert_right(case.decode(num_splits=attention))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_every_fp8_number_is_read_as_what_it_stands_for(lab, dtype):
    """All 254 of them, as values of requests with a single token: that one's weight is 1."""
    case = lab.decode_case([1] * 8, kv_heads=1, group=1, dim=32, dtype=dtype, cache_dtype=FP8)
    codes = torch.arange(256, dtype=torch.uint8, device=lab.device)
    codes[[0x7F, 0xFF]] = 0  # NaN
    for value, row in zip(case.stored[1], codes.view(8, 1, 1, 32)):
        lab.bits(value)[:] = row
    wanted = codes.view(FP8).float().to(dtype).view(8, 1, 32)
    for num_splits in (1, 2):
        assert torch.equal(case.fill().decode(num_splits=num_splits), wanted)
