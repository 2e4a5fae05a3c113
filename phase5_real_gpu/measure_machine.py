"""Measure everything on this machine in one call, and write one reference file.

It runs the scripts of this phase that measure, one after the other, each in a process of its own:

    memory    memory_hierarchy.py     what this machine's memories can do
    kernels   kernel_benchmark.py     attention kernels beside their floors and their peers
    engine    engine_benchmark.py     TTFT, ITL and throughput of the whole engine
    vllm      vllm_comparison.py      the real vLLM beside it, where it is installed

A part that fails or takes too long is stopped, its error goes into the file, and the others go on. Figures are
saved case by case, and the file is written after each part: a run that is cut short leaves what it has, and --resume goes on
from there. Together they take less than ten minutes. Close other programs first; the figures need a quiet machine.
"""

import re
from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labkit.lab import Lab, run_lab
from labkit.options import between
from labkit.paths import check_writable, outputs
from phase5_real_gpu.measuring.measure_all import SCRIPTS, TOTAL_SECONDS, Gathered, measure_all
from phase5_real_gpu.measuring.reference_files import as_reference, write_reference

NAME_RULE = "small letters, digits and . _ + - only, at most 80 of them"


def story(lab: Lab) -> None:
    args = lab.args
    parts = [p for p in args.parts.replace(" ", "").split(",") if p]
    if unknown := [p for p in parts if p not in SCRIPTS]:
        raise LabError(f"unknown part {unknown[0]!r}: use some of {','.join(SCRIPTS)}")
    if not parts:
        raise LabError(f"--parts is empty: use some of {','.join(SCRIPTS)}")
    if args.name and not re.fullmatch(r"[a-z0-9][a-z0-9._+-]{0,79}", args.name):
        raise LabError(f"--name {args.name!r}: use {NAME_RULE}")
    out = Path(args.out) if args.out else outputs() / "machine.json"
    check_writable(out)
    command = "python phase5_real_gpu/measure_machine.py" + " --quick" * lab.quick
    command += f" --parts {','.join(parts)}" * (parts != list(SCRIPTS))

    def save(gathered: Gathered) -> None:
        reference = as_reference(
            gathered.environment, args.device, gathered.card, args.name, args.title, command=command, quick=lab.quick,
            limits=gathered.limits, measurements=tuple(gathered.measurements.values()), parts=tuple(gathered.parts),
        )  # fmt: skip
        write_reference(reference, out)

    lab.say(f"""{len(parts)} parts, together at most {args.seconds / 60:.0f} minutes. Leave the machine alone
        meanwhile.""")
    gathered = measure_all(
        parts,
        ["--device", args.device] + ["--quick"] * lab.quick,
        save,
        lambda line: lab.console.print(line, markup=False, highlight=False),
        args.seconds,
        args.vllm_python,
        args.resume,
    )
    lab.table(
        "What ran",
        ["script", "outcome", "seconds", "why"],
        [[p.script, p.outcome, p.seconds, p.error[:60]] for p in gathered.parts],
    )
    lab.record(file=str(out), parts=[vars(p) for p in gathered.parts], figures=len(gathered.measurements))
    if not gathered.measurements:
        raise LabError(f"no part brought a figure: {next(p.error for p in gathered.parts)} (see {out})")
    lab.say(f"""{len(gathered.measurements)} figures are in {out}. Lay them beside the course's own with
        `python phase5_real_gpu/compare_to_reference.py {out}`.""")


def add_arguments(parser: Any) -> None:
    parser.add_argument("--out", metavar="FILE", help="where to write (default: outputs/machine.json)")
    parser.add_argument(
        "--name", default="", help="short name of this machine (default: made from its processor)"
    )
    parser.add_argument("--title", default="", help="the same in words")
    every = ",".join(SCRIPTS)
    parser.add_argument("--parts", metavar="A,B", default=every, help=f"only some of {every}")
    parser.add_argument(
        "--vllm-python", default="", metavar="FILE", help="python of an environment that has vLLM"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with what an earlier run has measured, part by part"
    )
    parser.add_argument(
        "--seconds",
        type=between(1, 24 * 3600),
        default=TOTAL_SECONDS,
        help=f"for everything together ({TOTAL_SECONDS})",
    )


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, options=("device", "quick"), add_arguments=add_arguments, argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
