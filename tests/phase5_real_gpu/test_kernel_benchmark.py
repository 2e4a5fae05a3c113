"""The benchmark's cases, its count of work, its peers, its gates and its two stories, on a CPU.

The story for a GPU runs here with tiny cases, in Triton's interpreter where a kernel is its own.
"""

import json
import math
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from labkit.lab import Lab
from phase2_attention_kvcache.model.attention import attention
from phase5_real_gpu import kernel_benchmark
from phase5_real_gpu.kernels.triton_setup import HAS_TRITON, INTERPRETED  # first: it decides how Triton runs
from phase5_real_gpu.measuring import kernel_cases, kernel_measure, kernel_timing
from phase5_real_gpu.measuring.kernel_cases import (
    CPU_DECODE,
    CPU_PREFILL,
    DECODE_B1_4K,
    DECODE_B1_32K,
    DECODE_B64,
    DECODE_FP8,
    DECODE_SKEWED,
    GPT2,
    LLAMA_8B,
    PREFILL_8K,
    PYTHON_GPU,
    TINY,
    WRITE_8K,
    AttentionCase,
    Heads,
    WrongAnswer,
    check_answer,
    decode_case,
    make_inputs,
    reference,
    skewed_lengths,
    tiny,
)
from phase5_real_gpu.measuring.kernel_measure import Bench, floor_of, measure_runner, measure_write
from phase5_real_gpu.measuring.kernel_peers import (
    COMPILED,
    FLASHINFER,
    FLEX,
    FLEX_PAGED,
    GATHER,
    PYTHON,
    SDPA,
    TRITON,
    VECTORISED,
    NotHere,
    Prepared,
    Runner,
    copies_in_memory,
    flex_paged,
    page_lists,
)
from phase5_real_gpu.measuring.machine_limits import MachineLimits, measure_limits
from phase5_real_gpu.measuring.measurements import Measurement
from phase5_real_gpu.story import kernel_on_gpu, ladder_story
from phase5_real_gpu.story.kernel_gates import GATES, put_gates

LIMITS = MachineLimits(
    read_gb_s=1000.0, copy_gb_s=500.0, matmul_tflops={"float32": 10.0, "float16": 100.0, "bfloat16": 100.0},
    launch_us=2.0, device_name="a card",
)  # fmt: skip
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="needs Triton")
interpreted = pytest.mark.skipif(not INTERPRETED, reason="needs Triton's interpreter")

lens_and_news = st.lists(
    st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))), min_size=1, max_size=4
)


# ---------------------------------------------------------------------- cases


@given(st.integers(1, 80), st.integers(0, 5000))
def test_skewed_lengths_add_up_and_keep_their_proportions(requests, more):
    total = 60 * requests + more
    lens = skewed_lengths(requests, total)
    assert len(lens) == requests and sum(lens) == total and min(lens) >= 1
    pattern = (0.1, 0.4, 0.5, 1.0, 0.2)
    parts = [pattern[i % 5] for i in range(requests)]
    for n, part in zip(lens, parts, strict=True):
        assert abs(n - total * part / sum(parts)) <= 1.001  # two ends, each rounded


def test_skewed_lengths_that_cannot_be():
    with pytest.raises(ValueError, match="3 tokens are too few for 5 requests"):
        skewed_lengths(5, 3)


def test_the_skewed_cases_have_the_total_of_the_uniform_ones():
    assert sum(DECODE_SKEWED.context_lens) == sum(DECODE_B64.context_lens) == 64 * 4096
    assert sum(kernel_cases.CPU_SKEWED.context_lens) == sum(CPU_DECODE.context_lens)
    assert max(DECODE_SKEWED.context_lens) == pytest.approx(10 * min(DECODE_SKEWED.context_lens), abs=10)
    assert DECODE_B64.context_lens == (4096,) * 64 and DECODE_B1_32K.context_lens == (32768,)
    assert PYTHON_GPU.work.operations * 512 == DECODE_B64.work.operations
    assert decode_case("x", "x", [3]).is_decode and not PREFILL_8K.is_decode
    assert {c.dtype for c in (DECODE_B64, PREFILL_8K, WRITE_8K)} == {"bfloat16"}
    assert CPU_DECODE.heads == GPT2 and CPU_DECODE.dtype == "float32"


