"""What holds for both attention kernels: the definition in float64, and Phase 3's own reading, in every memory layout.

Without a GPU the kernels run in Triton's interpreter, on a GPU compiled: the tests are the same. In every one
of them the memory between the tokens holds NaN, and what stands behind a block table's end points outside.
"""

import math
from functools import partial

import pytest
import torch

pytest.importorskip("triton")


@pytest.fixture(scope="session", params=["decode", "decode in 3 splits", "prefill"])
def new_case(request, lab):
    """Makes a step for this kernel from (tokens before, new tokens) of each request; `attend()` runs it."""

    def make(requests, **settings):
        if request.param == "prefill":
            case = lab.paged_case(requests, **settings)
            case.attend = case.prefill
        else:
            case = lab.decode_case([sum(r) for r in requests], **settings)
            case.attend = partial(case.decode, num_splits=1 if request.param == "decode" else 3)
        return case

    return make


def test_no_requests(new_case):
    assert new_case([]).attend().shape == (0, 4, 32)


def test_scores_far_apart(lab, new_case):
    """exp of these scores would overflow: the largest has to be taken off, within splits and between them."""
    case = new_case([(291, 9), (61, 9), (0, 20)], kv_heads=1, block_size=8, stretch=300.0, seed=6)
    lab.assert_near(case.attend(), case.expected(), 2e-3)


def test_a_request_that_went_wrong_harms_only_itself(lab, new_case):
    case = new_case([(14, 6), (20, 20), (25, 8)])
    expected = case.expected().split(case.query_lens)
    case.stored[0][1][5] = math.nan
    first, wrong, last = case.fill().attend().split(case.query_lens)
    lab.assert_near(first, expected[0])
    lab.assert_near(last, expected[2])
    assert wrong.isnan().all()


# ---------------------------------------------------------------------- memory


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_tables_of_either_integer_type(monkeypatch, lab, new_case, dtype):
    case = new_case([(26, 4), (63, 7), (0, 1)])
    tables, lens, starts = case.block_tables(dtype=dtype), case.lens(dtype), case.cu_query_lens.to(dtype)
    monkeypatch.setattr(lab.Case, "block_tables", lambda self: tables)
    monkeypatch.setattr(lab.Case, "lens", lambda self: lens)
    monkeypatch.setattr(lab.Case, "cu_query_lens", starts)
    case.assert_right(case.attend())
