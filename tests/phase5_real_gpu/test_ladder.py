"""Every rung of the ladder and the kernels before it against their definitions; what a rung loads, against what its code promises."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phase5_real_gpu import decode_ladder
from phase5_real_gpu.kernels.triton_setup import INTERPRETED
from phase5_real_gpu.ladder import LADDER, count_loads, first_kernels, run_rung
from phase5_real_gpu.ladder.counted_loads import expected, random_step
from phase5_real_gpu.ladder.ladder_rungs import ALWAYS_SPLITS, FULL_BATCH, ONE_LONG, Shape
from phase5_real_gpu.story import ladder_story
from tests.phase5_real_gpu.conftest import DTYPES
from tests.properties import unshrunk

pytest.importorskip("triton")

interpreted_only = pytest.mark.skipif(not INTERPRETED, reason="counts the loads of the interpreter")
every_rung = pytest.mark.parametrize("rung", LADDER, ids=lambda rung: rung.name)


@pytest.mark.parametrize(("length", "stride"), [(1, 1), (1024, 1), (3000, 1), (1500, 4)])
def test_scale_doubles_each_number(lab, length, stride):
    x = torch.randn(length * stride, device=lab.device)
    assert torch.equal(first_kernels.scale(x, stride), 2 * x[::stride])


def test_transpose_and_multiply_are_those_of_torch(lab):
    x = torch.randn(32, 32, device=lab.device)
    assert torch.equal(first_kernels.transpose(x), x.T)
    a, b = torch.randn(16, 192, device=lab.device).half(), torch.randn(192, 64, device=lab.device).half()
    torch.testing.assert_close(first_kernels.multiply(a, b), a.float() @ b.float(), atol=1e-3, rtol=1e-3)


# ---------------------------------------------------------------------- the rungs


def run(rung, case, **options):
    return run_rung(rung, case.q, case.k_cache, case.v_cache, case.block_tables(), case.lens(), **options)


@every_rung
@given(
    context_lens=st.lists(st.one_of(st.integers(0, 3), st.integers(0, 100)), min_size=1, max_size=2),
    kv_heads=st.integers(1, 2),
    group=st.integers(1, 16),
    dim=st.sampled_from([32, 40, 64, 80, 128, 256]),
    block_size=st.sampled_from([8, 16, 24, 32]),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 1000),
)
@settings(unshrunk, max_examples=5)
def test_every_rung_is_attention(lab, rung, context_lens, **shape):
    case = lab.decode_case(context_lens, **shape)
    case.assert_right(run(rung, case))


@every_rung
def test_scores_far_apart_and_a_scale_of_ones_own(lab, rung):
    """Large scores overflow an exponential, unless the largest is taken away first."""
    case = lab.decode_case([90, 17], stretch=60.0, group=3)
    case.assert_right(run(rung, case, scale=0.5), scale=0.5)


@every_rung
def test_cache_with_strides_of_its_own(lab, rung):
    """Heads before tokens in memory, and keys and values of a block side by side."""
    case = lab.decode_case([50, 33])
    blocks, size, heads, dim = case.k_cache.shape
    data = torch.full((blocks, 2, heads, size, dim), float("nan"), device=case.device)
    views = [data[:, i].transpose(1, 2) for i in range(2)]
    for view, cache in zip(views, (case.k_cache, case.v_cache)):
        view.copy_(cache)
    out = run_rung(rung, case.q, *views, case.block_tables(), case.lens())
    case.assert_right(out)


@interpreted_only
@given(
    context_lens=st.lists(st.integers(0, 150), min_size=1, max_size=2),
    kv_heads=st.integers(1, 2),
    group=st.integers(1, 4),
    block_size=st.sampled_from([8, 16, 24]),
)
@settings(unshrunk, max_examples=3)
def test_every_rung_does_the_work_that_it_says(context_lens, kv_heads, group, block_size):
    shape = Shape(context_lens, kv_heads * group, kv_heads, 32, block_size, itemsize=4)
    step = random_step(shape, torch.float32, "cpu", seed=1)
    right = expected(step)
    for rung in LADDER:
        with count_loads(keys=step[1], values=step[2], block_ids=step[3]) as counted:
            out = run_rung(rung, *step)
        torch.testing.assert_close(out.double(), right, atol=2e-5, rtol=2e-5)
        work = rung.work(shape)
        merging = len(context_lens) * shape.num_heads if rung.name == "split" else 0
        assert counted.programs == work.programs + merging, rung.name
        assert counted.loaded["keys"] == counted.loaded["values"], rung.name
        assert counted.loaded["keys"] + counted.loaded["values"] == work.kv_bytes, rung.name
        assert counted.loaded["block_ids"] == 4 * work.block_ids, rung.name


def test_work_of_the_large_shapes():
    """Bytes as in the literature: 64 x 4,096 tokens, 8 KV heads of 128 in 16 bits are 1.074 GB."""
    assert FULL_BATCH.kv_bytes == 1_073_741_824
    by_name = {rung.name: rung for rung in LADDER}
    assert by_name["head"].work(FULL_BATCH).kv_bytes == 4 * FULL_BATCH.kv_bytes
    assert by_name["packed"].work(FULL_BATCH).iterations == 256
    assert by_name["tile"].work(FULL_BATCH).iterations == 64
    split = by_name["split"].work(ONE_LONG)
    assert (split.programs, split.iterations) == (8 * ALWAYS_SPLITS, 512 // ALWAYS_SPLITS)


# ---------------------------------------------------------------------- the script


def test_the_story(run_script):
    data = run_script(decode_ladder, "--quick", figures=["decode_ladder"])
    claims = data["claims"]
    assert claims["ladder-same-answer"]["measured"] == len(LADDER)
    if INTERPRETED:
        assert claims["ladder-packed-bytes"]["measured"] == 4
        assert claims["ladder-speed"]["needs"] == "GPU"
    for number, rung in enumerate(LADDER, 1):
        assert f"{number}. {rung.name}: {rung.title}" in data["out"]


def test_a_wrong_rung_fails_the_script(monkeypatch):
    """The prediction is a test, too: a rung that forgets its scale is found."""

    def without_scale(q, k_cache, v_cache, tables, lens, scale, out):
        LADDER[2].launch(q, k_cache, v_cache, tables, lens, 1.0, out)

    wrong = [*LADDER[:2], replace(LADDER[2], launch=without_scale), *LADDER[3:]]
    monkeypatch.setattr(ladder_story, "LADDER", wrong)
    monkeypatch.setattr(ladder_story, "SMALL", replace(ladder_story.SMALL, context_lens=[20, 0]))
    assert decode_ladder.main(["--quick"]) == 1
