"""Why is my number different? Your machine compared with the course's, each with its own limits.

Milliseconds of two machines cannot be compared: they only show that one has faster memory. The share of its own limit that
each machine reaches can be compared. Bytes over bandwidth, or operations over
rate, is the shortest time that a step can take: its floor. A program that takes twice the floor on both
machines runs equally well on both.

Without a file the script measures this machine quickly (seconds). With a file, from measure_machine.py or from one of
the benchmarks (--json), it compares that file. For each figure it says whether this machine should give it, and if
not, which of seven known causes left a trace.
"""

from typing import Any

from labkit.errors import LabError
from labkit.lab import Lab, run_lab
from phase5_real_gpu.comparing.comparison import compare, pick_reference
from phase5_real_gpu.measuring.measurements import as_records
from phase5_real_gpu.measuring.reference_files import find_reference, known_references
from phase5_real_gpu.story import reference_story as chapters


def story(lab: Lab) -> None:
    mine = chapters.own_report(lab)
    references = known_references()
    theirs = find_reference(lab.args.against) if lab.args.against else pick_reference(mine, references)
    if theirs is None:
        raise LabError("the folder reference/ holds no file: give one with --against FILE")
    result = compare(mine, theirs)

    lab.title("The two machines")
    chapters.show_machines(lab, mine, theirs)
    lab.title("Figure by figure")
    chapters.show_lines(lab, result)
    chapters.show_like_cards(lab, mine, references)
    lab.title("Possible causes")
    chapters.show_causes(lab, result)
    lab.record(
        measurements=as_records(mine.measurements),
        reference=theirs.name,
        lines=[
            dict(name=x.mine.name, mine=x.mine.value, reference=x.theirs.value, unit=x.mine.unit,
                 expected=x.expected, verdict=x.verdict) for x in result.lines
        ],
        causes=[dict(cause=f.cause.name, evidence=f.evidence) for f in result.findings],
    )  # fmt: skip


def add_arguments(parser: Any) -> None:
    parser.add_argument(
        "file",
        nargs="?",
        metavar="my.json",
        help="from measure_machine.py, or a benchmark's --json; none: measured now",
    )
    parser.add_argument(
        "--against", metavar="NAME", help="a reference by name, or a file (default: the most similar one)"
    )


def main(argv: list[str] | None = None) -> int:
    return run_lab(
        story, __doc__, options=("device", "seed", "quick"), add_arguments=add_arguments, argv=argv
    )


if __name__ == "__main__":
    raise SystemExit(main())
