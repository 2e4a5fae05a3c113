"""This engine compared with the real vLLM: the same tokens, and the same schedule.

The engine of this course makes the decisions of vLLM. This script compares them, if vLLM is installed:

- the same prompts on `tales`: the same greedy tokens;
- the same requests, arriving at the same steps, with a cache that is too small for all: the same schedule in each
  step. It contains the tokens of each request, preemptions, block ids, and the order of the queues.

`benchmarks/serving_benchmark.py` compares the speed.

If vLLM is not installed, the script only says how to install it.
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
