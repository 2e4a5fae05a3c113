"""The kernels as machine code: that they compile for seven cards, fit, do not spill, and fetch ahead."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from labkit.errors import LabError
from labkit.paths import ROOT
from labkit.reports import report_of
from phase5_real_gpu import compile_report
from phase5_real_gpu.compiling import Compiled, ahead_of_time, compile_cases
from phase5_real_gpu.compiling.machine_code import KB, count_spills
from phase5_real_gpu.story.compile_story import FIRST, HOISTED, NOT_CAUGHT, PLAIN, dtype_for

pytest.importorskip("triton")

pytestmark = pytest.mark.proof  # a compiler for each card: 20 s
ON_HOPPER = (
    "decode", "decode split", "decode split window softcap", "prefill", "prefill window softcap", "write KV",
    "GEMM int8", "GEMM int4, 64 rows",
)  # fmt: skip
SHAPES = [*((case, 90) for case in ON_HOPPER), ("GEMM int4", 80), ("decode", 86)]
SHAPES += [(case, capability) for capability in (75, 80, 100) for case in ("decode", "prefill")]
# The checks take tables of int32 and int64. The interpreter does not mind mixing them; the compiler does, in a loop.
MORE = (*FIRST, PLAIN, HOISTED, "decode int64", "prefill int64")


@pytest.fixture(scope="module")
def compiled() -> list[Compiled]:
    """One process compiles all that these tests look at."""
    listed = [*SHAPES, *((case, 90) for case in MORE), ("decode fp8", 80)]
    return list(compile_cases(dict(case=c, capability=on, dtype=dtype_for(on)) for c, on in listed))


@pytest.fixture
def engine(compiled) -> list[Compiled]:
    return [c for c in compiled if (c.case, c.capability) in SHAPES]


def test_all_compile_and_fit_and_no_loop_spills(compiled, engine):
    assert {(c.case, c.capability) for c in engine} == set(SHAPES)
    assert [c.kernel for c in engine if c.case == "decode split"] == ["decode_kernel", "merge_kernel"]
    wrong = [(c.case, c.capability, c.error, c.shared) for c in compiled if not c.fits]
    assert [w[:2] for w in wrong] == [("decode fp8", 80)]  # an A100 has no fp8: a refusal is a line
    assert wrong[0][2] and "\n" not in wrong[0][2]
    assert not [(c.case, c.capability, c.spills_in_loops) for c in engine if c.spills_in_loops]
    assert all(0 < c.registers <= 255 for c in engine)
    # Two programs on every card would be wrong: the rule of splits asks the compiled kernel.
    fit = {c.capability: c.programs_per_multiprocessor for c in engine if c.case == "decode"}
    assert fit[90] == 3 and fit[86] == 1 and fit[75] == 4


def test_attention_uses_the_matrix_units_and_fetches_keys_ahead(engine):
    attention = [c for c in engine if c.kernel in ("decode_kernel", "prefill_kernel") and c.capability >= 80]
    assert len(attention) >= 10
    for c in attention:
        unit = c.mma if c.kernel == "decode_kernel" or c.capability < 90 else max(c.wgmma, c.tcgen05)
        assert unit > 0, c
        # Two buffers, and the loop goes on while the next tile's fetches are under way.
        assert c.buffers >= 2 and c.async_copies and max(c.waits) >= 2 and c.narrow_copies == 0, c


def test_wide_loads_and_quantized_weights(engine):
    assert all(c.wide_loads for c in engine if c.case == "write KV")
    products = [c for c in engine if c.kernel == "quantized_gemm_kernel"]
    assert len(products) == 3
    for c in products:
        assert c.mma + c.wgmma > 0 and c.buffers >= 2, c
        if "rows" not in c.case:  # one row: six tiles of codes, 4 KiB each, on their way
            assert c.buffers == 6 and c.shared >= 24 * KB, c
        assert c.case != "GEMM int8" or (c.async_copies and c.narrow_copies == 0), c


def test_a_page_id_one_turn_early_is_worth_a_buffer(compiled):
    by_case = {c.case: c for c in compiled if c.capability == 90 and c.kernel != "merge_kernel"}
    assert (by_case[PLAIN].buffers, max(by_case[PLAIN].waits)) == (1, 0)
    assert (by_case[HOISTED].buffers, max(by_case[HOISTED].waits)) == (2, 2)


def test_the_chapters_quote_the_compiler(compiled):
    """Their numbers are those of this compiler: where it changes, the chapters must."""
    texts = {f.stem: f.read_text() for f in (ROOT / "phase5_real_gpu" / "chapters").glob("0*.md")}
    by_case = {c.case: c for c in compiled if c.capability == 90}
    scale, strided, transpose, one, three, decode, prefill = (
        by_case[case] for case in (*FIRST, "decode", "prefill")
    )
    assert f"reports {scale.registers} **registers**" in texts["01-programs"] and scale.wide_loads == 2
    assert strided.wide_loads == 0 and transpose.shared == 32 * 32 * 4
    latency = re.sub(r"\s+", " ", texts["03-latency"])
    for c, stages in ((one, 1), (three, 3)):
        row = f"| `num_stages={stages}` | {c.async_copies} | {c.buffers} | {c.shared // 1024} KiB | {c.registers} |"
        assert row in latency
    assert f"({decode.registers} in units of 8) · 128" in latency
    assert f"| {decode.shared // 1024} KiB, and 1 KiB reserved |" in latency
    assert decode.programs_per_multiprocessor == 3
    assert f"takes {prefill.registers} registers per thread" in texts["05-prefill"]


# ---------------------------------------------------------------------- reading code

LISTING = """
        /*0000*/                   STL [R1+0x4], R6 ;     /* 0x00 */
        /*0010*/              @P1 BRA 0x60 ;
        /*0020*/                   LDL.LU R8, [R1] ;
        /*0030*/                   HMMA.16816.F32.BF16 R28, R24, R12, RZ ;
        /*0040*/                   BRA.U !UP0, 0x20 ;
        /*0050*/                   LDL R8, [R1+0x4] ;
        /*0060*/                   EXIT ;
        /*0070*/                   BRA 0x70;
