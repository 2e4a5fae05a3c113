"""The chapters of the compile report."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from labkit.figures import BLUE, ORANGE, new_figure
from labkit.lab import Lab
from phase5_real_gpu.compiling.launches import CASES
from phase5_real_gpu.compiling.machine_code import KB, LIMITS, Compiled

PRODUCTION = (
    "decode", "decode split", "decode d64", "decode d256", "decode fp8", "decode fp32", "decode window softcap",
    "prefill", "prefill d64", "prefill d256", "prefill fp8", "prefill fp32", "prefill window softcap",
    "write KV", "write KV fp8", "rotate and write KV",
    "GEMM int8", "GEMM int4", "GEMM int4, 64 rows",
)  # fmt: skip

QUICK = ("decode", "prefill", "write KV", "GEMM int4")
FIRST = tuple(case for case in CASES if case.startswith("first"))
RUNGS = tuple(case for case in CASES if "ladder" in case and "direct" not in case)  # rung 7 is "decode"
PLAIN, HOISTED = "ladder, tile", "ladder, hoisted"
MAIN_CARD = 90

NOT_CAUGHT = {
    "speed": "two kernels with the same counts can differ by a factor",
    "races": "the interpreter runs one program after the other; a GPU runs thousands at once, in any order",
    "reads outside": "the interpreter reads on behind a tensor; NaN in unused blocks shows reads within the pool only. "
    "`compute-sanitizer` on a GPU shows the others",
    "addresses beyond 32 bits": "a cache of more than 2^31 numbers is too large for a test",
    "rounding": "the interpreter multiplies bfloat16 in float32; a card rounds weights before the second multiplication",
    "the compiler": "the interpreter runs the Python, not what was compiled",
    "launches": "a grid beyond the card's limits, memory held by another process, a driver too old for the code",
    "other variants": "arguments that are no multiple of 16, or are 1, are compiled anew at the first launch",
    "CUDA graphs": "a replayed graph uses the addresses of its recording. Only a replay shows a stale one",
    "streams": "work queued on two streams without waiting, and Python reading a result too early",
}


def dtype_for(capability: int) -> str:
    """A T4 has no bfloat16."""
    return "bfloat16" if capability >= 80 else "float16"


def requests(quick: bool) -> list[dict[str, Any]]:
    """The cases to compile: the engine's kernels for each card, the first kernels and the ladder for one."""
    if quick:
        return [_one(case) for case in (*FIRST, *QUICK, PLAIN, HOISTED)]
    engine = [request for card in LIMITS for request in chosen(None, card)]
    return [*map(_one, FIRST), *engine, *map(_one, RUNGS)]


def chosen(case: str | None, capability: int) -> list[dict[str, Any]]:
    """One case, or all kernels of the engine, for one kind of card. There are no instructions for fp8 before sm_89."""
    engine = [c for c in PRODUCTION if "fp8" not in c or capability >= 89]
    return [_one(c, capability) for c in ([case] if case else engine)]


def _one(case: str, capability: int = MAIN_CARD) -> dict[str, Any]:
    return {"case": case, "dtype": dtype_for(capability), "capability": capability}


def _row(name: str, c: Compiled) -> list[Any]:
    if c.error:
        return [name, *[None] * 8]
    kinds = (("wgmma", c.wgmma), ("tcgen05", c.tcgen05), ("mma", c.mma))
    matrix = next((f"{count} {kind}" for kind, count in kinds if count), "-")
    return [name, c.registers, f"{c.spills_in_loops} / {c.spills}", round(c.shared / KB), matrix, c.async_copies,
            c.buffers or None, c.wide_loads, c.programs_per_multiprocessor]  # fmt: skip


COLUMNS = ["kernel", "registers", "spills", "shared KiB", "matrix", "async", "buffers", "16 B", "fit"]


def show_card(lab: Lab, capability: int, kernels: Sequence[Compiled]) -> None:
    limits = LIMITS[capability]
    lab.table(
        f"{limits.name}: {limits.cards}, {dtype_for(capability)}; {limits.shared_program // KB} KiB of shared memory per program",
        COLUMNS,
        [
            _row("    merging" if c.kernel.startswith("merge") else c.case.removeprefix("first "), c)
            for c in kernels
        ],
    )
    for c in kernels:
        if c.error:
            lab.say(f"{c.case}: the compiler refused. {c.error}")


def first_kernels(lab: Lab, kernels: Sequence[Compiled]) -> None:
    lab.title("Three kernels to begin with")
    lab.say("""From `ladder/first_kernels.py`. With a stride of 32 no lane finds four neighbouring numbers, so there is no load of 16
        bytes. The transpose exchanges its tile through shared memory. With three stages the loop fetches ahead with asynchronous
        copies into two buffers.""")
    show_card(lab, MAIN_CARD, kernels)


def explain_columns(lab: Lab) -> None:
    lab.show(
        "registers      of one thread; 255 at most, and 65,536 for all threads of a multiprocessor\n"
        "spills         instructions that move variables out of registers and back: in loops / all\n"
        "shared KiB     fast memory on the chip that a program's threads share\n"
        "matrix         tensor core instructions: mma by 32 threads, wgmma by 128 (sm_90),\n"
        "               tcgen05 for the whole program (sm_100)\n"
        "async          asynchronous copies into shared memory (cp.async)\n"
        "buffers        tiles of keys that fit in shared memory at the same time\n"
        "16 B           loads of 16 bytes per thread\n"
        "fit            programs that fit on one multiprocessor at once"
    )


