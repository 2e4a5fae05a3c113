"""Samples by series: from a page of /metrics, and as JSON."""

import itertools
import threading

from phase4_scheduler.server.drills import Recording, query
from phase4_scheduler.server.drills.recording import Scraper

PAGE = """# HELP vllm:x_total Some counter.
# TYPE vllm:x_total counter
vllm:x_total{{engine="0"}} {x}
# TYPE vllm:x_created gauge
vllm:x_created{{engine="0"}} 1.7e9
# TYPE vllm:y gauge
vllm:y 2
process_resident_memory_bytes{{process="api"}} 1e8
"""


def test_a_page_is_a_sample_of_each_series_but_for_when_counters_began():
    recording = Recording()
    for at in (0.0, 1.0, 2.0):
        recording.add_page(at, PAGE.format(x=5 * at))
    assert recording.series == {
        frozenset({("__name__", "vllm:x_total"), ("engine", "0")}): [(0.0, 0.0), (1.0, 5.0), (2.0, 10.0)],
        frozenset({("__name__", "vllm:y")}): [(0.0, 2.0), (1.0, 2.0), (2.0, 2.0)],
        frozenset({("__name__", "process_resident_memory_bytes"), ("process", "api")}): [
            (0.0, 1e8), (1.0, 1e8), (2.0, 1e8),
        ],
    }  # fmt: skip


def test_what_is_kept_as_json_gives_the_same_answers():
    recording = Recording()
    for at in range(20):
        recording.add_page(float(at), PAGE.format(x=at * at))
    kept = Recording.from_json(recording.to_json(["vllm:x_total"], 10.0, 19.0))
    assert query(kept, "rate(vllm:x_total[9s])", 9.0) == query(recording, "rate(vllm:x_total[9s])", 19.0)
    assert query(kept, "vllm:y", 9.0) == {}


def test_a_scraper_waits_for_a_server_and_ends_with_its_block(monkeypatch):
    monkeypatch.setattr(Scraper, "EVERY", 0.001)
    scraped = threading.Event()
    recording, times, calls = Recording(), itertools.count(), itertools.count()

    def page():
        number = next(calls)
        if number == 5:
            scraped.set()
        return None if number < 2 else PAGE.format(x=number)

    with Scraper(recording, page, lambda: float(next(times))):
        assert scraped.wait(20)
    samples = recording.series[frozenset({("__name__", "vllm:x_total"), ("engine", "0")})]
    assert samples[:3] == [(2.0, 2.0), (3.0, 3.0), (4.0, 4.0)]  # the first two times there was no server
    assert next(times) == len(samples) + 2  # nobody has looked at the clock since
