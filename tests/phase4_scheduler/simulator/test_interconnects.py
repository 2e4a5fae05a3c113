"""What crosses between devices, and how long it takes: recordings of others, and the step made of them."""

from itertools import product

import numpy as np
import pytest

from labkit.errors import LabError
from phase1_tokens_embeddings.weights import find_card, find_shape
from phase4_scheduler.simulator.cost_model import ComputedCost, StepSize
from phase4_scheduler.simulator.interconnects import (
    find_interconnect,
    find_wire,
    fit_wire,
    recordings,
    ring,
    step_traffic,
)
from phase4_scheduler.simulator.parallel_cost import ParallelCost, find_cost

LLAMA = find_shape("llama-2-7b")
USER = StepSize.of([(500, 1)])


def held_back_error(sizes, seconds):
    """Median relative error on a quarter of the sizes, from a fit to the others."""
    aside = np.random.default_rng(0).permutation(len(sizes)) < len(sizes) // 4
    wire = fit_wire(sizes[~aside], seconds[~aside])
    predicted = np.array([wire(size) for size in sizes[aside]])
    return float(np.median(np.abs(predicted / seconds[aside] - 1)))


def test_sizes_that_were_held_back_are_predicted_within_15_percent_on_every_machine():
    errors = {key: held_back_error(*calls) for key, calls in recordings().items()}
    assert len(errors) == 20
    assert {key: error for key, error in errors.items() if error > 0.15} == {}


def test_a_ring_of_two_has_a_third_of_the_rounds_of_a_ring_of_four_with_pieces_twice_as_large():
    four = find_wire("a100_pairwise_nvlink", "all_reduce", 4)
    assert ring(four, 2)(2**24) == pytest.approx(four(2**25) / 3, rel=1e-6)


@pytest.mark.parametrize("name", ["nvlink", "nvlink-h100", "pcie"])
def test_more_cards_over_the_same_wires_are_never_faster_and_pcie_never_beats_nvlink(name):
    among, nvlink = (find_interconnect(n).all_reduce for n in (name, "nvlink"))
    for nbytes, at_best in product([2**n for n in range(12, 27)], (True, False)):
        times = [among[t](nbytes, at_best) for t in (2, 4, 8)]
        assert times == sorted(times)
        if name == "pcie":
            assert all(time >= nvlink[t](nbytes, at_best) for t, time in zip((2, 4, 8), times))


def test_an_unknown_interconnect_gets_one_line():
    with pytest.raises(LabError, match="unknown interconnect 'wifi': choose one of pcie, nvlink"):
        find_interconnect("wifi")


def test_what_crosses_counted_by_hand():
    """Llama-2-7B: 32 layers, d 4,096, vocabulary 32,000. 10 tokens of 3 requests, 4 devices, 2 stages, 16 bit."""
    calls = step_traffic(LLAMA, 10, 3, 4, 2)
    assert calls == {
        "all_reduce": (65, 65 * 10 * 4096 * 2),
        "gather": (1, 3 * 8000 * 2),
        "send": (1, 10 * 4096 * 2),
    }
    assert step_traffic(LLAMA, 10, 3) == {}


def test_one_device_costs_what_it_did_and_more_share_the_work_and_pay_for_the_calls():
    card, wires = find_card("a100-80"), find_interconnect("nvlink")
    one = ComputedCost.of(LLAMA, card).seconds(USER)
    assert ParallelCost.of(LLAMA, card, wires).seconds(USER) == one
    four = ParallelCost.of(LLAMA, card, wires, 4)
    calls = 65 * wires.all_reduce[4](8192, True) + wires.all_reduce[4](16000, True)
    assert four.seconds(USER) == pytest.approx(one / 4 + calls)


def test_cards_together_hold_what_one_does_not():
    with pytest.raises(LabError, match=r"or let 2 cards share it \(tensor_parallel_size=2\)"):
        find_cost("h100:llama-3-70b")
    cost = find_cost("h100x4:llama-3-70b")
    assert cost.num_blocks > 1000
    assert cost.dollars_per_hour == 4 * find_card("h100").dollars_per_hour
    assert cost.describe().endswith("NVLink (H100)")


def test_heads_that_cannot_be_dealt_out_are_refused():
    with pytest.raises(LabError, match=r"heads of qwen2\.5-0\.5b, 2, cannot be dealt out evenly to 4"):
        find_cost("l4x4:qwen2.5-0.5b")
