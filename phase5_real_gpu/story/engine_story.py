"""What the engine benchmark says and draws: the source's T4, the claims, a table for each model, one figure."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from labkit.figures import COLORS, INK, new_figure, plain_numbers
from labkit.lab import Lab
from phase1_tokens_embeddings.weights import find_card
from phase2_attention_kvcache.measuring.roofline import work_of_batch
from phase5_real_gpu.measuring.engine_cases import BenchModel, Plan, bench_model
from phase5_real_gpu.measuring.measurements import GB, Bench
from phase5_real_gpu.measuring.reference_files import find_reference

ARTICLE = find_reference("t4-article")
# TTFT: "flat" is less than 1.5 times from 10 to 100 tokens, "grown" at least twice from 10 on.
FLAT, GROWN = 1.5, 2.0


def source_says(what: str, of: str) -> float:
    """TinyLlama-1.1B on a T4, as the article has it."""
    return ARTICLE.get(f"{what}-tinyllama-{of}").value


def show_t4(lab: Lab) -> None:
    """The source's figures beside what its card allows. Arithmetic alone: it needs no GPU."""
    one_user, of_64 = source_says("throughput", "b1"), source_says("throughput", "b64")
    card, limits, config = find_card("t4"), ARTICLE.limits, bench_model("tinyllama").config
    weight_bytes, read_bytes = 2 * config.num_parameters, work_of_batch(config, [(0, 1)], 2).bytes
    by_the_rule, counted = (limits.read_gb_s * GB / nbytes for nbytes in (weight_bytes, read_bytes))
    lab.title("Are the source's figures possible? A calculation before the measurement")
    lab.predict(
        claim="t4-throughput",
        question="most tokens per second for one user: TinyLlama-1.1B in fp16 on a T4, from its data sheet",
        predicted=by_the_rule,
        measured=counted,
        source_says=one_user,
        unit="tok/s",
        tolerance=0.1,
        note=f"""Predicted by the rule: {weight_bytes / 1e9:.2f} GB of weights at {card.bandwidth_gb_s} GB/s take
            {1e3 / by_the_rule:.1f} ms. Counted: {read_bytes / 1e9:.2f} GB are really read, since a
            step needs one row of the embedding table, not all of it. Plain fp16 decode cannot generate
            {one_user:.0f} tokens per second on this card: other weights, another card or another count.""",
    )
    lab.table(
        "TinyLlama-1.1B on a T4: the source's figures beside what the data sheet allows",
        ["ms, or tokens per second", "the source says", "data sheet allows", "the source reaches"],
        [[m.name, m.value, m.floor, f"{m.share_of_limit:.0%}"] for m in ARTICLE.measurements],
        note="""The limits of batches leave out keys and values. More than 100% is impossible. The other figures are
            possible, and so is the shape of TTFT: flat while reading the weights takes longer than computing, then in proportion.""",
    )
    dollars = card.dollars_per_hour / 3600 * 1e6
    lab.say(f"""At ${card.dollars_per_hour:.2f} per hour a million tokens cost
        ${dollars / counted:.2f} at best if one request has the card alone, and
        ${dollars / of_64:.2f} at the {of_64:,.0f} tokens per second that the source reports for 64 requests.""")


