"""Measure this machine part by part, and write one reference file.

    lab first-contact                                             the first ten minutes on a card
    python phase5_real_gpu/measure_machine.py --out mine.json     all measurements: memories, kernels, engine

Each part is a process of its own. A part that fails or takes too long is stopped, its error is written to the file, and the
other parts run. Figures are saved case by case, and the file is written after each part: an interrupted run keeps its
figures, and --resume continues it. Both commands take less than ten minutes. Close other programs first.

The first contact begins with the parts that are least likely to fail: the doctor, the tests of CUDA graphs, the checks of the three kernels,
the benchmarks in their short form, memories, the tests of all kernels, all kernels timed longer, the shape of Llama-3 8B, and a comparison with published
figures. For memory errors of the kernels use compute-sanitizer, see docs/PROFILING.md. If the course has the card's data sheet, each figure is compared with it.
"""

from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labkit.lab import Lab, run_lab
from labkit.machine import has_gpu
from labkit.paths import check_writable, outputs, short
from phase5_real_gpu.measuring import first_contact as contact
from phase5_real_gpu.measuring.machine_limits import device_name
from phase5_real_gpu.measuring.reference_files import Part, read_reference
from phase5_real_gpu.measuring.steps import Gathered, Step, run_steps
from phase5_real_gpu.story.contact_story import show_clocks, show_figures, show_plan


def story(lab: Lab) -> None:
    args, first = lab.args, lab.args.first_contact
    steps = contact.FIRST_CONTACT if first else contact.everything(args.device, lab.quick)
    if args.dry_run:
        show_plan(lab, steps)
        return
    if first and not has_gpu():
        raise LabError(
            "no GPU that this torch can use (`lab doctor` says why): use a machine that has one, or --dry-run"
        )
    name = "first_contact" if first else "machine"
    out = Path(args.out) if args.out else outputs() / f"{name}.json"
    check_writable(out)
    device, quick = ("cuda", True) if first else (args.device, lab.quick)
    earlier = read_reference(out) if args.resume and out.exists() else None
    if earlier and earlier.quick != quick:
        how = "with" if earlier.quick else "without"
        raise LabError(f"{out} was measured {how} --quick: do the same, or give another --out")
    card = contact.card_of(device_name("cuda")) if device != "cpu" and has_gpu() else None
    lab.say(f"""{len(steps)} parts, together at most {contact.TOTAL_SECONDS / 60:.0f} minutes. Run no other programs
        meanwhile.""")
    told: set[str] = set()

    def tell(step: Step, part: Part | None, gathered: Gathered) -> None:
        if part is None:
            lab.show(f"{step.name}: {step.shows} (at most {step.seconds:.0f} s)")
            return
        lab.show(f"{step.name}: {part.outcome}, {part.seconds:.0f} s{part.error and '. ' + part.error}")
        if card:
            show_figures(lab, card, [m for m in gathered.measurements.values() if m.name not in told])
        told.update(gathered.measurements)

    command = (
        "lab first-contact" if first else "python phase5_real_gpu/measure_machine.py" + " --quick" * quick
    )
    fields = dict(device=device, command=command, quick=quick)
    gathered = run_steps(
        steps, outputs() / f"{name}_parts", out, tell, contact.TOTAL_SECONDS, earlier, **fields
    )
    lab.record(file=str(out), parts=[vars(p) for p in gathered.parts], figures=len(gathered.measurements))
    if not gathered.measurements:
        raise LabError(f"no part brought a figure: {next(p.error for p in gathered.parts)} (see {out})")
    show_clocks(lab, gathered.card)
    lab.say(f"""{len(gathered.measurements)} figures are in {short(out)}. Compare them with the course's:
        `python phase5_real_gpu/compare_to_reference.py {short(out)}`.""")


def add_arguments(parser: Any) -> None:
    add = parser.add_argument
    add(
        "--first-contact", action="store_true", help="on a GPU: the parts that are least likely to fail first"
    )
    add("--dry-run", action="store_true", help="list the parts, and the expected figures of six cards")
    add("--out", metavar="FILE", help="where to write (default: a file in outputs/)")
    add("--resume", action="store_true", help="continue an interrupted run, part by part")


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, options=("device", "quick"), add_arguments=add_arguments, argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
