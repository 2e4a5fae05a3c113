"""The scheduler: which requests compute how many tokens in the next step, and in which blocks.

A step of the model computes a few hundred tokens, of any requests. The scheduler chooses them before each step, by the three
limits and the three rules in engine/scheduler.py. It knows nothing of tensors.

The script runs a scheduler without a model: a budget shared between a long prompt and a short
answer, a preemption (both with the numbers of chapter 3), and what each policy does with an urgent request.

Source: vllm/v1/core/sched/scheduler.py; Kwon et al. (2023), section 4.5; for chunked prefill, Agrawal et
al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve" (2024), section 4.
"""

from collections.abc import Sequence

from labkit.lab import Lab, run_lab
from phase4_scheduler.story import scheduler_story as chapters


def story(lab: Lab) -> None:
    lab.say("""No model here, only numbers. A request has so many tokens, and before each step the scheduler
        says how many of them are computed. A block holds 16 tokens.""")
    chapters.one_budget_for_all(lab)
    chapters.memory_runs_short(lab)
    chapters.urgent_first(lab)


def main(argv: Sequence[str] | None = None) -> int:
    return run_lab(story, __doc__, argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
