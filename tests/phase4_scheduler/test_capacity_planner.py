"""capacity_planner.py: it ends well, honours its options, and refuses nonsense."""

import json

import pytest

from phase1_tokens_embeddings.weights import CARDS
from phase4_scheduler import capacity_planner
from phase4_scheduler.story import capacity_story

FAST = ("--quick", "--requests", 120)


def test_script(run_script):
    report = run_script(capacity_planner, *FAST, figures=("capacity_plan",))
    assert set(report["claims"]) == {"cards-needed", "shared-cards", "prefix-router"}
    results = report["results"]
    assert results["plan"]["replicas"] >= 1
    levers = {row["lever"]: row for row in results["levers"]}
    assert list(levers)[:2] == ["as planned", "8-bit weights (FP8)"]
    one, two = levers["as planned"], levers["cards a replica: 2"]
    assert one["cards"] == one["replicas"] and two["cards"] == 2 * two["replicas"]
    assert one["per_million"] == pytest.approx(results["plan"]["dollars_per_million"])
    for row in levers.values():  # the traffic is the same, so the money goes by cards; an H100 is dearer
        dear = (
            CARDS["h100" if "H100" in row["lever"] else "l4"].dollars_per_hour / CARDS["l4"].dollars_per_hour
        )
        assert row["per_million"] == pytest.approx(one["per_million"] / one["cards"] * row["cards"] * dear)
    alone, pair = results["one_replica"][:2]
    assert pair["token_ms"] == pytest.approx(alone["token_ms"] / 2 + pair["sums_ms"])
    routers = results["routers"]
    assert routers["prefix-aware"]["hit_rate"] > 2 * routers["round-robin"]["hit_rate"]


@pytest.fixture
def short_story(monkeypatch):
    """The script's plan alone."""
    for part in ("fewer_and_more", "the_router"):
        monkeypatch.setattr(capacity_story, part, lambda *_: None)
    monkeypatch.setattr(capacity_planner, "the_levers", lambda *_: None)


def test_a_trace_with_a_gap_for_replicas_of_four_cards(run_script, tmp_path, short_story):
    lines = [
        dict(timestamp=1000 * i, input_length=1100, output_length=20, hash_ids=[1, 2, 9 + i])
        for i in range(20)
    ]
    lines += [dict(line, timestamp=line["timestamp"] + 10**6) for line in lines]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(map(json.dumps, lines)))
    options = ("--card", "h100", "--price", 2, "--tensor-parallel-size", 4)
    report = run_script(capacity_planner, "--trace", trace, *options)
    out = " ".join(report["out"].split())
    assert "no request comes" in out
    plan = report["results"]["plan"]
    assert (plan["replicas"], plan["cards"], plan["dollars_per_hour"]) == (1, 4, 8)
    assert "1 replica of 4 x H100 80 GB" in out


def test_a_rate_that_is_too_high_for_one_simulation_is_planned_in_cells(run_script, short_story):
    """The estimate of the planner itself is a bound: computing time in each second, on all cards together."""
    report = run_script(capacity_planner, "--rate", 100_000, "--card", "h100", "--pattern", "chat")
    plan = report["results"]["plan"]
    assert plan["cards"] >= plan["estimate"] / 1.2
    assert plan["cells"] * plan["dollars_per_hour"] > 1000 and "All " in report["out"]


def test_a_plan_below_its_own_estimate_is_refused(mistake_of, short_story):
    said = mistake_of(capacity_planner, "--requests", 40, "--rate", 100_000)
    assert "it is over before a fleet fills up" in said and "--requests" in said


def test_traffic_too_short_to_fill_the_fleet_is_said(run_script, short_story):
    report = run_script(capacity_planner, "--requests", 60, "--pattern", "chat", "--rate", 2)
    assert "Careful: this traffic lasts" in " ".join(report["out"].split())


@pytest.mark.parametrize(
    "options, words",
    [
        (("--model", "llama-3-70b"), "fewer bits, or let 8 cards share it (tensor_parallel_size=8)"),
        (("--tpot-slo", 0.03), "What forbids it is memory bandwidth"),
        (("--tpot-slo", 0.03), "--precision Q4_K_M, --tensor-parallel-size 4, --card rtx4090"),
        (("--ttft-slo", 0.001), "What forbids it is arithmetic"),
        (("--most", 2, "--tensor-parallel-size", 4), "--most 2 cards: one replica alone takes 4"),
        (("--tensor-parallel-size", 3), "invalid choice: 3"),
        (("--card", "abacus"), "unknown card"),
        (("--system-prompt", 100, "--trace", "x.csv"), "--system-prompt is for a --pattern"),
        (("--burstiness", 2, "--trace", "x.csv"), "--burstiness is for a --pattern"),
        (("--trace", "nowhere.csv"), "cannot read the trace"),
        (("--trace", ""), "cannot read the trace"),
        (("--most", 1, "--rate", 20, "--requests", 400), "more than 1 replicas would be needed"),
    ],
)
def test_mistakes(mistake_of, options, words):
    assert words in mistake_of(capacity_planner, "--requests", 40, *options)


@pytest.mark.parametrize(
    "text, words",
    [
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,-5,10\n", "line 2"),
        ("when,who\n1,2\n", "no trace that this course can read"),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,5,10\n2023-11-16 18:17:03,5,10\n",
            "holds no requests at different times",
        ),
    ],
)
def test_foreign_traces(mistake_of, tmp_path, text, words):
    trace = tmp_path / "trace.csv"
    trace.write_text(text)
    assert words in mistake_of(capacity_planner, "--trace", trace)