def check_claims(lab: Lab, bench: Bench, plan: Plan, models: Sequence[BenchModel]) -> None:
    """The source's claims that a GPU can check, and our own predictions for the last model."""
    lab.title(f"Predictions for {bench.limits.device_name}")
    if bench.device == "cuda" and any(bm.name == "tinyllama" for bm in models):
        _claims_on_gpu(lab, bench, plan)
    elif bench.device == "cpu":
        remedy = "On a CPU TTFT rises at other lengths, and these sizes take minutes: run this script on a machine with a GPU."
        ratio = "TinyLlama-1.1B: throughput at batch 64 over batch 1"
        lab.cannot_measure("t4-ttft", "TTFT of TinyLlama-1.1B: flat, then linear in ISL", "GPU", remedy)
        lab.cannot_measure("t4-throughput", ratio, "GPU", remedy)
    if not models:
        return
    bm = models[-1]
    most = _largest_batch(bench, plan, bm.name)
    if itl := bench.found.get(f"itl-{bm.name}-b1"):
        lab.predict(
            "decode-floor",
            f"ITL at batch 1, {bm.title}: is it longer than reading all weights and the context's keys and values once?",
            predicted=True, measured=itl.value > 0.8 * itl.floor, kind="timing",
            note=f"{itl.value:.1f} ms; the floor is {itl.floor:.1f} ms. The step reaches {itl.share_of_limit:.0%} of the memory's limit. "
            f"{_why(itl.share_of_limit)}",
        )  # fmt: skip
    if theirs := bench.value(f"transformers-static-throughput-{bm.name}-b{most}"):
        ours = bench.value(f"throughput-{bm.name}-b{most}")
        lab.predict(
            "at-least-transformers", f"batch {most}: our engine is at least as fast as a static batch of transformers",
            predicted=True, measured=ours >= theirs, kind="timing",
            note=f"{bm.title}: {ours:,.0f} and {theirs:,.0f} tokens per second.",
        )  # fmt: skip


def _why(share: float) -> str:
    if share > 1:
        return "More than 100%: the weights stay in the processor's cache, which is faster than main memory."
    if share < 0.6:
        return "Most of the rest is overhead: starting the step's many small operations, and Python between them."
    return ""


def _claims_on_gpu(lab: Lab, bench: Bench, plan: Plan) -> None:
    found = {isl: m for isl in plan.isls if (m := bench.found.get(f"ttft-tinyllama-isl{isl}"))}
    if {10, 100} <= found.keys():
        ms, floors = (
            " / ".join(f"{v:.1f}" for v in of) for of in zip(*((m.value, m.floor) for m in found.values()))
        )
        lab.predict(
            "t4-ttft",
            f"TTFT of TinyLlama-1.1B is flat from 10 to 100 tokens, and at least doubles up to {max(found):,}",
            predicted=True, kind="timing",
            measured=found[100].value <= FLAT * found[10].value and found[max(found)].value >= GROWN * found[10].value,
            note=f"""The shape, on this card: {ms} ms at ISL {" / ".join(map(str, found))}; floors {floors} ms. The source's
                milliseconds belong to a T4, where the line begins to rise near 200 tokens.""",
        )  # fmt: skip
    one, many = (bench.found.get(f"throughput-tinyllama-b{b}") for b in (1, 64))
    if one and many:
        lab.predict(
            "t4-throughput", "TinyLlama-1.1B: throughput at batch 64 over batch 1, from this card's floors",
            predicted=many.floor / one.floor, measured=many.value / one.value, unit="x", tolerance=0.5, kind="timing",
            source_says=source_says("throughput", "b64") / source_says("throughput", "b1"),
            note=f"Batch 1 reaches {one.share_of_limit:.0%} of its floor, batch 64 {many.share_of_limit:.0%}.",
        )  # fmt: skip


def _largest_batch(bench: Bench, plan: Plan, name: str) -> int:
    """Of those that were measured, at most 64: beyond it the others are rarely run."""
    done = [b for b in plan.batches if b <= 64 and bench.value(f"throughput-{name}-b{b}") is not None]
    return max(done, default=0)


