"""Helpers of exercise 4.6: queries on recorded drills."""

from collections.abc import Callable
from dataclasses import replace

from exercises.phase4.recorded_drills import Minute, minutes_of
from phase4_scheduler.server.drills import Recording, query

COUNTERS = ("_total", "_sum", "_count")


def ask(drill: int, text: str) -> None:
    """Print the result of a query in each recorded minute of a drill."""
    print(text)
    for minute in minutes_of(drill):
        result = query(minute.recording, text, minute.end)
        values = result.values() if isinstance(result, dict) else [result]
        print(f"  {minute!s:48} {', '.join(f'{value:.4g}' for value in values) or 'nothing'}")


def at_another_pace(minute: Minute, times: float) -> Minute:
    """The same minute on a machine that takes `times` as long for everything: fewer events, each of more seconds."""

    def paced(name: str, value: float) -> float:
        # Fewer x longer = the same sum.
        counts = name.endswith(COUNTERS) and not name.endswith("_seconds_sum")
        return value / times if counts else value

    return with_values(minute, paced)


def after_a_day(minute: Minute) -> Minute:
    """The same minute on a server whose counters have counted for a day."""
    return with_values(
        minute, lambda name, value: value + 1e4 * len(name) if name.endswith(COUNTERS) else value
    )


def while_idle(minute: Minute) -> Minute:
    """The same server without requests: counters do not change, and no request runs, waits or holds a block."""
    return with_values(minute, lambda name, value: 1e4 if name.endswith(COUNTERS) else 0.0)


def with_values(minute: Minute, change: Callable[[str, float], float]) -> Minute:
    recording = Recording()
    for labels, samples in minute.recording.series.items():
        name = dict(labels)["__name__"]
        recording.series[labels] = [(t, change(name, value)) for t, value in samples]
    return replace(minute, recording=recording)
