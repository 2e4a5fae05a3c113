"""The scripts of this phase that run the engine: they end well, check what they promise, and refuse nonsense."""

import pytest

from labkit.models import find_model
from phase2_attention_kvcache.model.config import read_config
from phase4_scheduler import (
    continuous_batching,
    many_users,
    server_lab,
    speculative_decoding,
    where_time_goes,
)
from phase4_scheduler.story import where_time_goes_story
from phase4_scheduler.story.where_time_goes_story import StepTimer


def test_continuous_batching_story(run_script):
    options = ("--quick", "--model", "tales-draft", "--device", "cpu")
    found = run_script(continuous_batching, *options, figures=["requests_in_the_batch"])["claims"]
    assert {"head-of-line", "continuous-2-4x", "continuous-same-tokens"} <= set(found)


@pytest.mark.proof
def test_server_lab_starts_a_server_and_holds_the_articles_figures_against_it(run_script):
    found = run_script(server_lab, "--quick")["claims"]
    assert {"two-processes", "hit-rate-chat", "promql-names"} <= set(found)
    assert {"kv-090-evicts", "oom-kv", "ttft-parts", "slo-guidance", "no-continuous-batching"} <= set(found)


@pytest.mark.proof
def test_speculative_decoding_story(run_script):
    options = ("--quick", "--device", "cpu")
    report = run_script(
        speculative_decoding, *options, figures=["rejection_sampling", "speculative_decoding"]
    )
    assert {"spec-exact", "spec-4-for-1.5", "spec-concurrency"} <= set(report["claims"])
    exact = [p["measured"] for p in report["predictions"] if p["claim"] == "spec-exact"]
    assert exact == [True, True]
    assert len(report["results"]["acceptance"]) == 3 and len(report["results"]["measured"]) == 4


# ---------------------------------------------------------------------- many users


def test_many_users_story(run_script):
    options = ("--users", 4, "--max-num-seqs", 2, "--tokens", 8, "--device", "cpu")
    report = run_script(many_users, *options)
    assert all(name in report["out"] for name in ("Ada", "Ben", "Cleo", "Dan"))
    assert "Eve" not in report["out"]
    assert [p["measured"] for p in report["predictions"]] == [4, 0]
    assert report["results"]["steps_alone"] == 8 + 15 + 22 + 8


def test_many_users_refuses_nonsense(mistake_of):
    assert "0 is out of range: 1 to 8" in mistake_of(many_users, "--users", "0")
    assert "nowhere" in mistake_of(many_users, "--model", "./nowhere", "--device", "cpu")


# ---------------------------------------------------------------------- where the time goes


def test_timer_charges_a_part_only_for_its_own_time():
    now = [0.0]

    class Thing:
        def outer(self):
            now[0] += 1
            self.inner()
            now[0] += 2

        def inner(self):
            now[0] += 10

    timer, thing = StepTimer(clock=lambda: now[0]), Thing()
    timer.watch(thing, "outer", "outside")
    timer.watch(thing, "inner", "inside")
    thing.outer()
    thing.inner()
    assert dict(timer.seconds) == {"outside": 3, "inside": 20}


def test_where_time_goes_story(monkeypatch, run_script):
    # A small model in place of GPT-2's shape: the story is the same, and done in seconds.
    monkeypatch.setattr(where_time_goes_story, "GPT2_124M", read_config(find_model("tales-draft")))
    monkeypatch.setattr(where_time_goes_story, "CONTEXT", 32)
    found = run_script(where_time_goes, "--quick", figures=["where_time_goes"])["claims"]
    assert "scheduler-share" in found
