"""Plays the drills of exercise 4.6 and keeps their metrics in exercises/phase4/recorded_drills.

    python -m tests.phase4_scheduler.server.drills.record_drills

It needs an idle machine for a quarter of an hour.
"""

import json

from exercises.phase4.recorded_drills import FOLDER, RECORDED
from labkit.machine import environment
from phase4_scheduler.server.drills import DRILLS, Stage
from phase4_scheduler.story.war_room_story import WINDOW

NAMES = [
    *(f"vllm:{name}" for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")),
    *(f"vllm:{name}_total" for name in ("prefix_cache_queries", "prefix_cache_hits", "num_preemptions", "prompt_tokens",
                                        "prompt_tokens_cached", "generation_tokens", "request_success")),
    *(f"vllm:{name}_{part}" for part in ("sum", "count") for name in (
        "time_to_first_token_seconds", "inter_token_latency_seconds", "request_queue_time_seconds",
        "request_prefill_time_seconds", "e2e_request_latency_seconds", "request_prompt_tokens",
        "request_generation_tokens", "iteration_tokens_total")),
]  # fmt: skip
SEEDS = (0, 1)


def main() -> None:
    for number, causes in RECORDED.items():
        minutes = []
        for cause in causes:
            for seed in SEEDS:
                with Stage(DRILLS[number], cause, seed, WINDOW) as stage:
                    if (cause, seed) == (causes[0], SEEDS[0]):
                        stage.be_healthy()
                        minutes.append(minute(stage, "nothing", seed, stage.run.healthy))
                    stage.break_down()
                minutes.append(minute(stage, cause, seed, stage.run.faulty))
                print(f"drill {number}: {cause}, seed {seed}", flush=True)
        lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in minutes)
        about = json.dumps({"environment": environment(), "window": WINDOW})
        (FOLDER / f"drill_{number}.json").write_text(
            f'{about[:-1]}, "minutes": [\n{lines}]}}\n', encoding="utf-8"
        )


def minute(stage: Stage, cause: str, seed: int, end: float) -> dict:
    series = stage.run.recording.to_json(NAMES, end - WINDOW, end)
    for one in series:
        one["samples"] = one["samples"][::2]  # one a second is enough
    return {"cause": cause, "seed": seed, "series": series}


if __name__ == "__main__":
    main()
