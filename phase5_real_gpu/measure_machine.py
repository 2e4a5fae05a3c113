"""Measure everything on this machine in one call, and write one reference file.

It runs the scripts of this phase that measure, one after the other, each in a process of its own:

    memory    memory_hierarchy.py     what this machine's memories can do
    kernels   kernel_benchmark.py     attention kernels beside their floors and their peers
    engine    engine_benchmark.py     TTFT, ITL and throughput of the whole engine

A part that fails or takes too long is stopped, its error goes into the file, and the others go on. Figures are
saved case by case, and the file is written after each part: a run that is cut short leaves what it has, and --resume goes on
from there. Together they take less than ten minutes. Close other programs first; the figures need a quiet machine.
"""

from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labkit.lab import Lab, run_lab
from labkit.paths import check_writable, outputs
from phase5_real_gpu.measuring.reference_files import Part, read_reference
from phase5_real_gpu.measuring.steps import Gathered, Step, run_steps

TOTAL_SECONDS = 570  # so that ten minutes are never reached
SCRIPTS = {  # the seconds of each part, and whether it saves its figures one by one
    "memory": ("memory_hierarchy.py", 90, False),
    "kernels": ("kernel_benchmark.py", 210, True),
    "engine": ("engine_benchmark.py", 330, True),
}


def steps_of(lab: Lab) -> list[Step]:
    steps = []
    for name, (file, seconds, resumes) in SCRIPTS.items():
        command = [str(Path(__file__).parent / file), "--json", "{report}", "--device", lab.args.device]
        command += ["--quick"] * lab.quick + ["--resume"] * resumes
        steps.append(Step(name, file, seconds, tuple(command)))
    return steps


def story(lab: Lab) -> None:
    args = lab.args
    out = Path(args.out) if args.out else outputs() / "machine.json"
    check_writable(out)
    command = "python phase5_real_gpu/measure_machine.py" + " --quick" * lab.quick

    def tell(step: Step, part: Part | None, gathered: Gathered) -> None:
        line = f"{step.shows} (at most {step.seconds:.0f} s)"
        if part:
            line = f"        {part.outcome}, {part.seconds:.0f} s{part.error and '. ' + part.error}"
        lab.console.print(line, markup=False, highlight=False)

    lab.say(f"""{len(SCRIPTS)} parts, together at most {TOTAL_SECONDS / 60:.0f} minutes. Leave the machine alone
        meanwhile.""")
    earlier = read_reference(out) if args.resume and out.exists() else None
    if earlier and earlier.quick != lab.quick:
        raise LabError(
            f"{out} was measured {'with' if earlier.quick else 'without'} --quick: do the same, or give another --out"
        )
    fields = dict(device=args.device, command=command, quick=lab.quick)
    folder = outputs() / "measure_machine"
    gathered = run_steps(steps_of(lab), folder, out, tell, TOTAL_SECONDS, earlier, **fields)
    lab.record(file=str(out), parts=[vars(p) for p in gathered.parts], figures=len(gathered.measurements))
    if not gathered.measurements:
        raise LabError(f"no part brought a figure: {next(p.error for p in gathered.parts)} (see {out})")
    lab.say(f"""{len(gathered.measurements)} figures are in {out}. Lay them beside the course's own with
        `python phase5_real_gpu/compare_to_reference.py {out}`.""")


def add_arguments(parser: Any) -> None:
    add = parser.add_argument
    add("--out", metavar="FILE", help="where to write (default: outputs/machine.json)")
    add("--resume", action="store_true", help="go on with what an earlier run has measured, part by part")


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, options=("device", "quick"), add_arguments=add_arguments, argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
