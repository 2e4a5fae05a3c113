"""What exercise 4.6 is played with: questions to recorded nights, and two minutes of a real server."""

import time
from collections.abc import Callable
from dataclasses import replace

from exercises.grading import same_or_stop
from exercises.judging.side_by_side import passed
from exercises.phase4.nights import Minute, minutes_of
from phase4_scheduler.server.drills import Load, Recording, Scraper, Users, plain, query, warm_server

COUNTERS = ("_total", "_sum", "_count")


def ask(night: int, text: str) -> None:
    """Print what a query gives in each recorded minute of a night."""
    print(text)
    for minute in minutes_of(night):
        result = query(minute.recording, text, minute.end)
        values = result.values() if isinstance(result, dict) else [result]
        print(f"  {minute!s:48} {', '.join(f'{value:.4g}' for value in values) or 'nothing'}")


def rings(text: str, recording: Recording, at: float) -> bool:
    """Whether an alert gives a value."""
    return bool(query(recording, text, at))


def at_another_pace(minute: Minute, times: float) -> Minute:
    """The same minute on a machine that takes so many times as long for everything: fewer events, each of more seconds."""

    def paced(name: str, value: float) -> float:
        counts = name.endswith(COUNTERS) and not name.endswith(
            "_seconds_sum"
        )  # fewer x longer = the same sum
        return value / times if counts else value

    return with_values(minute, paced)


def after_a_day(minute: Minute) -> Minute:
    """The same minute on a server whose counters have counted for a day."""
    return with_values(
        minute, lambda name, value: value + 1e4 * len(name) if name.endswith(COUNTERS) else value
    )


def while_idle(minute: Minute) -> Minute:
    """The same server while nobody calls: counters stand still, and nobody runs, waits or holds a block."""
    return with_values(minute, lambda name, value: 1e4 if name.endswith(COUNTERS) else 0.0)


def with_values(minute: Minute, change: Callable[[str, float], float]) -> Minute:
    recording = Recording()
    for labels, samples in minute.recording.series.items():
        name = dict(labels)["__name__"]
        recording.series[labels] = [(t, change(name, value)) for t, value in samples]
    return replace(minute, recording=recording)


def on_the_server(*alerts: str) -> None:
    """Ring the second alert on the real server: with one client that sends one at a time, and with eight and one seat.

    Raises:
        NotYet: it does not ring for the first, or rings for the second.
    """
    passed("p4e6_two_causes", *alerts)
    window = 4  # seconds
    recordings = []
    with warm_server("--max-num-seqs", "1") as server, Load(seed=0) as load:
        for count in (1, 8):
            recording, began = Recording(), time.monotonic()
            with Scraper(
                recording, lambda: server.call("/metrics")[1], lambda began=began: time.monotonic() - began
            ):
                load.change(server.address, (Users(count, plain(30), max_tokens=24),))
                time.sleep(1.25 * window)
            end = time.monotonic() - began
            recordings.append((recording, end))
    text = alerts[1].replace("[10s]", f"[{window}s]")
    rang = [rings(text, recording, end) for recording, end in recordings]
    for who, (recording, end), rung in zip(
        ("one client", "eight clients, one seat"), recordings, rang, strict=True
    ):
        running, waiting = (
            next(iter(query(recording, f"avg_over_time(vllm:num_requests_{what}[{window}s])", end).values()))
            for what in ("running", "waiting")
        )
        print(
            f"{who:24} running {running:4.1f}   waiting {waiting:4.1f}   the alert {'rings' if rung else 'is silent'}"
        )
    same_or_stop(rang, [True, False], "The client is to blame in the first minute, the server in the second")
