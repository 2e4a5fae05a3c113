"""The four scripts, run as a learner runs them: what they claim, what they draw, what they refuse."""

import json

import pytest
import torch

from phase3_paged_attention import block_manager_lab, memory_waste, paged_attention_lab, prefix_caching
from phase3_paged_attention.paging import compiled_kernel, cpu_decode


@pytest.fixture
def run(tmp_path, capsys):
    """Run a script: its predictions (of several of one claim the first), and what it printed. All structural hold."""

    def run(script, figures, *arguments):
        assert script.main([*arguments, "--json", str(tmp_path / "r.json")]) == 0
        predictions = json.loads((tmp_path / "r.json").read_text())["predictions"]
        assert all(p["holds"] for p in predictions if p["kind"] == "structure")
        for name in figures:
            assert (tmp_path / "outputs" / f"{name}.png").stat().st_size > 10_000
        printed = capsys.readouterr().out
        assert max(map(len, printed.splitlines())) <= 100
        return {p["claim"]: p for p in reversed(predictions)}, printed

    return run


def test_block_manager_lab(run):
    found, _ = run(block_manager_lab, ["block_manager_moments"])
    expected = ["block-table", "prefix-hit", "fork-copies", "free-order", "evicted", "swap", "all-back"]
    assert list(found)[::-1] == expected


def test_memory_waste(run):
    found, _ = run(memory_waste, ["memory_contiguous_paged", "memory_shares", "block_size"], "--quick")
    measured = {claim: p["measured"] for claim, p in found.items()}
    assert measured["waste"] == [16715, 27] and measured["waste-bound"] == [0, 15, 255]
    assert measured["concurrency"] == [4, 26] and measured["o1-alloc"] == [3, 3]
    verdicts = {claim: p["verdict"] for claim, p in found.items()}
    assert (
        verdicts["waste"] == verdicts["concurrency"] == "reproduced" and verdicts["paged-2-4x"] == "corrected"
    )
    assert {"contiguous-60-80", "paged-4-percent"} <= set(found)


needs_kernel = pytest.mark.skipif(compiled_kernel() is None, reason="needs numba")


@pytest.mark.parametrize(
    ("kernel", "dtype"), [pytest.param(True, "float32", marks=needs_kernel), (False, "bfloat16")]
)
def test_paged_attention_lab(run, monkeypatch, kernel, dtype):
    if not kernel:
        monkeypatch.setattr(cpu_decode, "_switched_off", True)
    figures = ["paged_attention_walk", "paged_attention_cost"]
    found, printed = run(paged_attention_lab, figures, "--device", "cpu", "--quick", "--dtype", dtype)
    assert {claim for claim, p in found.items() if p["kind"] == "structure"} == {
        "online-softmax-shrink",
        "online-softmax-rescales",
        "online-softmax-exact",
        "readings-agree",
        "unused-cannot-matter",
    }
    assert found["copy-against-attend"]["kind"] == "timing"
    assert ("scattered-against-ordered" in found) == kernel
    assert ("without numba" in printed) == (not kernel)


def test_prefix_caching(run):
    found, _ = run(prefix_caching, ["prefix_ttft", "prefix_hit_rate"], "--model", "tales-draft", "--quick")
    assert found["prefix-ttft"]["kind"] == "timing" and 0 <= found["prefix-ttft"]["measured"] <= 1
    assert found["prefix-hits"]["measured"] == [0, 384]
    assert found["prefix-one-letter"]["measured"][0] == 0
    assert found["prefix-eviction"]["measured"] == 160
    assert found["prefix-lru-cliff"]["measured"] == 0


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        (memory_waste, ["--seed", "-1"], "out of range"),
        (memory_waste, ["--seed", "x"], "invalid"),
        (paged_attention_lab, ["--dtype", "int8"], "invalid choice"),
        (block_manager_lab, ["--json", "/dev/null/r.json"], "cannot write"),
        (prefix_caching, ["--model", "no-such-model-xyz"], "no-such-model-xyz"),
        pytest.param(
            paged_attention_lab, ["--device", "cuda"], "error: no CUDA GPU",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is one"),
        ),
    ],
)  # fmt: skip
def test_bad_input(capsys, script, arguments, message):
    try:
        status = script.main(arguments)
    except SystemExit as stop:  # how argparse ends
        status = stop.code
    assert status == 2 and message in capsys.readouterr().err
