"""The kernels as machine code: that they compile for seven cards, fit, do not spill, and fetch ahead."""

from dataclasses import replace

import pytest

from labkit.errors import LabError
from phase5_real_gpu.kernels.triton_setup import HAS_TRITON

if not HAS_TRITON:
    pytest.skip("needs Triton", allow_module_level=True)

from phase5_real_gpu import compile_report
from phase5_real_gpu.compiling import Compiled, ahead_of_time, compile_cases, machine_code
from phase5_real_gpu.compiling.machine_code import KB, count_spills, read_code, read_machine_code
from phase5_real_gpu.story.compile_story import HOISTED, NOT_CAUGHT, PLAIN, UNALIGNED, dtype_for

pytestmark = pytest.mark.proof  # a compiler for each card: 20 s
SHAPES = [(case, 90) for case in ("decode", "decode split", "prefill", "write KV")]
SHAPES += [("decode window", 90), ("prefill window", 90)]
SHAPES += [("product int8", 90), ("product int4, 64 rows", 90), ("product int4", 80)]
SHAPES += [("decode", 86)]
SHAPES += [(case, capability) for capability in (75, 80, 100) for case in ("decode", "prefill")]
SIXTY_FOUR_BITS = ("decode int64", "prefill int64")


@pytest.fixture(scope="module")
def compiled() -> list[Compiled]:
    """One process compiles all that these tests look at."""
    listed = [
        {"case": case, "dtype": dtype_for(capability), "capability": capability}
        for case, capability in SHAPES
    ]
    more = (PLAIN, HOISTED, UNALIGNED, *SIXTY_FOUR_BITS)
    listed += [{"case": case, "dtype": "bfloat16", "capability": 90} for case in more]
    listed += [{"case": HOISTED, "dtype": "bfloat16", "capability": 90, "num_stages": 4}]
    listed += [{"case": "decode fp8", "dtype": "bfloat16", "capability": 80}]
    return list(compile_cases(listed))


@pytest.fixture
def engine(compiled) -> list[Compiled]:
    return [c for c in compiled if (c.case, c.capability) in SHAPES]


def test_all_that_was_asked_for_came_back(engine):
    assert {(c.case, c.capability) for c in engine} == set(SHAPES)
    assert not [c for c in engine if c.error]
    assert [c.kernel for c in engine if c.case == "decode split"] == ["decode_kernel", "merge_kernel"]


def test_shared_memory_is_within_the_card(engine):
    assert not [(c.case, c.capability, c.shared) for c in engine if not c.fits]


def test_no_loop_spills(engine):
    if any(c.spills is None for c in engine):
        pytest.skip("needs cuobjdump")
    assert not [(c.case, c.capability, c.spills_in_loops) for c in engine if c.spills_in_loops]
    assert all(0 < c.registers <= 255 for c in engine)


def test_attention_multiplies_on_the_matrix_units(engine):
    for c in engine:
        if c.kernel == "decode_kernel" and c.capability >= 80:
            assert c.mma > 0, c
        if c.kernel == "prefill_kernel" and c.capability >= 80:
            assert {80: c.mma, 90: c.wgmma, 100: c.tcgen05}[c.capability] > 0, c


def test_keys_are_fetched_ahead(engine):
    """Two buffers, and the loop goes on while the next tile's fetches are under way."""
    for c in engine:
        if c.kernel in ("decode_kernel", "prefill_kernel") and c.capability >= 80:
            assert c.buffers >= 2 and c.async_copies and max(c.waits) >= 2, c
            assert c.narrow_copies == 0, c


def test_wide_loads_and_quantized_weights(engine):
    assert all(c.wide_loads for c in engine if c.case == "write KV")
    products = [c for c in engine if c.kernel == "quantized_gemm_kernel"]
    assert len(products) == 3
    for c in products:
        assert c.mma + c.wgmma > 0 and c.buffers >= 2, c
        if "rows" not in c.case:  # one row: six tiles of codes, 4 KiB each, on their way
            assert c.buffers == 6 and c.shared >= 24 * KB, c
        assert c.case != "product int8" or (c.async_copies and c.narrow_copies == 0), c


def test_programs_per_multiprocessor_differ_from_card_to_card(compiled):
    """Two on every card would be wrong: the rule of splits asks the compiled kernel."""
    fit = {c.capability: c.programs_per_multiprocessor for c in compiled if c.case == "decode"}
    assert fit[90] == 3 and fit[86] == 1


def test_hoisting_buys_a_second_buffer(compiled):
    stages = {(c.case, c.num_stages): c for c in compiled if c.case in (PLAIN, HOISTED)}
    assert stages[PLAIN, 3].buffers == 1 and max(stages[PLAIN, 3].waits) == 0
    assert stages[HOISTED, 3].buffers == 2 and max(stages[HOISTED, 3].waits) == 2
    assert stages[HOISTED, 4].buffers == 3


