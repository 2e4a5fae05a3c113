"""Longest cached prefix first (SGLang's order) on a recorded trace: hit rate and TTFT beside first come, first served.

    python -m exercises.capstone.prefix_order mooncake_conversation.jsonl.gz

The course's scheduler decides. No model runs, so a time is a number of steps. The trace (Mooncake, Apache 2.0) names equal pieces of 512 prompt tokens by equal
`hash_ids`; here a piece is one block of 16 tokens, and an answer is 32 times shorter as well.
"""

import argparse
import gzip
import json
from pathlib import Path

from exercises.capstone import policies
from exercises.capstone.scoreboard import BLOCK, Line, Server, in_course, serve

SCALE = 32
LIMITS = dict(max_num_seqs=16, max_num_batched_tokens=256, max_model_len=8192)
POLICIES = ("Fcfs", "LongestPrefix")


def read_trace(path: Path, count: int, seconds_per_step: float) -> list[Line]:
    """The first `count` requests. Their arrivals are steps."""
    with gzip.open(path, "rt") as file:
        rows = [json.loads(line) for line, _ in zip(file, range(count))]
    return [
        Line(
            int((row["timestamp"] - rows[0]["timestamp"]) / 1000 / seconds_per_step),
            [100 + piece for piece in row["hash_ids"] for _ in range(BLOCK)][
                : max(1, row["input_length"] // SCALE)
            ],
            max(1, row["output_length"] // SCALE),
        )
        for row in rows
    ]


def hit_rate_and_ttft(trace: list[Line], server: Server) -> tuple[float, list[int]]:
    """Hit rate, and of each request the steps to its first token: here a step is the unit of time."""
    served = serve(trace, *server, seconds=lambda step: 1)
    asked = sum(len(line.prompt) for line in trace)
    ttft = [int(times[0] - line.arrival) for line, (times, _) in zip(trace, served, strict=True)]
    return sum(cached for _, cached in served) / asked, ttft


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path)
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--blocks", type=int, default=3000)
    parser.add_argument("--seconds-per-step", type=float, default=0.55)
    a = parser.parse_args()
    trace = read_trace(a.trace, a.requests, a.seconds_per_step)
    waits = []
    for policy in POLICIES:
        server = in_course(a.blocks, getattr(policies, policy)(), LIMITS)
        rate, ttft = hit_rate_and_ttft(trace, server)
        waits.append(ttft)
        p50, p99 = (sorted(ttft)[int(share * len(ttft))] for share in (0.5, 0.99))
        print(f"{policy}: hit rate {rate:.1%}; TTFT in steps: p50 {p50}, p99 {p99}, longest {max(ttft)}")
    longer = [after - before for before, after in zip(*waits) if after > before]
    print(
        f"{len(longer)} of {len(trace)} requests wait longer for it, the unluckiest {max(longer, default=0)} steps"
    )


if __name__ == "__main__":
    main()
