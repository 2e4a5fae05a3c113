"""The script of tensor and pipeline parallelism, run whole."""

import json

import pytest

from phase5_real_gpu import tensor_parallel
from phase5_real_gpu.parallel.pipeline import idle_share, timeline


@pytest.mark.proof
def test_the_story_holds(tmp_path):
    report = tmp_path / "report.json"
    assert tensor_parallel.main(["--quick", "--json", str(report), "--figures", str(tmp_path)]) == 0
    found = {p["claim"]: p for p in json.loads(report.read_text())["predictions"]}
    assert found["tp-all-reduce"]["verdict"] == "corrected"
    assert found["pp-activations"]["verdict"] == "reproduced"
    assert found["parallel-tokens"]["holds"] and found["parallel-bytes"]["holds"]
    assert found["expert-tokens"]["holds"] and found["expert-bytes"]["holds"]
    assert {file.stem for file in tmp_path.glob("*.png")} == {
        "who_holds_what",
        "expert_load",
        "tensor_parallel",
        "pipeline_bubble",
    }


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (2, 1), (4, 4), (3, 16)])
def test_the_bubble_is_what_its_formula_says(stages, micro_batches):
    work = timeline(stages, micro_batches)
    begins = {(stage, m): start for stage, m, start in work}
    assert len(begins) == stages * micro_batches
    for (stage, m), start in begins.items():
        assert stage == 0 or start >= begins[stage - 1, m] + 1  # after the stage before
        assert m == 0 or start >= begins[stage, m - 1] + 1  # one at a time
    assert idle_share(stages, micro_batches) == pytest.approx((stages - 1) / (micro_batches + stages - 1))


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ("3", "tensor_parallel_size is 3, and the model has 4 query heads: choose a size that divides them"),
        ("0", "tensor_parallel_size is 0"),
    ],
)
def test_a_size_that_does_not_divide_gets_one_line(size, message, mistake_of):
    assert message in mistake_of(tensor_parallel, "--tensor-parallel-size", size)
