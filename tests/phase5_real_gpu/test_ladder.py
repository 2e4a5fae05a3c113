"""Every rung of the ladder against the definition in float64; what it loads, against what its code promises."""

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.lab import run_lab
from phase5_real_gpu.kernels.triton_setup import HAS_TRITON, INTERPRETED, card_problem

if not HAS_TRITON:
    pytest.skip("needs Triton", allow_module_level=True)

from phase5_real_gpu import decode_ladder
from phase5_real_gpu.kernels import triton_setup
from phase5_real_gpu.ladder import LADDER, count_loads, run_rung
from phase5_real_gpu.ladder.counted_loads import expected, random_step
from phase5_real_gpu.ladder.ladder_rungs import ALWAYS_SPLITS, FULL_BATCH, ONE_LONG, Shape
from phase5_real_gpu.measuring import kernel_measure, timing
from phase5_real_gpu.measuring.kernel_cases import Heads, decode_case
from phase5_real_gpu.measuring.measurements import Limits
from phase5_real_gpu.story import ladder_story
from tests.properties import unshrunk

interpreted_only = pytest.mark.skipif(not INTERPRETED, reason="counts the loads of the interpreter")
DTYPES = [t for t in (torch.float32, torch.float16, torch.bfloat16) if not card_problem(t)]
every_rung = pytest.mark.parametrize("rung", LADDER, ids=lambda rung: rung.name)


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
def test_a_page_as_large_as_they_get(lab, rung):
    # A whole page of 256 is more than a T4's shared memory takes.
    size = 256 if INTERPRETED or triton_setup.capability() >= (8, 0) else 128
    case = lab.decode_case([300, 256, 1], kv_heads=1, block_size=size)
    case.assert_right(run(rung, case))


@every_rung
def test_cache_with_strides_of_its_own(lab, rung):
    """Heads before tokens in memory, and keys and values of a block side by side."""
    case = lab.decode_case([50, 33])
    blocks, size, heads, dim = case.k_cache.shape
    data = torch.full((blocks, 2, heads, size, dim), float("nan"), device=case.device)
    views = [data[:, i].transpose(1, 2) for i in range(2)]
    for view, cache in zip(views, (case.k_cache, case.v_cache)):
        view.copy_(cache)
    q = case.q.repeat(1, 1, 2)[:, :, :dim]  # rows with a gap
    out = run_rung(rung, q, *views, case.block_tables(), case.lens())
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
        with count_loads(keys=step[1], values=step[2], page_ids=step[3]) as counted:
            out = run_rung(rung, *step)
        torch.testing.assert_close(out.double(), right, atol=2e-5, rtol=2e-5)
        work = rung.work(shape)
        merging = len(context_lens) * shape.num_heads if rung.name == "split" else 0
        assert counted.programs == work.programs + merging, rung.name
        assert counted.loaded["keys"] == counted.loaded["values"], rung.name
        assert counted.loaded["keys"] + counted.loaded["values"] == work.kv_bytes, rung.name
        assert counted.loaded["page_ids"] == 4 * work.page_ids, rung.name


@interpreted_only
def test_counting_leaves_no_trace():
    from triton.runtime.interpreter import interpreter_builder as builder

    step = random_step(Shape([5], 2, 1, 32, itemsize=4), torch.float32, "cpu", 0)
    with pytest.raises(RuntimeError), count_loads(keys=step[1]) as counted:
        run_rung(LADDER[1], *step)
        raise RuntimeError
    seen = counted.loaded["keys"]
    assert seen == 5 * 32 * 4
    run_rung(LADDER[1], *step)
    assert counted.loaded["keys"] == seen
    assert "create_masked_load" not in vars(builder)


def test_work_of_the_large_shapes():
    """Bytes as in the literature: 64 x 4,096 tokens, 8 KV heads of 128 in 16 bits are 1.074 GB."""
    assert FULL_BATCH.kv_bytes == 1_073_741_824
    by_name = {rung.name: rung for rung in LADDER}
    assert by_name["head"].work(FULL_BATCH).kv_bytes == 4 * FULL_BATCH.kv_bytes
    assert by_name["packed"].work(FULL_BATCH).turns == 256
    assert by_name["tile"].work(FULL_BATCH).turns == 64
    split = by_name["split"].work(ONE_LONG)
    assert (split.programs, split.turns) == (8 * ALWAYS_SPLITS, 512 // ALWAYS_SPLITS)
    assert split.split_bytes == 2 * 4 * 32 * ALWAYS_SPLITS * 129


# ---------------------------------------------------------------------- bad input


def test_what_does_not_fit_is_told_in_one_line(lab):
    case = lab.decode_case([20], group=17)
    with pytest.raises(ValueError, match="17 query heads a KV head: the ladder takes 1 to 16"):
        run(LADDER[1], case)
    case = lab.decode_case([20])
    with pytest.raises(ValueError, match=r"q is torch\.float16, the cache torch\.float32"):
        run_rung(LADDER[0], case.q.half(), case.k_cache, case.v_cache, case.block_tables(), case.lens())
    fp8 = lab.decode_case([20], cache_dtype=torch.float8_e4m3fn)
    with pytest.raises(ValueError, match="the ladder has no fp8 cache"):
        run(LADDER[0], fp8)
    with pytest.raises(ValueError, match="block_tables"):
        run_rung(LADDER[0], case.q, case.k_cache, case.v_cache, case.block_tables()[0], case.lens())


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


def test_timing_each_rung(lab, monkeypatch, tmp_path):
    """What a GPU would do, with a clock of our own: the figures' names, floors and the staircase."""
    cases = [
        decode_case(name, name, [20], heads=Heads(2, 1, 32), dtype="float16") for name in ("b64-4k", "b1-32k")
    ]
    ticks = iter(range(700, 0, -50))

    def time_call(fn, device, seconds):
        assert fn().shape == (1, 2, 32)
        return timing.Timing((float(next(ticks)),))

    limits = Limits(10.0, 10.0, {"float16": 1.0}, 1.0, device_name="a card")
    monkeypatch.setattr(ladder_story, "ladder_cases", lambda dtype: cases)
    monkeypatch.setattr(kernel_measure, "time_call", time_call)
    monkeypatch.setattr(ladder_story, "measure_limits", lambda *_, **__: limits)
    status = run_lab(lambda story: ladder_story.timed(story, "float16", lab.device), "", ("device", "seed", "quick"),
                     argv=["--json", str(tmp_path / "report.json"), "--quick"])  # fmt: skip
    assert status == 0
    found = json.loads((tmp_path / "report.json").read_text())["results"]["measurements"]
    found = [m for m in found if m["name"].startswith("ladder-")]
    assert [m["name"] for m in found] == [
        f"ladder-{i}-{rung.name}-{name}" for name in ("b64-4k", "b1-32k") for i, rung in enumerate(LADDER, 1)
    ]
    assert found[0]["value"] == 700 and found[0]["unit"] == "us" and found[0]["limit"] == "bandwidth"
    # 20 tokens x 32 numbers x 2 bytes x keys and values, q and out, two table entries; at 10 GB/s.
    assert found[0]["floor"] == pytest.approx((2560 + 256 + 8) / 10e3)
    assert found[0]["share_of_limit"] == pytest.approx(found[0]["floor"] / 700)
