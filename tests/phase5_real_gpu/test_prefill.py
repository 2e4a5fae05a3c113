"""paged_prefill against the definition in float64, Phase 3's reading, and itself in other portions."""

import math

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from phase3_paged_attention.paging.paged_attention import paged_attention_vectorised
from phase5_real_gpu.kernels.triton_setup import HAS_TRITON

if not HAS_TRITON:
    pytest.skip("needs Triton", allow_module_level=True)

from phase5_real_gpu.kernels.decode_kernel import paged_decode, tile_tokens
from phase5_real_gpu.kernels.prefill_kernel import paged_prefill, prefill_shape
from phase5_real_gpu.kernels.write_kv_kernel import write_kv

relaxed = dict(
    deadline=None,
    derandomize=True,
    phases=[
        Phase.explicit,
        Phase.generate,
    ],  # looking for a smaller example would take the interpreter minutes
    suppress_health_check=[HealthCheck.too_slow],
)
FP8 = torch.float8_e4m3fn

# (tokens computed before, new tokens): fresh prompts, chunks behind something, single tokens, nobody.
request = st.one_of(
    st.tuples(st.just(0), st.integers(1, 40)),
    st.tuples(st.integers(1, 130), st.integers(2, 20)),
    st.tuples(st.integers(0, 90), st.just(1)),
    st.tuples(st.integers(0, 30), st.just(0)),
)


def make(lab, requests, **settings):
    return lab.Case([n for _, n in requests], [p + n for p, n in requests], **settings).fill()


def prefill(case, **options):
    scales = dict(k_scale=case.k_scale, v_scale=case.v_scale)
    return paged_prefill(
        case.q, case.k_cache, case.v_cache, case.block_tables(), case.cu_query_lens, case.lens(),
        **scales | options,
    )  # fmt: skip


@given(
    requests=st.lists(request, min_size=1, max_size=4),
    kv_heads=st.integers(1, 2),
    group=st.integers(1, 16),
    dim=st.sampled_from([32, 40, 64, 80, 96, 128, 256]),
    block_size=st.sampled_from([8, 16, 24, 32, 64, 128, 256]),
    dtype=st.sampled_from([torch.float32, torch.float16]),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=30, **relaxed)
def test_is_the_definition(lab, requests, kv_heads, group, dim, block_size, dtype, seed):
    case = make(
        lab, requests, kv_heads=kv_heads, group=group, dim=dim, block_size=block_size, dtype=dtype, seed=seed
    )
    case.assert_right(prefill(case))


@pytest.mark.parametrize("group", range(1, 17))
def test_every_number_of_queries_a_kv_head(lab, group):
    """Where the number divides no power of two, a program's last rows belong to nobody."""
    case = make(lab, [(3, 6), (0, 1)], kv_heads=2, group=group, seed=group)
    case.assert_right(prefill(case))


@pytest.mark.parametrize("block_size", [1, 3, 8, 16, 32, 64, 128, 256])
def test_block_sizes_smaller_and_larger_than_a_tile(lab, block_size):
    case = make(lab, [(0, block_size % 20 + 1), (70, 9)], kv_heads=1, block_size=block_size, seed=block_size)
    case.assert_right(prefill(case))