def test_tables_of_64_bits_compile(compiled):
    """The checks take int32 and int64. The interpreter does not mind mixing them; the compiler does, in a loop."""
    found = [c for c in compiled if c.case in SIXTY_FOUR_BITS]
    assert [c.kernel for c in found] == ["decode_kernel", "merge_kernel", "prefill_kernel"]
    assert not [c for c in found if c.error]


def test_the_compiler_is_told_what_is_aligned(compiled):
    """As a launch tells it: a cache at an odd place is loaded number by number."""
    told, untold = (c for c in compiled if c.case in ("decode", UNALIGNED) and c.capability == 90)
    assert told.async_copies and not untold.async_copies and not untold.error


def test_a_refusal_is_a_line(compiled):
    """An A100 has no fp8: the compiler says so, and the other kernels are compiled nevertheless."""
    refused = next(c for c in compiled if c.case == "decode fp8")
    assert refused.error and "\n" not in refused.error
    assert not refused.fits and refused.programs_per_multiprocessor is None


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
    assert count_spills("") == (0, 0)


def test_instructions_are_counted(monkeypatch):
    monkeypatch.setattr(machine_code, "cuobjdump", lambda: None)
    ptx = """
        cp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, %r2;
        cp.async.ca.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x4, %r2;
        cp.async.wait_group \t2;
        mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 { %r1 }
        wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {
        wgmma.wait_group.sync.aligned 0;
        ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
        ld.global.b32 { %r1 }, [ %rd1 + 0 ];
    """
    ttgir = "%a = ttg.local_alloc : () -> !ttg.memdesc<2x64x128xbf16, #s, #smem, mutable>\n"
    ttgir += "%b = ttg.local_alloc : () -> !ttg.memdesc<7x64xi32, #s, #smem, mutable>\n"
    found = read_code({"ptx": ptx, "ttgir": ttgir, "cubin": b""})
    assert found == dict(
        mma=1, wgmma=1, tcgen05=0, async_copies=2, narrow_copies=1, waits=(2,), buffers=2, wide_loads=1
    )  # fmt: skip


def test_without_the_tool_registers_are_unknown(monkeypatch):
    for tool in (None, "/bin/false", "/nowhere/cuobjdump"):
        monkeypatch.setattr(machine_code, "cuobjdump", lambda tool=tool: tool)
        assert read_machine_code(b"no machine code") == {}
    assert Compiled("x", "k", 90, "bfloat16").registers is None


def test_a_kernel_that_cannot_start_fits_nowhere():
    plain = Compiled("x", "k", 90, "bfloat16", num_warps=4, registers=128, shared=70 * KB)
    assert plain.programs_per_multiprocessor == 3  # 228 / 71
    assert replace(plain, shared=230 * KB).programs_per_multiprocessor is None
    assert replace(plain, capability=75).fits is False  # 70 KiB of 64
    assert replace(plain, registers=None).programs_per_multiprocessor is None


# ---------------------------------------------------------------------- the script


def compile_from_memory(monkeypatch, compiled, **changes) -> None:
    def from_memory(listed):
        wanted = {(r["case"], r["capability"], r.get("num_stages", 3)) for r in listed}
        for c in compiled:
            if (c.case, c.capability, c.num_stages) in wanted:
                yield replace(c, **changes) if c.case == "decode" else c

    monkeypatch.setattr(compile_report, "compile_cases", from_memory)


def test_the_story(monkeypatch, compiled, run_script):
    compile_from_memory(monkeypatch, compiled)
    data = run_script(compile_report, "--quick")
    claims = {name: p["measured"] for name, p in data["claims"].items()}
    assert claims["aot-compiles"] == claims["aot-fits"] == 0
    assert claims["aot-wgmma"] is True and claims["aot-hoisted-buffers"] == [1, 2]
    assert all(name in data["out"] for name, _ in NOT_CAUGHT)
    assert {"races", "reads outside", "speed", "launches"} <= set(data["results"]["not_caught"])


@pytest.mark.parametrize(
    "changes",
    [{"spills": 3, "spills_in_loops": 1}, {"shared": 300 * KB}, {"mma": 0}, {"buffers": 1}, {"error": "no"}],
    ids=lambda changes: next(iter(changes)),
)
def test_a_worse_kernel_fails_the_script(monkeypatch, compiled, changes):
    compile_from_memory(monkeypatch, compiled, **changes)
    assert compile_report.main(["--quick"]) == 1


def test_unknown_registers_are_left_out(monkeypatch, compiled, run_script):
    unknown = dict.fromkeys(("registers", "stack", "spills", "spills_in_loops"))
    compile_from_memory(monkeypatch, [replace(c, **unknown) for c in compiled])
    assert "`cuobjdump`" in run_script(compile_report, "--quick")["out"]


def test_a_compiler_that_does_not_start(monkeypatch):
    monkeypatch.setattr(ahead_of_time.sys, "executable", "/bin/false")
    with pytest.raises(LabError, match="compiler did not run"):
        list(compile_cases([]))
