"""The first ten minutes on a card: what brings figures with the least risk comes first, and each is told beside its expectation.

It runs the doctor, the tests of CUDA graphs, the three kernels' proof, the benchmarks in their short form, the memories and
kernels in full, the shape of Llama-3 8B, and a comparison with published figures. Each part is a process of its own that is
stopped when its time is over; what it has measured by then is kept. Run it again, and it goes on where it stopped.

    lab first-contact             on a machine with an NVIDIA GPU
    lab first-contact --dry-run   what it would do, and what six cards should give
"""

from typing import Any

from labkit.errors import LabError
from labkit.lab import Lab, run_lab
from labkit.machine import has_gpu
from labkit.options import between
from labkit.paths import outputs, short
from labkit.predictions import show_value
from phase1_tokens_embeddings.weights import CARDS
from phase5_real_gpu.measuring import first_contact as contact
from phase5_real_gpu.measuring.machine_limits import device_name
from phase5_real_gpu.measuring.reference_files import Part, read_reference, slug
from phase5_real_gpu.measuring.steps import Gathered, Step, run_steps

SIX = ("h200", "h100", "a100-80", "rtx4090", "l4", "t4")


def story(lab: Lab) -> None:
    if lab.args.dry_run or not has_gpu():
        if not has_gpu():
            lab.say(
                "There is no NVIDIA GPU here that this torch can use, so nothing is measured (`lab doctor` says why)."
            )
        show_plan(lab)
        if not lab.args.dry_run:
            raise LabError("no GPU to run on: use a machine that has one, or --dry-run")
        return
    name = device_name("cuda")
    card = contact.card_of(name)
    expected = contact.expected_on(card) if card else {}
    folder = outputs() / "first_contact" / slug(name)
    file = folder / "machine.json"
    lab.say(f"{name}: {len(contact.STEPS)} parts, together at most {lab.args.seconds / 60:.0f} minutes.")
    if not card:
        lab.say("The course has no data sheet of this card, so its figures stand alone.")

    told: set[str] = set()

    def tell(step: Step, part: Part | None, gathered: Gathered) -> None:
        if part is None:
            lab.show(f"{step.name}: {step.shows} (at most {step.seconds:.0f} s)")
            return
        lab.show(f"{step.name}: {part.outcome}, {part.seconds:.0f} s{part.error and '. ' + part.error}")
        new = [m for m in gathered.measurements.values() if m.name in expected and m.name not in told]
        told.update(m.name for m in new)
        if new:
            rows = [[m.name, m.unit, m.value, *in_words(m.value, expected[m.name])] for m in new]
            lab.table(
                f"{card.title}, beside its data sheet", ["figure", "unit", "measured", "expected", ""], rows
            )

    earlier = read_reference(file) if file.exists() and not lab.args.again else None
    fields = dict(device="cuda", command="lab first-contact", quick=True)
    gathered = run_steps(contact.STEPS, folder, file, tell, lab.args.seconds, earlier, **fields)
    clocks = [gathered.card.get(f"{which}_sm_clock_mhz") for which in ("lowest", "median", "highest")]
    if all(clocks):
        lowered = ", ".join(gathered.card.get("throttled_by", ())) or "nothing"
        lab.say(
            f"Clock while busy: {clocks[0]:,.0f} to {clocks[2]:,.0f} MHz, median {clocks[1]:,.0f}. Lowered by: {lowered}."
        )
    lab.record(file=str(file), parts=[vars(p) for p in gathered.parts], figures=len(gathered.measurements))
    lab.say(f"{len(gathered.measurements)} figures are in {short(file)}, what each part said beside it.")


def in_words(value: float, expected: contact.Expected) -> tuple[str, str]:
    """The range, and what a figure outside means."""
    if expected.low is None:
        return "does not fit", "a surprise: look at the model that ran"
    span = f"{show_value(expected.low)} to {show_value(expected.high)}"
    rate = "/s" in expected.unit
    if expected.low <= value <= expected.high:
        return span, "as expected"
    if (value > expected.high) == rate:
        return span, "a surprise: faster than the data sheet allows, so look at the timing"
    return span, "a surprise: slower, so look at the log, the clocks and the path"


def show_plan(lab: Lab) -> None:
    lab.table(
        f"What is run, in {sum(step.seconds for step in contact.STEPS) / 60:.1f} minutes at most",
        ["part", "what it shows", "seconds"],
        [[step.name, step.shows, step.seconds] for step in contact.STEPS],
    )
    figures = {
        figure.removesuffix("-bfloat16"): e.unit for figure, e in contact.expected_on(CARDS["h200"]).items()
    }
    rows = []
    for card in map(CARDS.get, SIX):
        found = contact.expected_on(card).values()
        rows.append([card.title.rsplit(" ", 2)[0], *(in_words(0, e)[0].replace(" to ", "–") for e in found)])
    lab.table(
        "What the cards should give",
        ["card", *(f"{name} ({unit})" for name, unit in figures.items())], rows,
        note="From the data sheets' ceilings; what is no ceiling is the share of it that a sound setup reaches.",
    )  # fmt: skip


def add_arguments(parser: Any) -> None:
    add, most = parser.add_argument, contact.TOTAL_SECONDS
    add("--dry-run", action="store_true", help="say what would be run, and what cards should give")
    add("--again", action="store_true", help="forget what an earlier run has measured")
    add("--seconds", type=between(1, 3600), default=most, help=f"for everything together ({most})")


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, add_arguments=add_arguments, argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