@pytest.mark.parametrize("dim", [16, 32, 48, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_head_dims(lab, dim, dtype):
    case = make(lab, [(20, 9)], kv_heads=1, group=3, dim=dim, dtype=dtype, seed=dim)
    case.assert_right(prefill(case))


@pytest.mark.parametrize("before", [-1, 0, 1])
@pytest.mark.parametrize("new", [-1, 0, 1])
def test_lengths_around_whole_tiles_and_runs(lab, before, new):
    """The seams: between tiles that all rows see and those across the diagonal, and between programs."""
    tile, run = tile_tokens(32, 4), prefill_shape(2, 32, 4)[1]
    case = make(lab, [(tile + before, run + new), (0, 2 * run + new)], kv_heads=1, block_size=8, seed=1)
    case.assert_right(prefill(case))


@pytest.mark.parametrize(
    "requests",
    [
        [(0, 1)],
        [(5, 0), (0, 3)],
        [(0, 3), (0, 0)],
        [(0, 0), (0, 0), (7, 2), (0, 0), (0, 9), (4, 0)],
        [(9, 1)] * 9,
    ],
    ids=str,
)
def test_requests_without_a_token_or_with_one(lab, requests):
    case = make(lab, requests, kv_heads=1)
    case.assert_right(prefill(case, out=torch.full_like(case.q, math.nan)))


def test_nobody_at_all(lab):
    for requests in ([], [(0, 0)], [(4, 0), (0, 0)]):
        case = make(lab, requests)
        assert prefill(case).shape == (0, 4, 32)


def test_no_token_sees_a_later_one(lab):
    """The later ones hold NaN, in K and in V: a weight of exactly 0 would still let them through."""
    case = make(lab, [(0, 40)], kv_heads=1, block_size=8, seed=2)
    wanted = case.expected()
    for seen in (1, 2, 15, 16, 17, 33):
        flat = [c.view(-1, 1, 32) for c in (case.k_cache, case.v_cache)]
        for cache in flat:
            cache[torch.tensor(case.slots(0)[seen:], device=lab.device)] = math.nan
        first = paged_prefill(
            case.q[:seen], case.k_cache, case.v_cache, case.block_tables(),
            torch.tensor([0, seen], dtype=torch.int32, device=lab.device),
            torch.tensor([seen], dtype=torch.int32, device=lab.device),
        )  # fmt: skip
        lab.assert_near(first, wanted[:seen])
        case.fill()
    keys = case.k_cache.view(-1, 1, 32)  # and within one launch: finite numbers that would be noticed
    keys[torch.tensor(case.slots(0)[20:], device=lab.device)] = 1e4
    case.v_cache.view(-1, 1, 32)[torch.tensor(case.slots(0)[20:], device=lab.device)] = 1e4
    lab.assert_near(prefill(case)[:20], wanted[:20])


def test_scores_far_apart(lab):
    case = make(lab, [(70, 9), (0, 20)], kv_heads=1, block_size=8, stretch=300.0, seed=3)
    lab.assert_near(prefill(case), case.expected(), 2e-3)


def test_scale_of_ones_own(lab):
    case = make(lab, [(40, 3), (0, 9)])
    case.assert_right(prefill(case, scale=0.5), scale=0.5)


@pytest.mark.parametrize("seed", range(3))
def test_phase_3_vectorised(lab, seed):
    case = make(lab, [(0, 30), (65, 7), (12, 1)], kv_heads=2, group=4, dim=64, seed=seed)
    caches = (case.k_cache, case.v_cache)
    wanted = paged_attention_vectorised(
        case.q, *caches, case.block_tables(0), case.query_lens, case.context_lens
    )
    lab.assert_near(prefill(case), wanted)


# ---------------------------------------------------------------------- the same in other portions


@given(
    lens=st.lists(st.integers(0, 140), min_size=1, max_size=4),
    group=st.sampled_from([1, 3, 4, 16]),
    dim=st.sampled_from([32, 80]),
    block_size=st.sampled_from([8, 16, 64]),
    num_splits=st.sampled_from([1, 3]),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=10, **relaxed)
def test_a_decode_row_is_a_prefill_of_one_token(lab, lens, group, dim, block_size, num_splits, seed):
    lens = [n + 1 for n in lens]
    case = lab.decode_case(lens, group=group, kv_heads=1, dim=dim, block_size=block_size, seed=seed)
    tables = case.block_tables(), case.lens()
    decoded = paged_decode(case.q, case.k_cache, case.v_cache, *tables, num_splits=num_splits)
    lab.assert_near(prefill(case), decoded)


@given(
    length=st.integers(1, 90),
    chunks=st.lists(st.sampled_from([1, 1, 2, 3, 7, 16, 50]), min_size=1, max_size=6),
    block_size=st.sampled_from([8, 16, 64]),
    group=st.sampled_from([1, 3, 4]),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=10, **relaxed)
def test_any_chunks_are_the_prompt_at_once(lab, length, chunks, block_size, group, seed):
    """Each chunk is stored by write_kv and attends; what comes after it is still NaN."""
    case = lab.Case([length], [length], kv_heads=1, group=group, block_size=block_size, seed=seed)
    done, turn, rows = 0, 0, []
    keys, values = (t[0] for t in case.given)
    slots = case.new_slots
    while done < length:
        n = min(chunks[turn % len(chunks)], length - done)
        part = slice(done, done + n)
        write_kv(keys[part], values[part], case.k_cache, case.v_cache, slots[part])
        done, turn = done + n, turn + 1
        rows.append(
            paged_prefill(
                case.q[part], case.k_cache, case.v_cache, case.block_tables(),
                torch.tensor([0, n], dtype=torch.int32, device=lab.device),
                torch.tensor([done], dtype=torch.int32, device=lab.device), checked=True,
            )
        )  # fmt: skip
    chunked = torch.cat(rows)
    case.assert_right(chunked)
    lab.assert_near(chunked, prefill(case))


# ---------------------------------------------------------------------- other number formats, memory


def test_bfloat16(lab):
    """In the interpreter this proves addresses, not a card's products of bfloat16 (see test_decode.py)."""
    case = make(lab, [(40, 9), (0, 20)], group=4, dim=64, dtype=torch.bfloat16, seed=4)
    case.assert_right(prefill(case))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scales", [(1.0, 1.0), (0.02, 0.3), (4.0, 0.05)])
def test_fp8_cache(lab, dtype, scales):
    case = make(
        lab, [(40, 9), (0, 20)], kv_heads=1, dtype=dtype, cache_dtype=FP8, k_scale=scales[0],
        v_scale=scales[1], seed=5,
    )  # fmt: skip
    case.assert_right(prefill(case))


def test_queries_that_are_a_view_of_something_larger(lab):
    case = make(lab, [(30, 4), (0, 7)])
    wide = torch.full((11, 3 * 128), math.nan, device=lab.device)
    wide[:, 128:256] = case.q.flatten(1)
    case.q = wide[:, 128:256].view(11, 4, 32)
    assert not case.q.is_contiguous()
    case.assert_right(prefill(case))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_tables_of_either_integer_type(lab, dtype):
    case = make(lab, [(30, 4), (0, 7)])
    tables = case.block_tables(dtype=dtype), case.cu_query_lens.to(dtype), case.lens(dtype)
    case.assert_right(paged_prefill(case.q, case.k_cache, case.v_cache, *tables))


def test_result_goes_where_it_is_wanted(lab):
    case = make(lab, [(30, 4), (0, 7)])
    room = torch.full((13, 4, 32), 7.0, device=lab.device)
    assert prefill(case, out=room[1:12]).data_ptr() == room[1].data_ptr()
    case.assert_right(room[1:12])
    assert (room[[0, 12]] == 7).all()


def test_a_request_that_went_wrong_harms_only_itself(lab):
    case = make(lab, [(5, 6), (20, 20), (0, 8)])
    expected = case.expected()
    case.stored[0][1][5] = math.nan
    first, wrong, last = prefill(case.fill()).split([6, 20, 8])
    lab.assert_near(torch.cat([first, last]), torch.cat([expected[:6], expected[26:]]))
    assert wrong.isnan().all()
