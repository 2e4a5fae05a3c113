"""The samples that Prometheus would have kept of one drill, by series, taken from /metrics every half second.

A series is a name with its labels; a sample is a time and a value:

    vllm:num_requests_running{engine="0", model_name="tales"}    (0.0, 4), (0.5, 5), (1.0, 4), ...
"""

import threading
import time
from collections.abc import Callable
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]
"""A series' labels; its name is the label `__name__`."""


class Recording:
    """Samples by series.

    Attributes:
        series: (seconds, value) in the order of time.
    """

    def __init__(self) -> None:
        self.series: dict[Labels, list[tuple[float, float]]] = {}

    def add(self, at: float, name: str, labels: dict[str, str], value: float) -> None:
        self.series.setdefault(frozenset({**labels, "__name__": name}.items()), []).append((at, value))

    def add_page(self, at: float, page: str) -> None:
        """All samples of a page in Prometheus' text format."""
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                if not sample.name.endswith("_created"):  # the time at which a counter began, not used here
                    self.add(at, sample.name, sample.labels, sample.value)

    @classmethod
    def from_json(cls, series: list[dict[str, Any]]) -> "Recording":
        recording = cls()
        for one in series:
            recording.series[frozenset(one["labels"].items())] = [(t, v) for t, v in one["samples"]]
        return recording


class Scraper:
    """A thread that scrapes a server until its block is left.

    Args:
        recording: receives the samples.
        page: returns the text to scrape, or None while no server runs.
        clock: seconds since the drill began.
    """

    EVERY = 0.5  # seconds

    def __init__(
        self, recording: Recording, page: Callable[[], str | None], clock: Callable[[], float]
    ) -> None:
        self.recording, self._page, self._clock = recording, page, clock
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scraper", daemon=True)

    def __enter__(self) -> "Scraper":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._end.is_set():
            at, page = self._clock(), self._page()
            if page is not None:
                self.recording.add_page(at, page)
            due += self.EVERY
            self._end.wait(max(0.0, due - time.monotonic()))
