"""TritonPagedKVCache behind the seam: the same as Phase 3's PagedKVCache, step by step."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phase3_paged_attention.paging import PagedKVCache, StepLayout
from phase5_real_gpu import triton_paged_attention
from phase5_real_gpu.kernels.triton_kv_cache import TritonPagedKVCache
from tests.phase5_real_gpu.conftest import DTYPES
from tests.properties import softcaps, unshrunk, windows

pytest.importorskip("triton")

request = st.one_of(
    st.tuples(st.just(0), st.integers(1, 30)),
    st.tuples(st.integers(1, 60), st.integers(2, 12)),
    st.tuples(st.integers(0, 70), st.just(1)),
)


def cache_of(case, cls=TritonPagedKVCache, layer=1, **options):
    """A cache with what was computed before the step in a layer, and NaN everywhere else."""
    cache = cls(case.config, case.num_blocks, case.block_size, case.cache_dtype, case.device, **options)
    cache.storage.data.copy_(torch.full(cache.storage.data.shape, math.nan))
    case.k_cache, case.v_cache = cache.storage.k_cache[layer], cache.storage.v_cache[layer]
    case.fill(new_too=False)
    return cache


def attend(case, cache, layer=1):
    cache.begin_step(case.layout())
    return cache.attend(layer, case.q, case.new(case.given[0]), case.new(case.given[1]))


@given(
    requests=st.lists(request, min_size=1, max_size=5),
    kv_heads=st.integers(1, 2),
    group=st.integers(1, 5),
    dim=st.sampled_from([32, 40, 64]),
    block_size=st.sampled_from([1, 8, 16, 64]),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**31),
    window=windows,
    softcap=softcaps,
)
@settings(unshrunk, max_examples=12)
def test_a_mixed_step(lab, requests, dtype, **shape):
    """Prompts, chunks and single tokens in any order, side by side or not."""
    case = lab.Case([n for _, n in requests], [p + n for p, n in requests], dtype=dtype, **shape)
    reference = cache_of(case, PagedKVCache, use_kernel=False)
    wanted = attend(case, reference)
    cache = cache_of(case)
    out = attend(case, cache)
    case.assert_right(out)
    lab.assert_near(out, wanted, lab.tolerance[dtype])
    # Stored there, and nowhere else.
    assert torch.equal(lab.bits(cache.storage.data), lab.bits(reference.storage.data))


@pytest.mark.parametrize("reader_first", [True, False])
def test_a_request_reads_what_another_writes_in_the_same_step(lab, reader_first):
    """Two requests begin alike, admitted in the same step: the second finds the first one's blocks."""
    torch.manual_seed(0)
    a, b = list(range(10)), [*range(8), 10, 11]  # places in k and v; 8 tokens are shared, in blocks 5 and 2
    k, v = torch.randn(2, 12, 1, 32, device=lab.device)
    q = torch.randn(12, 2, 32, device=lab.device)
    slots = [20, 21, 22, 23, 8, 9, 10, 11, 4, 5, 12, 13]
    parts = [([10, 11], 10, [5, 2, 3]), (a, 10, [5, 2, 1])]
    if not reader_first:
        parts.reverse()
    rows = [r for part in parts for r in part[0]]
    cache = TritonPagedKVCache(lab.model_config(2, 1, 32, 1), 7, 4, device=lab.device)
    cache.storage.data.fill_(math.nan)
    cache.begin_step(
        StepLayout(
            [len(p[0]) for p in parts], [p[1] for p in parts], [p[2] for p in parts],
            torch.tensor([slots[r] for r in rows], device=lab.device),
        )
    )  # fmt: skip
    out = torch.empty_like(q)
    out[rows] = cache.attend(0, q[rows], k[rows], v[rows])
    lab.assert_near(out[:10], lab.plain_attention(q[:10], k[:10], v[:10]))
    lab.assert_near(out[10:], lab.plain_attention(q[10:], k[b], v[b]))


@pytest.mark.proof
def test_the_script_whose_engine_writes_the_same_tokens(run_script):
    claims = run_script(triton_paged_attention, "--quick", figures=["how_many_splits"])["claims"]
    assert {"engine-on-kernels", "kernels-agree", "write-kv-agrees", "splits-many-users"} <= claims.keys()
