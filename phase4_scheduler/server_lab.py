"""A server from both sides: the answers that clients get, and the metrics that the server exports.

`lab serve` lets any program be a user, and runs as two processes. The API process reads requests, converts between text
and tokens, and writes to sockets. The engine process runs the steps. This lab starts that server, sends it requests as any client would, and reads its metrics.

You will see why there are two processes, where the wait for the first word comes from, how the hit rate of the prefix
cache follows from lengths, what a full KV cache does, and which of an article's queries find anything in vLLM's metrics.

`python phase4_scheduler/serve.py` is the server itself, `python phase4_scheduler/war_room.py` puts faults into it.
"""

from labkit.lab import Lab, run_lab
from phase4_scheduler.story.full_cache_story import full_cache, without_batching
from phase4_scheduler.story.server_story import over_the_wire, reading_speed, two_processes


def story(lab: Lab) -> None:
    two_processes(lab)
    over_the_wire(lab)
    full_cache(lab)
    without_batching(lab)
    reading_speed(lab)


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, options=("model", "dtype", "seed", "quick"), argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