def engine_kernels(lab: Lab, kernels: Sequence[Compiled]) -> None:
    cards = sorted({c.capability for c in kernels})
    names = ", ".join(LIMITS[capability].name for capability in cards)
    attention = [c for c in kernels if c.kernel in ("decode_kernel", "prefill_kernel")]
    modern = [c for c in attention if c.capability >= 80 and c.case not in ("decode fp32", "prefill fp32")]
    claims = [
        ("aot-compiles", f"{len(kernels)} kernels for {names}. How many does the compiler refuse",
         0, sum(bool(c.error) for c in kernels), ""),
        ("aot-fits", "how many ask for more shared memory than a program gets on that card",
         0, sum(not c.error and not c.fits for c in kernels),
         "Such a kernel compiles without a message, and fails at its first launch."),
        ("aot-no-spills", "how many have a loop in which variables do not fit into registers",
         0, sum(bool(c.spills_in_loops) for c in kernels),
         "A spilled variable goes through memory in every iteration, and decode waits for memory already. A "
         "few spills before or after a loop run once and cost little time."),
        ("aot-matrix-units", "attention from sm_80 on: how many of the kernels leave the tensor cores idle",
         0, sum(not (c.mma or c.wgmma or c.tcgen05) for c in modern),
         "In 16 and 8 bits. Kernels in float32 do not use them on purpose: TF32 keeps only 10 bits of the fraction."),
        ("aot-wgmma", "prefill for sm_90 uses wgmma, multiplications by four groups of 32 threads together",
         True, all(c.wgmma > 0 for c in modern if c.kernel == "prefill_kernel" and c.capability == 90),
         "It needs 64 rows or more, which a prefill tile has. Decode has 16 rows and uses mma, which is fast enough: "
         "decode waits for memory."),
        ("aot-fetches-ahead", "attention from sm_80 on: the smallest number of buffers for tiles of keys",
         2, min((c.buffers for c in modern), default=0),
         "While one tile is multiplied, another is in flight. With a single buffer the program fetches, waits, "
         "multiplies, and fetches again."),
    ]  # fmt: skip
    for claim, question, predicted, measured, note in claims:
        lab.predict(claim, question, predicted, measured, note=note)
    explain_columns(lab)
    if not lab.quick:
        lab.say("""d64, d256: heads of 64 and 256 numbers. fp8: keys and values of one byte. split: long contexts in several
            splits.""")
    for capability in cards:
        show_card(lab, capability, [c for c in kernels if c.capability == capability])
    if any(c.capability == 75 for c in kernels):
        old = [c for c in kernels if c.capability == 75]
        if not any(c.mma for c in old):
            lab.say("""A T4 has tensor cores, but this version of Triton writes no instructions for them: multiplications run
                on the ordinary units. It has no bfloat16 and no asynchronous copies either, so the kernels are compiled
                for float16, and each iteration waits for its keys. On a T4 their results are right, but they are slow.""")


def fetching_ahead(lab: Lab, plain: Compiled, hoisted: Compiled) -> None:
    lab.title("One line moved, two buffers instead of one")
    lab.say("""To fetch keys ahead a program must know their address. In a paged cache the address comes from the
        block table, and this load must be complete before the load of the keys can start. The compiler divides a loop into
        3 stages and overlaps the stages of neighbouring iterations. Here one stage is spent on the block table.""")
    lab.show("""tile        iteration i:  load ids(i) -> load keys(i) -> multiply
hoisted     iteration i:  load ids(i+1), load keys(i) -> multiply          (ids(i) came one iteration ago)""")
    under_way = ", ".join(  # where the loop waits; the wait behind the loop is always for all of them
        f"{c.case.removeprefix('ladder, ')} {max(c.waits, default=0)}" for c in (plain, hoisted)
    )
    lab.predict(
        claim="aot-hoisted-buffers",
        question="3 stages: buffers for keys if the ids are loaded in the same iteration, and one iteration early",
        predicted=[1, 2],
        measured=[plain.buffers, hoisted.buffers],
        note=f"Copies that may be in flight where the loop waits for keys: {under_way}. kernel_benchmark.py measures the gain "
        "in time on a GPU.",
    )


def draw(kernels: Sequence[Compiled]) -> Figure:
    """Shares of a multiprocessor's registers and shared memory that a program of each kernel takes."""
    shown = [c for c in kernels if c.capability == MAIN_CARD and c.registers]
    limits = LIMITS[MAIN_CARD]
    fig, (ax,) = new_figure(
        "Registers or shared memory decide how many programs of the attention and GEMM kernels fit",
        f"What one program takes of a multiprocessor's registers and shared memory ({limits.cards}); compiled, not run",
        size=(7.2, max(3.4, 0.26 * len(shown) + 1.2)),
    )
    for place, c in enumerate(shown):
        registers = 100 * 32 * c.num_warps * c.registers / limits.registers
        shared = 100 * c.shared / limits.shared_multiprocessor
        first = place == 0
        ax.barh(place - 0.19, registers, 0.36, color=BLUE, label="registers" if first else None)
        ax.barh(place + 0.19, shared, 0.36, color=ORANGE, label="shared memory" if first else None)
        fit = f"{c.programs_per_multiprocessor} fit"
        ax.text(max(registers, shared) + 1, place, fit, va="center", fontsize=9)
    ax.set(xlabel="% of the multiprocessor", xlim=(0, 100))
    labels = [f"{c.case}, merging" if c.kernel == "merge_kernel" else c.case for c in shown]
    ax.set_yticks(range(len(shown)), labels)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.legend(loc="lower right")
    return fig