# ---------------------------------------------------------------------- work


@given(lens_and_news, st.sampled_from([(4, 2, 8), (3, 3, 16)]))
def test_operations_and_bytes_by_brute_force(requests, heads):
    heads = Heads(*heads, 16)
    case = AttentionCase(
        "x", "x", tuple(new for _, new in requests), tuple(n for n, _ in requests), heads, "float16"
    )
    operations = 0
    for n, new in requests:
        for i in range(new):
            for _ in range(n - new + i + 1):  # the keys that query i may see
                operations += heads.num_heads * (2 * heads.head_dim + 2 * heads.head_dim)
    assert case.work.operations == operations
    x = make_inputs(case, "cpu")
    used = sum(t.numel() for i in range(len(requests)) for t in x.rows_of(i)) * x.k_cache.element_size()
    pages = sum(math.ceil(n / 16) for n, _ in requests) * x.block_tables.element_size()
    assert case.work.bytes == used + 2 * x.q.nbytes + pages


def test_the_figures_of_the_large_cases():
    assert DECODE_B64.work.bytes == pytest.approx(1.074e9, rel=0.01)  # keys and values, and a little
    assert DECODE_B64.work.intensity == pytest.approx(LLAMA_8B.num_heads / LLAMA_8B.num_kv_heads, rel=0.01)
    assert DECODE_FP8.work.bytes == pytest.approx(DECODE_B64.work.bytes / 2, rel=0.01)
    assert PREFILL_8K.work.operations == 4 * 32 * 128 * 8192 * 8193 // 2
    assert WRITE_8K.work.bytes == 8192 * 8 * 128 * 2 * 2 * 2 + 8 * 8192


@pytest.mark.parametrize(
    ("case", "limit", "seconds"),
    [
        (DECODE_B64, "bandwidth", DECODE_B64.work.bytes / 1e12),
        (PREFILL_8K, "arithmetic", PREFILL_8K.work.operations / 1e14),
        (WRITE_8K, "bandwidth", WRITE_8K.work.bytes / 5e11),  # by the copy's bandwidth
    ],
)
def test_the_slower_limit_is_the_floor(case, limit, seconds):
    assert floor_of(case, LIMITS) == (pytest.approx(seconds), limit)


# ---------------------------------------------------------------------- data and the right answer


def test_blocks_are_scattered_and_the_null_block_is_poison():
    x = make_inputs(replace(CPU_DECODE, context_lens=(100, 33), query_lens=(1, 1)), "cpu")
    used = [*x.block_tables[0, :7].tolist(), *x.block_tables[1, :3].tolist()]
    assert sorted(used) == list(range(1, 11)) and used != sorted(used)
    assert x.k_cache[0].isnan().all() and not x.k_cache[1:].isnan().any()


