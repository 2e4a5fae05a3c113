"""Many nights: how often do the rules name the fault, and how often is a healthy night taken for a faulty one?

    python -m tests.phase4_scheduler.server.drills.campaign nights.jsonl --drills 4 5 --seeds 3 --healthy 1

Each night becomes a line of the file as soon as it is over. Started again, it goes on with those that are not in there.
It needs a machine of its own: about 45 seconds a night.
"""

import argparse
import json
from pathlib import Path

from phase4_scheduler.server.drills import DRILLS, Stage, investigate
from phase4_scheduler.story.war_room_story import WINDOW, draw_fault


def play(number: int, seed: int, fault: str) -> dict:
    drill = DRILLS[number]
    with Stage(drill, fault, seed, WINDOW) as stage:
        stage.be_healthy()
        stage.break_down()
        stage.recover()
    night = stage.night
    checks = {c.name: [check.value(night.moments) for check in c.checks] for c in drill.causes}
    return {
        "drill": number, "seed": seed, "fault": fault, "cause": night.cause, "errors": stage.load.errors[:3],
        "verdict": investigate(drill.alarms, drill.causes, night.moments).verdict, "checks": checks,
        "during": night.moments.ratio(drill.figure), "recovered": night.back_to_normal.ratio(drill.figure),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--drills", type=int, nargs="+", default=sorted(DRILLS))
    parser.add_argument("--seeds", type=int, default=20, help="nights with a fault, per drill")
    parser.add_argument("--healthy", type=int, default=3, help="nights without one, per drill")
    a = parser.parse_args()
    nights = [json.loads(line) for line in a.file.read_text().splitlines()] if a.file.exists() else []
    done = {(n["drill"], n["seed"], n["fault"]) for n in nights}
    wanted = [(n, seed, draw_fault(DRILLS[n], seed)) for n in a.drills for seed in range(a.seeds)]
    wanted += [(n, seed, "nothing") for n in a.drills if DRILLS[n].alarms for seed in range(a.healthy)]
    with a.file.open("a") as file:
        for night in wanted:
            if night not in done:
                nights.append(play(*night))
                print(json.dumps(nights[-1]), file=file, flush=True)
    for n in a.drills:
        of_it = [night for night in nights if night["drill"] == n]
        print(
            f"drill {n}: {sum(night['verdict'] == night['cause'] for night in of_it)} of {len(of_it)} named"
        )


if __name__ == "__main__":
    main()