def show_model(lab: Lab, bench: Bench, plan: Plan, bm: BenchModel) -> None:
    lab.title(f"{bm.title}: {bm.config.num_parameters / 1e6:,.0f}M parameters, {bench.dtype}")
    ttfts = [(isl, bench.found.get(f"ttft-{bm.name}-isl{isl}")) for isl in plan.isls]
    lab.table(
        "TTFT: one prompt, nothing else running",
        ["ISL", "TTFT, ms", "floor, ms", "limit", "floor / TTFT"],
        [[isl, m.value, m.floor, m.limit, f"{m.share_of_limit:.0%}"] for isl, m in ttfts if m],
    )
    rows = []
    for ending in [f"b{b}" for b in plan.batches] + [f"mixed{plan.mixed[0]}"]:
        if ours := bench.found.get(f"throughput-{bm.name}-{ending}"):
            theirs = bench.value(f"transformers-static-throughput-{bm.name}-{ending}")
            share = f"{ours.share_of_limit:.0%}" if ours.floor else ""
            times = f"{ours.value / theirs:.2f}x" if theirs else "-"
            itl = bench.value(f"itl-{bm.name}-{ending}")
            rows.append([ending.removeprefix("b"), ours.value, ours.floor, share, itl, theirs, times])
    count, low, high = plan.mixed
    lab.table(
        "Throughput, tokens per second, from the first arrival to the last token",
        ["batch", "ours", "bound", "of it", "ITL, ms", "transformers", "ours / theirs"],
        rows,
        note=f"""Prompts of {plan.isl} tokens, answers of {plan.osl}. mixed{count}: {count} requests whose
            prompts and answers have {low} to {high} tokens; the static batches of transformers wait for the longest. The
            bound: weights, keys and values over bandwidth, or operations over FLOP/s, prefill included.""",
    )


def draw(bench: Bench, plan: Plan, models: Sequence[BenchModel]) -> Figure:
    """TTFT against ISL and throughput against batch, each with its bound."""
    last = models[-1]
    most = _largest_batch(bench, plan, last.name)
    one, many = (bench.value(f"throughput-{last.name}-b{b}") for b in (1, most))
    finding = "TTFT grows with the prompt"
    if one and many and most > 1:
        finding += f"; {most} requests get {many / one:.1f} times the tokens per second of one"
    bound = "limit: from measured bandwidth and FLOP/s"
    about = f"{bench.limits.device_name}, {bench.dtype}, random weights; the gain is {last.title}'s; {bound}"
    fig, (left, right) = new_figure(finding, about, panels=2, size=(7.2, 9))
    for bm, color in zip(models, COLORS, strict=False):
        _curve(left, bench, bm, color, "ttft-{}-isl{}", plan.isls)
        _curve(right, bench, bm, color, "throughput-{}-b{}", plan.batches)
        name = f"transformers-static-throughput-{bm.name}-b"
        if points := [(b, v) for b in plan.batches if (v := bench.value(f"{name}{b}"))]:
            right.plot(*zip(*points), "x", color=color, markersize=8, markeredgewidth=1.6, alpha=0.8)
    left.set(xlabel="tokens of the prompt (ISL)", ylabel="TTFT, ms")
    right.set(xlabel="requests per batch", ylabel="output tokens per second")
    for axes, ticks in ((left, plan.isls), (right, plan.batches)):
        axes.set(xscale="log", yscale="log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=20))
        plain_numbers(axes)
        axes.set_xticks(ticks, [f"{t:,}" for t in ticks])
        axes.tick_params(which="minor", bottom=False, left=False)
    left.legend(loc="upper left")
    keys = {"o-": "this engine", "--": "limit", "x": "transformers, static batches"}
    handles = [
        right.plot([], [], style, color=INK, label=text, linewidth=1.4)[0] for style, text in keys.items()
    ]
    right.legend(handles=handles, loc="lower right", fontsize=9.5)
    return fig


def _curve(ax: Axes, bench: Bench, bm: BenchModel, color: str, name: str, sizes: Sequence[int]) -> None:
    found = [(x, m.value, m.floor) for x in sizes if (m := bench.found.get(name.format(bm.name, x)))]
    if found:
        xs, values, floors = zip(*found)
        ax.plot(xs, values, "o-", color=color, label=bm.title)
        ax.plot(xs, floors, "--", color=color, linewidth=1.4, alpha=0.8)
