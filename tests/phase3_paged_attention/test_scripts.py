"""The four scripts, run as a learner runs them: what they claim, what they draw, what they refuse."""

import pytest

from phase3_paged_attention import block_manager_lab, memory_waste, paged_attention_lab, prefix_caching
from phase3_paged_attention.paging import compiled_kernel, cpu_decode


def test_block_manager_lab(run_script):
    report = run_script(block_manager_lab)
    expected = ["block-table", "prefix-hit", "fork-copies", "free-order", "evicted", "swap", "all-back"]
    assert [p["claim"] for p in report["predictions"]] == expected


@pytest.mark.proof
def test_memory_waste(run_script):
    figures = ["memory_contiguous_paged", "memory_shares", "sliding_window"]
    found = run_script(memory_waste, "--quick", figures=figures)["claims"]
    verdicts = {claim: p["verdict"] for claim, p in found.items()}
    assert verdicts["waste"] == verdicts["concurrency"] == "reproduced"
    assert verdicts["paged-2-4x"] == "corrected" and verdicts["window-8x"] == "reproduced"


needs_kernel = pytest.mark.skipif(compiled_kernel() is None, reason="needs numba")


@pytest.mark.parametrize(
    ("kernel", "dtype"), [pytest.param(True, "float32", marks=needs_kernel), (False, "bfloat16")]
)
def test_paged_attention_lab(run_script, monkeypatch, kernel, dtype):
    if not kernel:
        monkeypatch.setattr(cpu_decode, "_switched_off", True)
    figures = ["paged_attention_walk", "paged_attention_cost"]
    options = ("--device", "cpu", "--quick", "--dtype", dtype)
    report = run_script(paged_attention_lab, *options, figures=figures)
    found = report["claims"]
    assert {claim for claim, p in found.items() if p["kind"] == "structure"} == {
        "online-softmax-shrink",
        "online-softmax-rescales",
        "online-softmax-exact",
        "readings-agree",
        "unused-cannot-matter",
    }
    assert found["copy-against-attend"]["kind"] == "timing"
    assert ("without numba" in report["out"]) == (not kernel)


def test_prefix_caching(run_script):
    figures = ["prefix_ttft", "prefix_hit_rate"]
    found = run_script(prefix_caching, "--model", "tales-draft", "--quick", figures=figures)["claims"]
    assert found["prefix-ttft"]["kind"] == "timing" and 0 <= found["prefix-ttft"]["measured"] <= 1


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        (paged_attention_lab, ["--dtype", "int8"], "invalid choice"),
        (block_manager_lab, ["--json", "/dev/null/r.json"], "cannot write"),
        (prefix_caching, ["--model", "no-such-model-xyz"], "no-such-model-xyz"),
    ],
)
def test_bad_input(mistake_of, script, arguments, message):
    assert message in mistake_of(script, *arguments)
