"""The chapters of the comparison with reference machines."""

from collections.abc import Sequence
from typing import Any

from labkit.lab import Lab
from labkit.predictions import show_value
from phase5_real_gpu.comparing.causes import CAUSES
from phase5_real_gpu.comparing.comparison import Comparison, like_cards
from phase5_real_gpu.comparing.quick_measurements import measure_quickly
from phase5_real_gpu.measuring.measurements import Measurement
from phase5_real_gpu.measuring.reference_files import Reference, read_reference

# By verdict: how a table says it, and what that means.
VERDICTS = {
    "as expected": ("as expected", "as close to its limit as the reference is to its own, and about as fast."),
    "slower, as your limits are": (
        "slower: limits", "as close to its limit, which is lower here. Nothing is wrong."),
    "faster than expected": (
        "faster", "closer to its limit than the reference. (Beyond 100%: the data fits a cache, or a ceiling was "
        "measured too low because something else was running.)"),
    "slower than your limits explain": (
        "SLOWER", "further from its limit than the reference. There is a cause."),
    "not comparable": ("-", "no limit is known with which both can be compared."),
}  # fmt: skip


def own_report(lab: Lab) -> Reference:
    """The file that was given, or a quick look at this machine."""
    if lab.args.file:
        return read_reference(lab.args.file)
    with lab.console.status("a quick measurement of this machine") as status:
        return measure_quickly(lab.device, lab.seed, lambda what: status.update(f"measuring: {what}"))


def show_machines(lab: Lab, mine: Reference, theirs: Reference) -> None:
    a, b = mine.limits, theirs.limits
    rows: list[list[Any]] = [
        ["device", mine.device_name[:36], theirs.device_name[:36]],
        ["taken", origin_of(mine), origin_of(theirs)],
        ["reads memory", show_value(a.read_gb_s, "GB/s"), show_value(b.read_gb_s, "GB/s")],
    ]
    rows += [
        [f"multiplies {dtype}", *(show_value(r.matmul_tflops.get(dtype), "TFLOP/s") for r in (a, b))]
        for dtype in sorted({*a.matmul_tflops, *b.matmul_tflops})
    ]
    rows.append(["starts an operation in", show_value(a.launch_us, "us"), show_value(b.launch_us, "us")])
    lab.table("Limits", ["", mine.name[:36], theirs.name[:36]], rows)
    if theirs.origin == "article":
        lab.say(f"{theirs.name} holds the figures of an article. This course did not reproduce them.")
    if theirs.note:
        lab.say(theirs.note)
    if mine.device != theirs.device:
        lab.say("""One of the two is a GPU and the other is not. There is no closer reference yet, and few
            figures are in both.""")
    for who in (mine, theirs):
        for part in who.parts:
            if part.outcome != "ok":
                lab.say(f"{who.name} has no figures of {part.script}: {part.outcome} ({part.error}).")


def origin_of(r: Reference) -> str:
    if r.origin != "measured":
        return {"article": "told by an article", "published": "published by others"}[r.origin]
    return f"measured {(r.measured_at or '')[:10]}{', quick' if r.quick else ''}"


def show_like_cards(lab: Lab, mine: Reference, references: Sequence[Reference]) -> None:
    """What others reached on the same kind of card. Shown, and never a verdict: models and settings differ from ours."""
    found = [(r, m) for r in like_cards(mine, references) for m in r.measurements]
    if found:
        lab.table(
            f"Published figures of such a card, for comparison with your {mine.device_name}",
            ["who and what", "value", "unit", "on"],
            [[m.details.get("what", m.name), m.value, m.unit, r.device_name] for r, m in found],
            note="Models, number formats and settings differ, so these decide no verdict. Sources: the files of the folder "
            "reference/.",
        )  # fmt: skip


