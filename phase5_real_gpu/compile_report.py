"""The machine code of the kernels: registers, memory and instructions for seven kinds of GPU; none of them is needed.

A kernel with right results may still be slow for reasons that its machine code shows: more
variables than registers, loads of 2 bytes instead of 16, no asynchronous copies, multiplications outside the
tensor cores. The compiler writes instructions and does not run them, so it needs no GPU.

You will see each kernel of the engine compiled for seven kinds of GPU, from a T4 to a B200, the effect of moving one line
of a loop on the way keys are fetched, and a list of facts that only a run can show.

Needs Triton, not a GPU. One kernel, after a change of yours: --case "first scale". One kind of card: --card 75.
"""

import argparse
from dataclasses import asdict

from labkit.lab import Lab, run_lab
from phase5_real_gpu.compiling import compile_cases
from phase5_real_gpu.compiling.machine_code import LIMITS
from phase5_real_gpu.kernels.triton_setup import require_triton
from phase5_real_gpu.story import compile_story as chapters


def story(lab: Lab) -> None:
    require_triton()
    if lab.args.case or lab.args.card:
        lab.keeps_report = False  # that of a whole run stays
        card = lab.args.card or chapters.MAIN_CARD
        listed = chapters.chosen(lab.args.case, card)
        chapters.explain_columns(lab)
        chapters.show_card(lab, card, [*lab.progress(compile_cases(listed), "compiling", total=len(listed))])
        return
    lab.say("""Triton compiles a kernel at its first launch, for the card of the machine. Here it compiles ahead of time, for
        other cards, with the arguments that the engine would pass: 32 query heads and 8 KV heads of
        128, blocks of 16 tokens.""")
    listed = chapters.requests(lab.quick)
    compiled = list(lab.progress(compile_cases(listed), "compiling", total=len(listed)))
    engine = [c for c in compiled if not c.case.startswith(("ladder", "first"))]
    for_main = {
        c.case: c for c in compiled if c.capability == chapters.MAIN_CARD and not c.kernel.startswith("merge")
    }
    chapters.first_kernels(lab, [for_main[case] for case in chapters.FIRST if case in for_main])
    lab.title("The kernels of the engine")
    chapters.engine_kernels(lab, engine)
    chapters.fetching_ahead(lab, for_main[chapters.PLAIN], for_main[chapters.HOISTED])
    chapters.show_card(lab, chapters.MAIN_CARD, [c for c in compiled if c.case.startswith("ladder")])
    lab.title("What neither the interpreter nor the compiler shows")
    lab.table("It needs a card", ["what", "why"], list(chapters.NOT_CAUGHT.items()))
    lab.record(compiled=[asdict(c) for c in compiled], not_caught=chapters.NOT_CAUGHT)
    lab.figure(chapters.draw(engine), "compile_report")


def own_arguments(parser: argparse.ArgumentParser) -> None:
    cases = [*chapters.FIRST, *chapters.PRODUCTION, *chapters.RUNGS]
    parser.add_argument(
        "--case", choices=cases, metavar="NAME", help='one kernel only, such as "ladder, tile"'
    )
    parser.add_argument(
        "--card", type=int, choices=list(LIMITS), help="one kind of card only: 90 is sm_90, an H100"
    )


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, options=("quick",), add_arguments=own_arguments, argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
