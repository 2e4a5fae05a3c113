"""Prefill apart from decode: who moves what, what it costs, what happens when one dies, and whether it is worth it.

A prompt takes a long step, and everybody whose answer is being written waits for it. Chunks make the waiting shorter. Two
engines end it: one computes prompts, the other writes answers, and between them go keys and values.

You will see both as real processes on `tales`: the tokens are those of one engine, each byte is counted, what the decode side
has cached is not sent. Then each of the two is killed. In the end the same two cores serve as two ordinary engines, and a map
says who wins for which traffic and which promise.

Source: Zhong et al., "DistServe: Disaggregating Prefill and Decoding" (2024); vLLM's NixlConnector for the protocol.
"""

from pathlib import Path
from typing import Any

from labkit.lab import Lab, run_lab
from phase5_real_gpu.parallel.measured_map import MEASURED, Measured
from phase5_real_gpu.story.disaggregation_story import copying, deaths, hand_over, stall
from phase5_real_gpu.story.goodput_map_story import measure_map, the_map


def story(lab: Lab) -> None:
    if lab.args.measure is not None:
        measure_map(lab, lab.args.measure, lab.args.measured)
        return
    measured = Measured.load(lab.args.measured)
    hand_over(lab)
    copying(lab)
    if not lab.quick:  # each of them starts several processes
        deaths(lab)
        stall(lab)
    the_map(lab, measured)


def add_arguments(parser: Any) -> None:
    parser.add_argument(
        "--measure",
        metavar="TRAFFIC",
        help="measure one column of the map on this machine (three minutes), into the file of --measured",
    )
    parser.add_argument(
        "--measured", type=Path, default=MEASURED, metavar="FILE", help="the measurements that the map shows"
    )


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, ("seed", "quick"), add_arguments, argv)


if __name__ == "__main__":
    raise SystemExit(main())
