"""One model on several devices: what each holds, what they communicate, and when more devices are faster.

A model that is too large for one device is split. Tensor parallelism splits every layer: all devices work on the same token
and add up their results, twice per layer. Pipeline parallelism distributes whole layers: a token passes through the devices one after
the other. Here both run in real processes: two stages of two ranks, each with its part of the weights and of the cache,
connected by torch.distributed. The engine, its scheduler and the model's code are unchanged.

You will see what each rank holds and reads of the file, the same tokens as from one process, and every call between the ranks,
counted and compared with a formula. Then how unevenly the ranks work if each holds whole experts of a mixture. Last, the effect of
the interconnect: how fast 1 to 8 GPUs are over NVLink, PCIe and a network, from published all-reduce times. No speed of this
machine is shown: its cores do not get faster if they are split.

    python phase5_real_gpu/tensor_parallel.py
    python phase5_real_gpu/tensor_parallel.py --tensor-parallel-size 4 --pipeline-parallel-size 1
"""

import argparse

from labkit.lab import Lab, run_lab
from labkit.options import whole
from phase5_real_gpu.story.experts_story import the_experts
from phase5_real_gpu.story.parallel_story import the_ranks, the_wires


def story(lab: Lab) -> None:
    the_ranks(lab)
    the_experts(lab)
    the_wires(lab)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    size = dict(type=whole(1, 1024), default=2)
    parser.add_argument("--tensor-parallel-size", metavar="T", help="ranks that share each layer (2)", **size)
    parser.add_argument(
        "--pipeline-parallel-size", metavar="P", help="stages that share the layers (2)", **size
    )


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, ("device", "model", "seed", "quick"), add_arguments, argv)


if __name__ == "__main__":
    raise SystemExit(main())
