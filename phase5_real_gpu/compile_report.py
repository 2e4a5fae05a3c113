"""What the compiler makes of the kernels: registers, memory, instructions, for seven kinds of card and without any.

A kernel that gives the right numbers may still be slow for reasons that show in its machine code: more
variables than registers, loads of 2 bytes where 16 would do, no fetching ahead, products on the ordinary units
instead of the matrix units. No GPU is needed to see that. A compiler writes instructions; it does not run them.

You will see each kernel of the engine compiled for seven kinds of card, from a T4 to a B200, what one line moved in a
loop does to the way keys are fetched, and a list of what cannot be known before a kernel has run.

Needs Triton, not a GPU.
"""

from argparse import ArgumentParser
from dataclasses import asdict
from textwrap import fill

from labkit.lab import Lab, run_lab
from phase5_real_gpu.compiling import compile_cases
from phase5_real_gpu.compiling.launches import all_variants
from phase5_real_gpu.kernels.triton_setup import require_triton
from phase5_real_gpu.story import compile_story as chapters
from phase5_real_gpu.story.compile_story import FIRST, HOISTED, MAIN_CARD, NOT_CAUGHT, PLAIN, UNALIGNED


def story(lab: Lab) -> None:
    require_triton()
    lab.say("""A kernel is compiled for one kind of card when it is first launched. Here that is done ahead of time, for
        cards that are not here, with the arguments that the engine would pass: 32 query heads and 8 KV heads of
        128, pages of 16 tokens.""")
    listed = chapters.requests(lab.quick)
    compiled = list(lab.progress(compile_cases(listed), "compiling", total=len(listed)))
    engine = [c for c in compiled if not c.case.startswith(("ladder", "first")) and c.case != UNALIGNED]
    plain = [c for c in compiled if c.case == PLAIN]
    hoisted = [c for c in compiled if c.case == HOISTED]
    chapters.first_kernels(lab, [c for c in compiled if c.case in FIRST])
    lab.title("The kernels of the engine")
    chapters.engine_kernels(lab, engine)
    chapters.fetching_ahead(lab, plain, hoisted)
    ladder = [c for c in compiled if c.case.startswith("ladder") and c.num_stages == 3]
    chapters.show_card(lab, MAIN_CARD, ladder)
    for unaligned in (c for c in compiled if c.case == UNALIGNED):
        chapters.alignment(
            lab, next(c for c in engine if c.case == "decode" and c.capability == MAIN_CARD), unaligned
        )
    if lab.args.all_variants:
        listed = all_variants()
        found = list(lab.progress(compile_cases(listed), "compiling all variants", total=len(listed)))
        chapters.all_variants(lab, found)
        lab.record(all_variants=[asdict(c) for c in found])
    lab.title("What neither the interpreter nor the compiler can tell")
    width, indent = 96, " " * 26
    lab.show(
        "\n".join(fill(f"{name:26}{text}", width, subsequent_indent=indent) for name, text in NOT_CAUGHT)
    )
    lab.record(compiled=[asdict(c) for c in compiled], not_caught=dict(NOT_CAUGHT))
    if any(c.registers for c in engine):
        lab.figure(chapters.draw(engine, plain, hoisted), "compile_report")


def add_arguments(parser: ArgumentParser) -> None:
    help = "also compile every head size, format, window and soft cap for each card (half an hour)"
    parser.add_argument("--all-variants", action="store_true", help=help)


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, options=("quick",), add_arguments=add_arguments, argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