"""


def test_spills_in_loops_are_told_from_others():
    assert count_spills(LISTING) == (3, 1)
    assert count_spills(LISTING.replace("!UP0, 0x20", "!UP0, 0x50")) == (3, 0)


def test_a_kernel_that_cannot_start_fits_nowhere():
    plain = Compiled("x", "k", 90, "bfloat16", num_warps=4, registers=128, shared=70 * KB)
    assert plain.programs_per_multiprocessor == 3  # 228 / 71
    assert replace(plain, shared=230 * KB).programs_per_multiprocessor is None
    assert replace(plain, capability=75).fits is False  # 70 KiB of 64


# ---------------------------------------------------------------------- the script


@pytest.fixture
def from_memory(monkeypatch, compiled):
    """The script on what is compiled already, `changes` made to the decode kernel."""

    def use(**changes) -> None:
        def compile_cases(listed):
            wanted = {(r["case"], r["capability"]) for r in listed}
            found = [c for c in compiled if (c.case, c.capability) in wanted]
            return [replace(c, **changes) if c.case == "decode" else c for c in found]

        monkeypatch.setattr(compile_report, "compile_cases", compile_cases)

    return use


def test_the_story(from_memory, run_script):
    from_memory()
    data = run_script(compile_report, "--quick")
    claims = {name: p["measured"] for name, p in data["claims"].items()}
    assert claims["aot-compiles"] == claims["aot-fits"] == 0
    assert claims["aot-wgmma"] is True and claims["aot-hoisted-buffers"] == [1, 2]
    assert all(name in data["out"] for name in NOT_CAUGHT)


@pytest.mark.parametrize(
    "changes",
    [{"spills": 3, "spills_in_loops": 1}, {"shared": 300 * KB}, {"mma": 0}, {"buffers": 1}, {"error": "no"}],
    ids=lambda changes: next(iter(changes)),
)
def test_a_worse_kernel_fails_the_script(from_memory, changes):
    from_memory(**changes)
    assert compile_report.main(["--quick"]) == 1


def test_one_kernel_or_one_card_and_the_report_of_all_stays(from_memory, run_script, capsys):
    from_memory()
    run_script(compile_report, "--quick")
    whole = report_of(Path(compile_report.__file__)).read_text(encoding="utf-8")
    assert (
        compile_report.main(["--case", "decode", "--card", "80"])
        == compile_report.main(["--card", "75"])
        == 0
    )
    one, card = capsys.readouterr().out.split("sm_75: T4")
    assert "sm_80: A100" in one and "prefill" not in one and "prefill" in card and "fp8" not in card
    assert report_of(Path(compile_report.__file__)).read_text(encoding="utf-8") == whole


def test_a_compiler_that_does_not_start(monkeypatch):
    monkeypatch.setattr(ahead_of_time.sys, "executable", "/bin/false")
    with pytest.raises(LabError, match="compiler did not run"):
        list(compile_cases([]))
