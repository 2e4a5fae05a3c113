"""All nights, many seeds: how often do the rules name the fault, and how often do they cry without one?

    python -m tests.phase4_scheduler.server.drills.campaign campaign.jsonl                 # seven drills, 20 seeds, 20 healthy
    python -m tests.phase4_scheduler.server.drills.campaign campaign.jsonl --drills 4 5 --seeds 3 --healthy 0
    python -m tests.phase4_scheduler.server.drills.campaign campaign.jsonl --report        # what is in the file

Each night is a line of the file as soon as it is over. Started again, it goes on with the nights that are not in there.
It wants a machine of its own: about 45 seconds a night, so two hours for all.
"""

import argparse
import json
import math
from pathlib import Path

from labkit.machine import environment
from phase4_scheduler.server.drills import DRILLS, Stage, investigate
from phase4_scheduler.story.war_room_story import WINDOW, draw_fault


def play(number: int, seed: int, fault: str, recover: bool) -> dict:
    """One night, and what the rules make of it; with `recover` also how the figure comes back."""
    drill = DRILLS[number]
    with Stage(drill, fault, seed, WINDOW) as stage:
        stage.be_healthy()
        stage.break_down()
        if recover:
            stage.recover()
        seconds = stage.clock()
    night = stage.night
    moments = night.moments
    findings = investigate(drill.alarms, drill.causes, moments)
    before = moments.then(drill.figure)
    return {
        "drill": number,
        "seed": seed,
        "fault": fault,
        "cause": night.cause,
        "verdict": findings.verdict,
        "left": findings.left,
        "seconds": round(seconds, 1),
        "during": moments.now(drill.figure) / before,
        "recovered": night.back_to_normal.now(drill.figure) / before if recover else None,
        "recovered_seconds": round(night.recovered - night.withdrawn, 1) if recover else None,
        "errors": stage.load.errors[:3],
        "checks": {c.name: [round(check.value(moments), 4) for check in c.checks] for c in drill.causes},
        "watch": {title: [moments.then(q), moments.now(q)] for title, q in drill.watch.items()},
    }


def report(nights: list[dict]) -> None:
    print(f"{'':22} {'named':>9} {'longest':>8} {'figure during':>14} {'recovered, x of before':>24}")
    for number in DRILLS:
        for kind in ("faults", "healthy"):
            mine = [
                n for n in nights if n["drill"] == number and (n["fault"] == "nothing") == (kind == "healthy")
            ]
            if not mine:
                continue
            right = sum(n["verdict"] == n["cause"] for n in mine)
            longest = max(n["seconds"] for n in mine)
            during = sorted(n["during"] for n in mine)
            back = sorted(n["recovered"] for n in mine if n["recovered"] is not None) or [math.nan]
            near = sum(abs(b - 1) <= 0.1 for b in back)
            print(
                f"drill {number}, {kind:12} {right:4} of {len(mine):2} {longest:6.0f} s {during[0]:6.2f} to {during[-1]:5.2f} "
                f"{back[0]:6.2f} to {back[-1]:4.2f}, {near} of {len(back)} within 10%"
            )
    for n in nights:
        if n["verdict"] != n["cause"]:
            print(
                f"not named: drill {n['drill']}, seed {n['seed']}: {n['cause']}, said {n['verdict']} {n['left']} {n['checks']}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--drills", type=int, nargs="+", default=sorted(DRILLS))
    parser.add_argument("--seeds", type=int, default=20, help="nights with a fault, a drill")
    parser.add_argument("--healthy", type=int, default=20, help="nights without one, over all drills")
    parser.add_argument(
        "--recover", type=int, default=3, help="seeds below this also take the fault out and watch"
    )
    parser.add_argument("--report", action="store_true", help="play nothing")
    a = parser.parse_args()
    lines = [json.loads(line) for line in a.file.read_text().splitlines()] if a.file.exists() else []
    nights = [line for line in lines if "drill" in line]
    wanted = [(n, seed, draw_fault(DRILLS[n], seed)) for n in a.drills for seed in range(a.seeds)]
    incidents = [n for n in a.drills if DRILLS[n].alarms]  # on the others nothing is wrong
    wanted += [(incidents[i % len(incidents)], i, "nothing") for i in range(a.healthy if incidents else 0)]
    done = {(n["drill"], n["seed"], n["fault"]) for n in nights}
    left = [] if a.report else [night for night in wanted if night not in done]
    with a.file.open("a") as file:
        if not nights:
            print(json.dumps({"environment": environment()}), file=file, flush=True)
        for i, night in enumerate(left, 1):
            nights.append(play(*night, recover=night[1] < a.recover))
            print(json.dumps(nights[-1]), file=file, flush=True)
            last = nights[-1]
            mark = "named" if last["verdict"] == last["cause"] else f"NOT NAMED ({last['verdict']})"
            print(
                f"{i} of {len(left)}: drill {night[0]}, seed {night[1]}, {night[2]}: {mark}, {last['seconds']:.0f} s, "
                f"figure {last['during']:.2f} x, then {last['recovered'] or math.nan:.2f} x",
                flush=True,
            )
    report(
        [n for n in nights if math.isfinite(n["during"])]
        + [n for n in nights if not math.isfinite(n["during"])]
    )


if __name__ == "__main__":
    main()