@settings(max_examples=25)
@given(lens_and_news, st.sampled_from(["float32", "float16", "fp8"]))
def test_the_reference_is_attention_in_float64(requests, kind):
    case = AttentionCase(
        "x", "x", tuple(new for _, new in requests), tuple(n for n, _ in requests), Heads(4, 2, 8, 4),
        "float16" if kind == "fp8" else kind, "float8_e4m3fn" if kind == "fp8" else "",
    )  # fmt: skip
    x = make_inputs(case, "cpu")
    start, expected = 0, []
    for i, (n, new) in enumerate(requests):
        blocks = x.block_tables[i].long()[torch.arange(n) // 4] * 4 + torch.arange(n) % 4
        k, v = (
            c.flatten(0, 1).double()[blocks] * s for c, s in ((x.k_cache, x.k_scale), (x.v_cache, x.v_scale))
        )
        expected.append(attention(x.q[start : start + new].double(), k, v))
        start += new
    assert torch.allclose(reference(x, most_queries=7).double(), torch.cat(expected), atol=1e-5)


def test_a_wrong_answer_is_seen():
    case = replace(tiny(DECODE_B1_32K), context_lens=(4096,), dtype="bfloat16")
    x = make_inputs(case, "cpu")
    expected = reference(x)
    assert check_answer(expected.bfloat16(), expected, "bfloat16") < 0.01
    one_less = reference(
        replace(x, case=replace(case, context_lens=(4095,)))
    )  # a kernel that forgets the last token
    assert float((one_less - expected).norm(dim=-1).max()) > 0
    for wrong in (one_less * 1.05, expected.roll(1, dims=1), expected * math.nan, expected * 0):
        with pytest.raises(WrongAnswer, match="gets no figure"):
            check_answer(wrong, expected, "bfloat16")
    with pytest.raises(WrongAnswer, match="shape"):
        check_answer(expected[:, :2], expected, "bfloat16")


# ---------------------------------------------------------------------- peers

UNEQUAL = replace(CPU_DECODE, context_lens=(33, 16, 64, 1), query_lens=(1,) * 4)
EQUAL = replace(CPU_DECODE, context_lens=(64,) * 3, query_lens=(1,) * 3, heads=Heads(8, 2, 32))
PROMPT = replace(CPU_PREFILL, context_lens=(70,), query_lens=(70,), heads=Heads(8, 2, 32))
MIXED = replace(CPU_PREFILL, context_lens=(70, 40, 5), query_lens=(20, 1, 5))


def answers(runner, case, device="cpu"):
    x = make_inputs(case, device)
    expected = reference(x)
    return max(check_answer(call(), expected, case.dtype) for call in runner.prepare([x]).calls)


@pytest.mark.parametrize(
    ("runner", "case"),
    [
        *((r, UNEQUAL) for r in (COMPILED, GATHER, VECTORISED, PYTHON)),
        *((r, EQUAL) for r in (COMPILED, GATHER, VECTORISED, PYTHON, SDPA, FLEX)),
        *((r, PROMPT) for r in (GATHER, VECTORISED, SDPA, FLEX)),
        *((r, MIXED) for r in (COMPILED, GATHER, VECTORISED)),
        (replace(FLEX_PAGED, prepare=lambda layers: flex_paged(layers, page_size=16)), EQUAL),
    ],
    ids=lambda value: getattr(value, "title", None),
)
@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_peers_give_the_reference_result(runner, case):
    assert answers(runner, case) < 1e-5


@needs_triton
@pytest.mark.parametrize(
    "case", [DECODE_B64, DECODE_B1_32K, DECODE_B1_4K, DECODE_SKEWED, DECODE_FP8, PREFILL_8K]
)
def test_every_case_is_right_when_tiny(case):
    assert answers(TRITON, tiny(case), "cpu" if INTERPRETED else "cuda") < 2e-3


def test_unequal_lengths_are_refused_by_those_that_cannot_have_them():
    for runner in (SDPA, FLEX, FLEX_PAGED):
        with pytest.raises(NotHere, match="equal lengths"):
            answers(runner, UNEQUAL)
    with pytest.raises(NotHere, match="whole pages"):
        answers(FLEX_PAGED, EQUAL)


def test_flashinfers_form_of_the_tables():
    x = make_inputs(UNEQUAL, "cpu")
    starts, pages, last = page_lists(x)
    assert starts.tolist() == [0, 3, 4, 8, 9] and last.tolist() == [1, 16, 16, 1]
    assert all(t.dtype == torch.int32 for t in (starts, pages, last))
    k, _ = x.rows_of(2)
    assert torch.equal(x.k_cache[pages[4:8].long()].flatten(0, 1), k)


def test_flashinfer_is_called_as_it_wants_to_be(monkeypatch):
    """A stand-in with FlashInfer's signatures, which computes with torch what it was told to."""
    calls = []

    class Wrapper:
        def __init__(self, room, layout, use_tensor_cores=False, backend="auto"):
            assert room.dtype == torch.uint8 and layout == "NHD" and backend == "fa2"

        def plan(self, starts, pages, last, heads, kv_heads, dim, size, *, q_data_type, kv_data_type):
            self.tables = (starts, pages, last, heads, kv_heads, dim, size)
            calls.append("plan")

        def run(self, q, kv, k_scale=None, v_scale=None):
            starts, pages, last, heads, kv_heads, dim, size = self.tables
            out = torch.empty_like(q)
            for i in range(len(last)):
                blocks = pages[starts[i] : starts[i + 1]].long()
                n = (len(blocks) - 1) * size + int(last[i])
                k, v = (c[blocks].flatten(0, 1)[:n] for c in kv)
                assert k.shape == (n, kv_heads, dim) and q.shape[1] == heads
                out[i] = attention(q[i : i + 1], k, v)[0]
            calls.append("run")
            return out

    class Prefill(Wrapper):
        def plan(self, starts_q, starts, pages, last, heads, kv_heads, dim, size, *, causal, **kinds):
            assert causal and starts_q.tolist() == [0, 70]
            super().plan(starts, pages, last, heads, kv_heads, dim, size, **kinds)

        def run(self, q, kv, **scales):
            _, pages, *_ = self.tables
            return attention(q, *(c[pages.long()].flatten(0, 1)[: len(q)] for c in kv))

    stand_in = SimpleNamespace(
        BatchDecodeWithPagedKVCacheWrapper=Wrapper, BatchPrefillWithPagedKVCacheWrapper=Prefill
    )
    monkeypatch.setitem(sys.modules, "flashinfer", stand_in)
    assert answers(FLASHINFER, UNEQUAL) < 1e-5
    assert answers(FLASHINFER, PROMPT) < 1e-5
    result = measure_runner(
        FLASHINFER, [make_inputs(EQUAL, "cpu")], reference(make_inputs(EQUAL, "cpu")), LIMITS, seconds=0
    )
    assert (
        result.measurement.name == "flashinfer-cpu-decode-b16-512"
        and result.measurement.details["plan_us"] > 0
    )
    assert calls.count("plan") > 2


def test_flashinfer_is_missed_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    with pytest.raises(NotHere, match=r"pip install flashinfer-python==0\.6\.4"):
        answers(FLASHINFER, EQUAL)


# ---------------------------------------------------------------------- measuring


@pytest.fixture
def lab() -> Lab:
    args = SimpleNamespace(predict=False, quick=True, seed=0, device="cpu", figures=None, json=None)
    return Lab(Path(kernel_benchmark.__file__), args, Console(width=100))


def test_timing_counts_calls_and_orders_its_figures():
    calls = []
    timing = kernel_timing.time_call(lambda: calls.append(1), "cpu", seconds=0, least=7)
    assert len(calls) == 10 and timing.runs == 7  # and three that do not count
    assert 0 < timing.low_us <= timing.median_us <= timing.high_us
    half = timing.divided_by(2)
    assert half.median_us == timing.median_us / 2 and half.runs == 7
    timing = kernel_timing.time_in_a_row([lambda: calls.append(1)] * 3, "cpu", repeats=4)
    assert len(calls) == 10 + 3 * 5 and timing.runs == 4


def test_layers_are_the_same_numbers_in_other_memory():
    x = make_inputs(EQUAL, "cpu")
    layers = copies_in_memory(x, 3)
    assert len({y.k_cache.data_ptr() for y in layers}) == len({y.v_cache.data_ptr() for y in layers}) == 3
    assert all(torch.equal(y.k_cache[1:], x.k_cache[1:]) for y in layers)


def test_a_wrong_kernel_gets_no_figure_and_the_others_go_on():
    def wrong(layers):
        return Prepared([lambda x=x: torch.zeros_like(x.q) for x in layers])

    def broken(layers):
        raise RuntimeError("no kernel image is available\nand a long trace")

    said = []
    bench = Bench(LIMITS, "cpu", seconds=0, tell=said.append)
    bench.run_case(
        EQUAL, [Runner("wrong-", "a wrong one", wrong), Runner("broken-", "a broken one", broken), VECTORISED]
    )
    assert list(bench.results) == ["vectorised-cpu-decode-b16-512"]
    assert list(bench.left_out) == [f"a wrong one, {EQUAL.title}", f"a broken one, {EQUAL.title}"]
    assert said[0].endswith("wrong by 100.0% of a head's output, so it gets no figure")
    assert said[1].endswith("failed: RuntimeError: no kernel image is available")


def test_what_is_slow_does_not_begin_late():
    bench = Bench(LIMITS, "cpu", seconds=0, until=0)
    bench.run_case(EQUAL, [VECTORISED], slow=True)
    bench.run_case(EQUAL, [GATHER])
    assert list(bench.results) == ["gather-cpu-decode-b16-512"] and "time is up" in str(bench.left_out)


def test_writing_is_checked_slot_by_slot():
    case = replace(WRITE_8K, tokens=50, heads=TINY, dtype="float32")

    def right(k, v, k_cache, v_cache, slots):
        k_cache.flatten(0, 1)[slots], v_cache.flatten(0, 1)[slots] = k, v

    def one_too_many(k, v, k_cache, v_cache, slots):
        right(k, v, k_cache, v_cache, slots)
        k_cache[0, 0] = 0

    assert measure_write(right, "", "x", case, LIMITS, "cpu", seconds=0).measurement.name == "write-kv-8k"
    for wrong in (one_too_many, lambda k, v, k_cache, v_cache, slots: right(v, k, k_cache, v_cache, slots)):
        with pytest.raises(WrongAnswer):
            measure_write(wrong, "", "x", case, LIMITS, "cpu", seconds=0)


# ---------------------------------------------------------------------- gates


def a_measurement(name, value, floor=None, **details):
    return Measurement(name, value, "us", "lower", floor, "bandwidth", details)


FAST = [
    a_measurement("decode-b64-4k", 250.0, 230.0), a_measurement("flashinfer-decode-b64-4k", 255.0),
    a_measurement("decode-b1-32k", 50.0, 36.0), a_measurement("decode-b1-4k-graph", 12.0),
    a_measurement("flashinfer-decode-b1-4k-graph", 11.0), a_measurement("decode-skewed", 260.0),
    a_measurement("decode-fp8-b64-4k", 140.0), a_measurement("prefill-8k", 1300.0, tflop_s=400.0),
    a_measurement("write-kv-8k", 18.0, 16.0),
]  # fmt: skip


def test_a_fast_card_passes_all_gates_and_reaches_all_goals(lab):
    put_gates(lab, {m.name: m for m in FAST}, 700.0)
    assert len(lab.predictions) == len(GATES) and all(p.holds and p.kind == "timing" for p in lab.predictions)
    assert all(mark["goal_reached"] for mark in lab.results["gates"])


@pytest.mark.parametrize("slow", range(len(GATES)))
def test_each_gate_is_failed_by_what_is_too_slow(lab, slow):
    """Twice the time (half the rate) of what is held against a fixed thing fails every gate; half the time passes."""
    gate = GATES[slow]
    names = {
        "decode-b64-4k-bandwidth": "decode-b64-4k", "decode-b64-4k-flashinfer": "decode-b64-4k",
        "decode-b1-32k-bandwidth": "decode-b1-32k", "decode-b1-4k-graph-flashinfer": "decode-b1-4k-graph",
        "skewed-against-uniform": "decode-skewed", "fp8-against-bf16": "decode-fp8-b64-4k",
        "prefill-8k-rate": "prefill-8k", "write-kv-8k-bandwidth": "write-kv-8k",
    }  # fmt: skip
    found = {m.name: m for m in FAST}
    m = found[names[gate.claim]]
    details = {k: v / 2 for k, v in m.details.items()}
    found[m.name] = replace(m, value=2 * m.value, details=details)
    put_gates(lab, found, 700.0)
    assert not next(p for p in lab.predictions if p.claim == gate.claim).holds


def test_gates_without_figures(lab, capsys):
    put_gates(lab, {m.name: m for m in FAST[:1]}, 100.0)
    verdicts = {p.claim: p.verdict for p in lab.predictions}
    assert verdicts.pop("decode-b64-4k-bandwidth") == "reproduced"
    assert verdicts == dict.fromkeys(
        ("decode-b64-4k-flashinfer", "decode-b1-4k-graph-flashinfer"), "needs a download"
    )
    out = capsys.readouterr().out
    assert "no figure on this card" in out and "TFLOP" not in out  # made for cards that multiply like an H100


# ---------------------------------------------------------------------- ceilings and stories


def test_limits_of_this_machine():
    limits = measure_limits("cpu", ("float32", "bfloat16"), quick=True)
    names = {m.name: (m.unit, m.better) for m in limits.measurements()}
    assert names == {
        "read-bandwidth": ("GB/s", "higher"), "copy-bandwidth": ("GB/s", "higher"),
        "matmul-float32": ("TFLOP/s", "higher"), "matmul-bfloat16": ("TFLOP/s", "higher"), "launch": ("us", "lower"),
    }  # fmt: skip
    assert all(m.value > 0 for m in limits.measurements())
    assert limits.ceilings("float32").bandwidth == limits.read_gb_s * 1e9
    assert limits.h2d_gb_s is None and limits.device_name
    with pytest.raises(ValueError, match="unknown dtype 'int3'"):
        measure_limits("cpu", ("int3",), quick=True)


def test_script_on_a_cpu(run_script, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    report = run_script(kernel_benchmark, "--device", "cpu", "--quick", figures=["kernel_benchmark"])
    assert report["claims"]["triton-vs-python"]["verdict"] == "needs a GPU"
    assert all(p["kind"] == "timing" for p in report["predictions"] if p["verdict"] != "needs a GPU")
    found = {m["name"]: m for m in report["results"]["measurements"]}
    wanted = {"cpu-decode-b16-512", "gather-cpu-decode-b16-512", "sdpa-cpu-decode-b16-512", "cpu-decode-skewed",
              "vectorised-cpu-decode-b16-512", "cpu-decode-b1-8k", "cpu-prefill-1k", "cpu-decode-b1-1k",
              "python-cpu-decode-b1-1k", "read-bandwidth", "copy-bandwidth", "matmul-float32", "launch"}  # fmt: skip
    assert wanted <= set(found)
    assert all(found[n]["unit"] == "us" and found[n]["floor"] > 0 for n in wanted if "cpu-" in n)
    assert found["cpu-prefill-1k"]["limit"] == "arithmetic"
    assert not report["results"]["left_out"] and report["results"]["limits"]["read_gb_s"] > 0


@interpreted
@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_the_gpu_story_in_the_interpreter(lab, monkeypatch, capsys):
    """Every line of it but the launches: tiny cases, calls in place of a recorded graph, a CPU's clock."""
    for name, case in vars(kernel_cases).items():
        if isinstance(case, AttentionCase):
            lens = tuple(min(n, 20) for n in tiny(case).context_lens[:2])
            news = (1,) * len(lens) if case.is_decode else lens
            small = replace(tiny(case), context_lens=lens, query_lens=news)
            for module in (kernel_on_gpu, ladder_story):
                monkeypatch.setattr(module, name, small, raising=False)
    monkeypatch.setattr(kernel_timing, "cold_cache", lambda device: SimpleNamespace(clear=lambda: None))
    monkeypatch.setattr(kernel_measure, "time_in_a_row", partial(kernel_timing.time_in_a_row, repeats=1))
    monkeypatch.setattr(kernel_on_gpu, "WRITE_8K", replace(WRITE_8K, tokens=20, heads=TINY))
    monkeypatch.setattr(kernel_on_gpu, "LAYERS", 2)
    monkeypatch.setattr(kernel_measure, "as_cuda_graph", lambda calls: lambda: [call() for call in calls])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    bench = Bench(LIMITS, "cpu", seconds=0, least=1)
    kernel_on_gpu.on_gpu(lab, bench, "float16")
    names = set(bench.results)
    rungs = len(kernel_on_gpu.ladder_runners())
    for case in ("b64-4k", "b1-32k"):
        assert sum(n.startswith("ladder-") and n.endswith(f"-{case}") for n in names) == rungs >= 6
    own = {"decode-b64-4k", "decode-skewed", "decode-fp8-b64-4k", "decode-b1-32k", "decode-b1-4k", "decode-b1-4k-graph",
           "prefill-8k", "write-kv-8k", "decode-b1-512"}  # fmt: skip
    assert own <= names
    assert {
        f"sdpa-{n}" for n in own - {"decode-skewed", "decode-fp8-b64-4k", "write-kv-8k", "decode-b1-512"}
    } <= names
    assert {"vectorised-decode-b64-4k", "python-decode-b1-512", "torch-write-kv-8k", "flex-decode-b64-4k",
            "flex-prefill-8k", "vectorised-decode-b1-512"} <= names  # fmt: skip
    assert all("FlashInfer" in what or "paged" in what for what in bench.left_out), bench.left_out
    assert {"triton-vs-python", "fp8-against-bf16"} <= {p.claim for p in lab.predictions}
    assert {f.name for f in lab.figures} == {"kernel_benchmark.png", "decode_ladder_measured.png"}
    json.dumps([vars(m) for m in bench.measurements()])
    shown = capsys.readouterr().out
    assert "on an RTX 4090" in shown and "90%" in shown  # vLLM's published figure stands beside ours
