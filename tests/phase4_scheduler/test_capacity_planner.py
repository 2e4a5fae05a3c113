"""capacity_planner.py: it ends well, honours its options, and refuses nonsense."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from labkit.errors import LabError
from labkit.lab import Lab
from labkit.options import build_parser as build_options
from labkit.terminal import Page
from phase4_scheduler import capacity_planner
from phase4_scheduler.serve import build_parser
from phase4_scheduler.simulator import planning
from phase4_scheduler.simulator.fleet import serve_fleet
from phase4_scheduler.simulator.routers import LeastLoaded
from phase4_scheduler.story import capacity_combinations, capacity_story, capacity_task

FAST = ("--quick", "--requests", 80)


@pytest.fixture(autouse=True)
def a_short_saturated_run(monkeypatch):
    """What a replica gets done at best is estimated from fewer requests."""
    monkeypatch.setattr(planning, "ENOUGH", 300)


def test_script(run_script):
    report = run_script(capacity_planner, *FAST)
    assert set(report["claims"]) == {"cards-needed", "prefix-router"}
    results = report["results"]
    plan, best = results["plan"], results["best"]
    assert [row[0] for row in results["around_the_plan"]] == [plan["cards"] + i for i in (-1, 0, 1)]
    assert plan["cards"] >= plan["estimate"] and results["cards_if_slow"] >= plan["cards"]
    assert results["never_validated"] == ["L4 24 GB"]
    assert float(best["dollars_per_hour"]) <= plan["dollars_per_hour"]
    ours = results["commands"][1].split()[2:]
    assert build_parser().parse_args(ours).max_num_seqs == 256
    routers = results["routers"]
    assert routers["prefix-aware"]["hit_rate"] > 2 * routers["round-robin"]["hit_rate"]
    assert 0.9 < routers["cache-aware"]["hit_rate"] / results["best_hit_rate"] <= 1


@pytest.mark.proof
def test_the_cheapest_combination_is_that_of_exhaustive_search():
    lab = lab_of("--quick", "--requests", 40, "--rate", 6, "--prompt-tokens", 400, "--answer-tokens", 30)
    task = capacity_task.the_task(lab)
    capacity_combinations.the_combinations(lab, task, task.plan())
    prices = [task.plan().dollars_per_hour]
    for choice in capacity_combinations.combinations(task, quick=True):
        with suppress(LabError):
            prices.append(choice.task.plan().dollars_per_hour)
    assert len(prices) > 3 and float(lab.results["best"]["dollars_per_hour"]) == pytest.approx(min(prices))


def test_the_commands_name_the_servers_that_can():
    task = capacity_task.the_task(lab_of("--quick", "--requests", 40, "--card", "h100"))
    for changes in ({"precision": "NVFP4"}, {"precision": "FP8", "tensor_parallel_size": 2}):
        assert len(capacity_combinations.serve_commands(replace(task, **changes))) == 1
    ours = capacity_combinations.serve_commands(task.on(tensor_parallel_size=2))[1].split()[2:]
    assert build_parser().parse_args(ours).num_blocks > 2 * task.config.cost.num_blocks


def lab_of(*argv):
    """The frame that the script gives its story."""
    script = Path(capacity_planner.__file__)
    parser = build_options(script, "", ("seed", "quick"))
    capacity_planner.add_arguments(parser)
    return Lab(script, parser.parse_args(list(map(str, argv))), Page())


@pytest.mark.parametrize("rate", [0.1, 10, 10**6])
def test_no_plan_is_below_what_the_computing_alone_keeps_busy(rate):
    """A replica gets just so much done while requests wait. The estimate is made here once more, from the steps' seconds."""
    lab = lab_of("--quick", "--rate", rate, "--pattern", "chat", "--max-num-seqs", 32)
    task = capacity_task.the_task(lab)
    plan = task.plan()
    many = [replace(r, arrival=0.0) for r in task.traffic] * (1 + 1000 // len(task.traffic))
    (replica,) = serve_fleet(many, task.config, 1, LeastLoaded()).replicas
    busy = rate * sum(replica.run.durations) / len(many)
    assert task.cells * plan.replicas >= busy / 1.2
    assert task.cells * plan.replicas <= 2 * busy + 2  # nor is it wasteful


@pytest.fixture
def short_story(monkeypatch):
    """The script's plan alone."""
    for part in ("fewer_and_more", "the_router"):
        monkeypatch.setattr(capacity_story, part, lambda *_: None)
    monkeypatch.setattr(capacity_planner, "the_combinations", lambda *_: None)


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
    assert ("1.25 times as long as at 80%" in " ".join(report["out"].split())) == is_slower
    assert (report["results"]["cards_if_slow"] is not None) == is_slower


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
        (("--prompt-tokens", 100, "--trace", "x.csv"), "--prompt-tokens is for a --pattern"),
        (("--trace", "nowhere.csv"), "cannot read the trace"),
        (("--card", "mi300x", "--tensor-parallel-size", 2), "no recording of their all-reduces"),
        (("--rate", 100_000), "more than 256 replicas would be needed: computing alone keeps"),
        (("--trace", "one_moment.csv"), "holds no requests at different times"),
    ],
)
def test_mistakes(mistake_of, tmp_path, monkeypatch, options, words):
    monkeypatch.chdir(tmp_path)
    moment = "2023-11-16 18:17:03,5,10\n"
    Path("one_moment.csv").write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{moment}{moment}")
    assert words in mistake_of(capacity_planner, "--requests", 40, *options)
