"""paged_prefill alone: runs, the diagonal, and itself in other portions. See test_attention.py for the rest."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phase5_real_gpu.kernels import prefill_kernel
from phase5_real_gpu.kernels.decode import tile_tokens
from phase5_real_gpu.kernels.prefill_kernel import prefill_shape
from tests.phase5_real_gpu.conftest import DTYPES
from tests.properties import softcaps, unshrunk, windows

pytest.importorskip("triton")


# (tokens computed before, new tokens): fresh prompts, chunks behind something, single tokens, none.
request = st.one_of(
    st.tuples(st.just(0), st.integers(1, 40)),
    st.tuples(st.integers(1, 130), st.integers(2, 20)),
    st.tuples(st.integers(0, 90), st.just(1)),
    st.tuples(st.integers(0, 30), st.just(0)),
)


@given(
    requests=st.lists(request, min_size=1, max_size=6),
    kv_heads=st.integers(1, 2),
    group=st.integers(1, 16),
    dim=st.sampled_from([16, 32, 40, 48, 64, 80, 96, 128, 256]),
    block_size=st.sampled_from([1, 3, 8, 16, 24, 32, 64, 128, 256]),
    dtype=st.sampled_from(DTYPES),
    window=windows,
    softcap=softcaps,
    seed=st.integers(0, 2**31),
)
@settings(unshrunk, max_examples=15)
def test_is_the_definition(lab, requests, **shape):
    case = lab.paged_case(requests, **shape)
    case.assert_right(case.prefill(out=torch.full_like(case.q, math.nan)))


@pytest.mark.parametrize("before", [-1, 0, 1])
@pytest.mark.parametrize("new", [-1, 0, 1])
def test_lengths_around_whole_tiles_and_runs(lab, before, new):
    """The seams: between tiles that all rows see and those across the diagonal, between programs, and within one."""
    tile, run = tile_tokens(32, 4), prefill_shape(2, 32, 4)[1]
    requests = [(tile + before, run + new), (0, 2 * run + new), (tile - run // 2, run + new)]
    case = lab.paged_case(requests, kv_heads=1, block_size=8, seed=1)
    case.assert_right(case.prefill())


def test_a_shape_that_a_card_has_no_room_for_is_refused(monkeypatch):
    monkeypatch.setattr(prefill_kernel, "INTERPRETED", False)
    monkeypatch.setattr(prefill_kernel, "capability", lambda: (8, 9))
    assert prefill_shape(32, 256, 2)[0] == 32
    with pytest.raises(ValueError, match="64 query heads per KV head of 256: no room on this GPU"):
        prefill_shape(64, 256, 2)
