"""Our engine beside the real vLLM: the same tokens, and the same schedule.

Everything in this course was built to decide as vLLM decides. Here the real one is asked, where it is installed:

- the same prompts on `tales`: the same greedy tokens, one by one;
- the same requests, arriving at the same steps, in a cache far too small for them: the same schedule, step for
  step. Which request computes how many tokens, which is preempted, which blocks each one holds, the order of the queues.

`benchmarks/serving_benchmark.py` says which of the two is faster.

Where vLLM is not installed, the script says how to get it, and that is all it does.
"""

from typing import Any

from labkit.lab import Lab, run_lab
from phase5_real_gpu.benchmarks.vllm_process import INSTALL, add_timeout, find_vllm
from phase5_real_gpu.measuring.engine_cases import default_dtype
from phase5_real_gpu.story.vllm_story import check_decisions


def story(lab: Lab) -> None:
    python = find_vllm(lab.args.vllm_python)
    if python is None:
        lab.say(f"vLLM is not installed. {INSTALL} Then --vllm-python ENV/bin/python.")
        for claim, question in (
            ("vllm-same-tokens", "greedy tokens that differ from vLLM's, on tales"),
            ("vllm-same-schedule", "steps that are scheduled differently from vLLM's"),
        ):
            lab.cannot_measure(claim, question, "vLLM", "How to get it: see above.")
        return
    device = lab.device
    dtype = "float32" if device == "cpu" else default_dtype(device)
    check_decisions(lab, python, device, dtype)


def add_arguments(parser: Any) -> None:
    parser.add_argument("--vllm-python", metavar="PATH", help="python of an environment that holds vLLM")
    add_timeout(parser)


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, ("device", "seed", "quick"), add_arguments, argv)


if __name__ == "__main__":
    raise SystemExit(main())
