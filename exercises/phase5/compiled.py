"""A learner's kernel as machine code, for a card that need not be here."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from exercises.judging.engine_runs import passed, refuse
from exercises.judging.verdict import NotYet
from exercises.phase5.grade_decode import counted, given, make_case
from exercises.phase5.launching import body_of, decode_arguments
from phase5_real_gpu.compiling import Compiled, compile_cases, compile_kernel
from phase5_real_gpu.compiling.machine_code import LIMITS

CARD = 90  # sm_90: H100, H200
PACKED = dict(case="ladder, packed", dtype="bfloat16", capability=CARD)


def compile_your_kernel(exercise: str, kernel: Any, *arguments: Any, **constants: Any) -> None:
    """Print what a launch with these arguments takes of an H100. Nothing is started: tensors count by their shapes.

    Args:
        constants: several values in a tuple: one launch with each.

    Raises:
        NotYet: it has not passed its check, or the compiler refuses what the interpreter lets pass.
    """
    passed(exercise, kernel)
    varied = next((name for name, value in constants.items() if isinstance(value, tuple)), "num_warps")
    launches = [constants | {varied: value} for value in constants.get(varied, (4,))]
    print(f"{varied:>12}  registers  programs per multiprocessor  instructions  loads of 16 bytes  buffers")
    for launch, c in zip(launches, compiled(kernel, arguments, launches), strict=True):
        fit = c.programs_per_multiprocessor
        print(
            f"{launch[varied]:12,} {c.registers:10} {fit:28} {c.instructions:13} {c.wide_loads:18} {c.buffers:8}"
        )


def compiled(kernel: Any, arguments: Sequence[Any], launches: Sequence[Mapping[str, Any]]) -> list[Compiled]:
    """launches: the constants of each."""
    body = body_of(kernel)
    found = compile_kernel(inspect.getsource(body), body.__name__, arguments, launches, CARD)
    if error := next((c.error for c in found if c.error), ""):
        says = "The compiler refuses what the interpreter lets pass. Stay with the words of the table."
        tried = f"{body.__name__} for {LIMITS[CARD].name}"
        refuse(NotYet("not-compiled", says, tried, error, "machine code"))
    return found


def score_your_kernel(kernel: Any) -> None:
    """Print what the kernel of exercise 5.7 loads and what it takes of an H100, beside the one that was handed out.

    Raises:
        NotYet: it has not passed its check, or the compiler refuses it.
    """
    passed("p5e7_faster_decode", kernel)
    *step, tables, lens = make_case(0, [256] * 2, 16, 32, 8, 128)
    q, k_cache, v_cache = (x.bfloat16() for x in step)
    _, arguments, constants = decode_arguments(q, k_cache, v_cache, tables, lens, q)
    case = make_case(0, [64, 37], 16, 8, 2, 16)
    rows = []
    for name, each in {"as given": given(), "yours": kernel}.items():
        found = counted(each, *case)
        reads = f"{found['each key is read']:.0f}x", f"{found['loads of keys per block']:.1f}"
        rows.append((name, *reads, *compiled(each, arguments, [constants])))
    rows += [("packed", "1x", "1.0", c) for c in compile_cases([PACKED])]
    print(f"{'':8} each key  loads of keys             programs per")
    print(f"{'':8}  is read      per block  registers   multiprocessor  instructions  spills")
    for name, reads, loads, c in rows:
        fit = c.programs_per_multiprocessor
        print(f"{name:8} {reads:>8} {loads:>14} {c.registers:10} {fit:16} {c.instructions:13} {c.spills:7}")
