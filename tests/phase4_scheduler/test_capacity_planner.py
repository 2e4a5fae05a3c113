"""capacity_planner.py: it ends well, honours its options, and refuses nonsense."""

import json

import pytest

from phase4_scheduler import capacity_planner
from phase4_scheduler.simulator import planning
from phase4_scheduler.story import capacity_story

FAST = ("--quick", "--requests", 80)


@pytest.fixture(autouse=True)
def a_short_saturated_run(monkeypatch):
    """What a replica gets done at best is estimated from fewer requests."""
    monkeypatch.setattr(planning, "ENOUGH", 300)


def test_script(run_script):
    report = run_script(capacity_planner, *FAST, figures=("capacity_plan",))
    assert set(report["claims"]) == {"cards-needed", "prefix-router"}
    results = report["results"]
    plan = results["plan"]
    assert plan["cards"] >= plan["estimate"] and results["cards_if_slow"] >= plan["cards"]
    assert results["never_validated"] == ["L4 24 GB"]
    routers = results["routers"]
    assert routers["prefix-aware"]["hit_rate"] > 2 * routers["round-robin"]["hit_rate"]
    assert 0.9 < routers["cache-aware"]["hit_rate"] / results["best_hit_rate"] <= 1


@pytest.fixture
def short_story(monkeypatch):
    """The script's plan alone."""
    for part in ("fewer_and_more", "the_router"):
        monkeypatch.setattr(capacity_story, part, lambda *_: None)


def test_a_trace_with_a_gap_for_replicas_of_four_cards(run_script, tmp_path, short_story):
    lengths = dict(input_length=1100, output_length=20)
    times = [late + 1000 * i for late in (0, 10**6) for i in range(20)]
    lines = [dict(timestamp=t, hash_ids=[1, 2, 9 + t % 10**6], **lengths) for t in times]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(map(json.dumps, lines)))
    options = ("--card", "h100", "--price", 2, "--tensor-parallel-size", 4)
    report = run_script(capacity_planner, "--trace", trace, *options)
    out = " ".join(report["out"].split())
    assert "no request comes" in out
    plan = report["results"]["plan"]
    assert (plan["replicas"], plan["cards"], plan["dollars_per_hour"]) == (1, 4, 8)
    assert "1 replica of 4 x H100 80 GB" in out


@pytest.mark.parametrize("efficiency, is_slower", [(0.7, True), (0.5, False)])
def test_a_slower_clock_is_planned_for_only_if_it_is_slower(run_script, short_story, efficiency, is_slower):
    report = run_script(capacity_planner, *FAST, "--card", "rtx4090", "--efficiency", efficiency)
    assert ("1.5 times as long as at 80%" in " ".join(report["out"].split())) == is_slower
    assert (report["results"]["cards_if_slow"] is not None) == is_slower


def test_traffic_too_short_to_fill_the_fleet_is_said(run_script, short_story):
    report = run_script(capacity_planner, "--requests", 60, "--pattern", "chat", "--rate", 2)
    assert "Careful: this traffic lasts" in " ".join(report["out"].split())


@pytest.mark.parametrize(
    "options, words",
    [
        (("--model", "llama-3-70b"), "fewer bits, or let 8 cards share it (tensor_parallel_size=8)"),
        (
            ("--tpot-slo", 0.03),
            "What is short: TPOT: reading weights and caches in each step (memory bandwidth)",
        ),
        (("--most", 2, "--tensor-parallel-size", 4), "--most 2 cards: one replica alone takes 4"),
        (("--tensor-parallel-size", 3), "invalid choice: 3"),
        (("--card", "abacus"), "unknown card"),
        (("--prompt-tokens", 100, "--trace", "x.csv"), "--prompt-tokens is for a --pattern"),
        (("--trace", "nowhere.csv"), "cannot read the trace"),
        (("--card", "mi300x", "--tensor-parallel-size", 2), "no recording of their all-reduces"),
        (("--rate", 100_000), "more than 256 replicas would be needed: computing alone keeps"),
    ],
)
def test_mistakes(mistake_of, options, words):
    assert words in mistake_of(capacity_planner, "--requests", 40, *options)


def test_a_rate_that_is_too_high_for_one_simulation(mistake_of):
    words = mistake_of(capacity_planner, "--quick", "--card", "h100", "--rate", 10**6)
    assert "plan for a part of --rate" in words


def test_a_trace_of_one_moment(mistake_of, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "2023-11-16 18:17:03,5,10\n" * 2)
    words = mistake_of(capacity_planner, "--trace", trace)
    assert "holds no requests at different times" in words