def show_lines(lab: Lab, result: Comparison) -> None:
    mine, theirs = result.mine, result.theirs
    if result.lines:
        predict_itl(lab, result)
        numbers = {f.cause.name: str(i) for i, f in enumerate(result.findings, 1)}
        rows = []
        for line in result.lines:
            see = [numbers[f.cause.name] for f in result.findings if f.explains(line.mine.name, line.is_off)]
            verdict = VERDICTS[line.verdict][0] + f" ({', '.join(see)})" * bool(see)
            verdict += ": why?" * (line.is_off and not see)
            rows.append([
                short_name(line.mine.name), line.mine.unit, line.mine.value, share(line.mine), line.expected,
                line.theirs.value, share(line.theirs), verdict,
            ])  # fmt: skip
        lab.table(
            f"{mine.name} and {theirs.name}",
            ["figure", "unit", "yours", "share", "expected", "theirs", "share", "verdict"],
            rows,
            note="""Share: floor / time, or rate / highest rate, by each machine's own limits; 100% is the limit of the
                machine. Expected: the figure of your machine if it reached the same share of its limit as the reference does of its
                own."""
            + " In brackets: see below." * bool(result.findings),
        )
        used = dict.fromkeys(VERDICTS[line.verdict] for line in result.lines)
        lab.show("\n".join(f"{word + ':':16}{meaning}" for word, meaning in used))
    else:
        lab.say(f"""{mine.name} and {theirs.name} have no figure in common. Yours are compared with their own
            limits only.""")
    floors = [m for m in result.alone if m.share_of_limit]
    if floors:
        most = floors[:20]
        lab.table(
            "Only yours, compared with your own limits",
            ["figure", "unit", "yours", "floor", "share", "limited by"],
            [[short_name(m.name), m.unit, m.value, m.floor, share(m), m.limit or "-"] for m in most],
            note=f"and {len(floors) - len(most)} more" if len(floors) > len(most) else "",
        )


def predict_itl(lab: Lab, result: Comparison) -> None:
    """One line in advance: the time between two tokens here, from what the reference says of it, and from its parts."""
    line = next((x for x in result.lines if x.mine.name.startswith("itl-") and x.expected), None)
    if line is None:
        return
    mine, theirs = line.mine, line.theirs
    claim, predicted = "itl-from-reference", line.expected
    question = f"if this machine comes as close to its limit as {result.theirs.name} to its own"
    note = f"{result.theirs.name} has {show_value(theirs.value, theirs.unit)}, which alone says nothing."
    if fixed := mine.details.get("fixed_ms"):
        claim, predicted = "itl-from-its-parts", mine.floor + fixed
        question = "reading all that it must, and a step with as many layers and next to nothing to read"
        note = f"Bytes over bandwidth are {mine.floor:.2f} ms, the hollow step took {fixed:.2f}."
    lab.predict(
        claim, f"{mine.name} here: {question}", predicted=predicted, measured=mine.value, unit=mine.unit,
        tolerance=0.6, kind="timing", note=note,
    )  # fmt: skip


def short_name(name: str) -> str:
    return name if len(name) <= 25 else f"…{name[-24:]}"


def share(m: Measurement) -> str:
    if m.share_of_limit is None:
        return "-"
    return f"{m.share_of_limit:.0%}" if m.share_of_limit >= 0.01 else "< 1%"


def show_causes(lab: Lab, result: Comparison) -> None:
    if result.mine.quick:
        lab.say("""This was a quick measurement with few repeats. Measure with
            measure_machine.py before you trust a difference of less than a half.""")
    for i, finding in enumerate(result.findings, 1):
        cause = finding.cause
        lab.say(f"{i}. {cause.name[0].upper()}{cause.name[1:]}. Seen: {finding.evidence}.")
        lab.say(f"{cause.explanation} Remedy: {cause.remedy}.")
    unexplained = [x for x in result.off if not any(f.explains(x.mine.name) for f in result.findings)]
    if unexplained:
        names = ", ".join(x.mine.name for x in unexplained[:4]) + (", ..." if len(unexplained) > 4 else "")
        lab.say(f"""{len(unexplained)} of {len(result.lines)} figures are slower than your limits explain, and none of the
            {len(CAUSES)} known causes left a trace ({names}). The figures do not show which other programs ran on either machine, nor
            how fast its processor runs Python. First close other programs and measure again. Then compare the
            settings of both files: versions, dtype, batch.""")
    elif not result.findings and result.lines:
        lab.say("Nothing stands out: your machine's limits explain all differences.")
    if not result.findings:
        lab.say(f"Looked for, and not found: {', '.join(c.name for c in CAUSES)}.")
