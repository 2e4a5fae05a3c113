"""The kernel benchmark: its count of work, its right answers, its peers, its gates; saving and going on; both stories.

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
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from labkit.errors import LabError
from labkit.lab import Lab
from phase2_attention_kvcache.model.attention import attention
from phase5_real_gpu import kernel_benchmark
from phase5_real_gpu.kernels.triton_setup import INTERPRETED  # first: it decides how Triton runs
from phase5_real_gpu.measuring import kernel_cases as cases
from phase5_real_gpu.measuring import kernel_measure, kernel_peers, timing
from phase5_real_gpu.measuring.kernel_measure import floor_of, measure_write, run_case
from phase5_real_gpu.measuring.kernel_peers import COMPILED, FLASHINFER, GATHER, PYTHON, SDPA, Runner
from phase5_real_gpu.measuring.machine_limits import open_bench
from phase5_real_gpu.measuring.measurements import Bench, Limits, Measurement, NotHere
from phase5_real_gpu.story import kernel_story
from phase5_real_gpu.story.kernel_gates import GATES, put_gates

LIMITS = Limits(
    1000.0, 500.0, {"float32": 10.0, "float16": 100.0, "bfloat16": 100.0}, 2.0, device_name="a card"
)
SMALL_HEADS = cases.Heads(4, 1, 32)  # the same 4 query heads a KV head as Llama-3 8B

lens_and_news = st.lists(
    st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))), min_size=1, max_size=4
)


def tiny(case: cases.AttentionCase, most: int = 10**6) -> cases.AttentionCase:
    """The same case with fewer and shorter contexts and float16: small enough for Triton's interpreter."""
    lens = tuple(min(most, max(1, c // 64)) for c in case.context_lens[: 2 if most < 100 else 5])
    news = (1,) * len(lens) if case.is_decode else lens
    return replace(case, query_lens=news, context_lens=lens, heads=SMALL_HEADS, dtype="float16")


def a_bench(**more) -> Bench:
    return Bench(LIMITS, "cpu", "float32", seconds=0, **more)


# ---------------------------------------------------------------------- work, data and the right answer


@given(lens_and_news, st.sampled_from([(4, 2, 8), (3, 3, 16)]))
def test_operations_and_bytes_by_brute_force(requests, heads):
    heads = cases.Heads(*heads, 16)
    lens, news = (tuple(r[i] for r in requests) for i in (0, 1))
    case = cases.AttentionCase("x", "x", news, lens, heads, "float16")
    pairs = sum(n - new + i + 1 for n, new in requests for i in range(new))  # keys that query i may see
    assert case.work.operations == 4 * heads.num_heads * heads.head_dim * pairs
    x = cases.make_inputs(case, "cpu")
    used = sum(t.numel() for i in range(len(requests)) for t in x.rows_of(i)) * x.k_cache.element_size()
    pages = sum(math.ceil(n / 16) for n in lens) * x.block_tables.element_size()
    assert case.work.bytes == used + 2 * x.q.nbytes + pages


def test_the_slower_limit_is_the_floor():
    decode, prefill, write = cases.DECODE_B64, cases.PREFILL_8K, cases.WRITE_8K
    assert floor_of(decode, LIMITS) == (pytest.approx(decode.work.bytes / 1e12), "bandwidth")
    assert floor_of(prefill, LIMITS) == (pytest.approx(prefill.work.operations / 1e14), "arithmetic")
    assert floor_of(write, LIMITS)[0] == pytest.approx(write.work.bytes / 5e11)  # the copy's
    assert decode.work.bytes == pytest.approx(1.074e9, rel=0.01)  # keys and values, and a little
    assert sum(cases.DECODE_SKEWED.context_lens) == sum(decode.context_lens)  # the same, dealt out unequally
    assert cases.DECODE_FP8.work.bytes == pytest.approx(decode.work.bytes / 2, rel=0.01)
    assert write.work.bytes == 8192 * 8 * 128 * 2 * 2 * 2 + 8 * 8192


def test_a_wrong_answer_is_seen():
    case = replace(tiny(cases.DECODE_B1_32K), context_lens=(4096,), dtype="bfloat16")
    x = cases.make_inputs(case, "cpu")
    assert x.k_cache[0].isnan().all()  # the null block
    expected = cases.reference(x)
    assert cases.check_answer(expected.bfloat16(), expected, "bfloat16") < 0.01
    one_less = cases.reference(replace(x, case=replace(case, context_lens=(4095,))))  # a token forgotten
    wrong = (one_less * 1.05, expected.roll(1, dims=1), expected * math.nan, expected * 0, expected[:, :2])
    for out in wrong:
        with pytest.raises(cases.WrongAnswer, match=r"gets no figure|shape"):
            cases.check_answer(out, expected, "bfloat16")


# ---------------------------------------------------------------------- peers

UNEQUAL = replace(cases.CPU_DECODE, context_lens=(33, 16, 64, 1), query_lens=(1,) * 4)
EQUAL = replace(cases.CPU_DECODE, context_lens=(64,) * 3, query_lens=(1,) * 3, heads=cases.Heads(8, 2, 32))
PROMPT = replace(cases.CPU_PREFILL, context_lens=(70,), query_lens=(70,), heads=cases.Heads(8, 2, 32))
MIXED = replace(cases.CPU_PREFILL, context_lens=(70, 40, 5), query_lens=(20, 1, 5))


def answers(runner, case):
    x = cases.make_inputs(case, "cpu")
    expected = cases.reference(x, most_queries=7)
    return max(cases.check_answer(call(), expected, case.dtype) for call in runner.prepare([x]))


@pytest.mark.parametrize(
    ("runner", "case"),
    [
        *((r, UNEQUAL) for r in (COMPILED, GATHER, PYTHON)),
        *((r, EQUAL) for r in (COMPILED, SDPA)),
        *((r, PROMPT) for r in (GATHER, SDPA)),
        *((r, MIXED) for r in (COMPILED, GATHER)),
    ],
    ids=lambda value: getattr(value, "title", None),
)
def test_peers_give_the_reference_result(runner, case):
    assert answers(runner, case) < 1e-5


def test_what_a_peer_cannot_have_is_refused_in_one_line(monkeypatch):
    with pytest.raises(NotHere, match="equal lengths"):
        answers(SDPA, UNEQUAL)
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    with pytest.raises(NotHere, match=r"pip install flashinfer-python==0\.6\.4"):
        answers(FLASHINFER, EQUAL)


@pytest.mark.parametrize(("card", "picked"), [((8, 9), "fa2"), ((9, 0), "auto"), ((10, 0), "fa2")])
def test_flashinfer_is_called_as_it_wants_to_be(monkeypatch, card, picked):
    """A stand-in with FlashInfer's signatures, which computes with torch from the tables that it was given. fa2 by name would be
    a handicap on Hopper."""
    monkeypatch.setattr(kernel_peers, "capability", lambda: card)

    class Wrapper:
        def __init__(self, room, layout, use_tensor_cores=False, backend="auto"):
            assert room.dtype == torch.uint8 and layout == "NHD" and backend == picked

        def plan(self, starts, pages, last, heads, kv_heads, dim, size, *, q_data_type, kv_data_type):
            self.tables = (starts, pages, last, size)

        def run(self, q, kv):
            starts, pages, last, size = self.tables
            out = torch.empty_like(q)
            for i in range(len(last)):
                blocks = pages[starts[i] : starts[i + 1]].long()
                n = (len(blocks) - 1) * size + int(last[i])
                out[i] = attention(q[i : i + 1], *(c[blocks].flatten(0, 1)[:n] for c in kv))[0]
            return out

    module = SimpleNamespace(BatchDecodeWithPagedKVCacheWrapper=Wrapper)
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    assert answers(FLASHINFER, UNEQUAL) < 1e-5


# ---------------------------------------------------------------------- measuring


def test_a_wrong_kernel_gets_no_figure_and_the_others_go_on():
    def wrong(layers):
        return [lambda x=x: torch.zeros_like(x.q) for x in layers]

    def broken(layers):
        raise RuntimeError("no kernel image is available\nand a long trace")

    said, saved = [], []
    bench = a_bench(tell=said.append, save=lambda bench: saved.append(list(bench.found)))
    runners = [Runner("wrong-", "a wrong one", wrong), Runner("broken-", "a broken one", broken), GATHER]
    run_case(bench, EQUAL, runners)
    assert list(bench.found) == ["gather-cpu-decode-b16-512"] == saved[-1] and len(saved) == 3
    d = bench.found["gather-cpu-decode-b16-512"].details
    assert d["lowest"] <= d["p10"] <= d["p90"] <= d["highest"] and d["error"] < 1e-5
    assert list(bench.left_out) == [f"a wrong one, {EQUAL.title}", f"a broken one, {EQUAL.title}"]
    assert said[0].endswith("wrong by 100.0% of a head's output, so it gets no figure")
    assert said[1].endswith("RuntimeError: no kernel image is available")
    # What is there already is not measured again; what is slow does not begin late.
    run_case(bench, EQUAL, [Runner("gather-", "never called", broken)])
    bench.until = 0
    run_case(bench, EQUAL, [PYTHON], slow=True)
    assert "never called" not in str(bench.left_out) and "no time left" in str(bench.left_out)


def test_writing_is_checked_slot_by_slot():
    case = replace(cases.WRITE_8K, tokens=50, heads=SMALL_HEADS, dtype="float32")

    def right(k, v, k_cache, v_cache, slots):
        k_cache.flatten(0, 1)[slots], v_cache.flatten(0, 1)[slots] = k, v

    def one_too_many(k, v, k_cache, v_cache, slots):
        right(k, v, k_cache, v_cache, slots)
        k_cache[0, 0] = 0

    assert measure_write(a_bench(), right, "", "x", case).name == "write-kv-8k"
    for wrong in (one_too_many, lambda k, v, k_cache, v_cache, slots: right(v, k, k_cache, v_cache, slots)):
        with pytest.raises(cases.WrongAnswer):
            measure_write(a_bench(), wrong, "", "x", case)


# ---------------------------------------------------------------------- gates


@pytest.fixture
def lab() -> Lab:
    args = SimpleNamespace(predict=False, quick=True, seed=0, device="cpu", figures=None, json=None)
    return Lab(Path(kernel_benchmark.__file__), args, Console(width=100))


MEASURED = {  # microseconds, and the floor
    "decode-b64-4k": (250.0, 230.0), "flashinfer-decode-b64-4k": (255.0, None), "decode-b1-32k-graph": (50.0, 36.0),
    "decode-b1-4k-graph": (12.0, None), "flashinfer-decode-b1-4k-graph": (11.0, None), "decode-skewed": (260.0, None),
    "decode-fp8-b64-4k": (140.0, None), "prefill-8k": (1300.0, 700.0), "write-kv-8k": (18.0, 16.0),
}  # fmt: skip
FAST = {
    name: Measurement(name, us, "us", "lower", floor, "bandwidth") for name, (us, floor) in MEASURED.items()
}
JUDGED = ["decode-b64-4k", *(name for name in FAST if "flashinfer" not in name)]


def test_a_fast_card_passes_all_gates_and_a_slow_kernel_fails_its_own(lab):
    put_gates(lab, FAST)
    assert len(lab.predictions) == len(GATES) and all(p.holds and p.kind == "timing" for p in lab.predictions)
    for gate, name in zip(GATES, JUDGED, strict=True):
        put_gates(lab, FAST | {name: replace(FAST[name], value=2 * FAST[name].value)})
        assert not [p for p in lab.predictions if p.claim == gate.claim][-1].holds


def test_gates_without_figures(lab):
    put_gates(lab, {"decode-b64-4k": FAST["decode-b64-4k"]})
    missing = dict.fromkeys(("decode-b64-4k-flashinfer", "decode-b1-4k-graph-flashinfer"), "needs a download")
    assert {p.claim: p.verdict for p in lab.predictions} == missing | {
        "decode-b64-4k-bandwidth": "reproduced"
    }


# ---------------------------------------------------------------------- the script and its stories


def test_script_on_a_cpu(run_script, tmp_path):
    argv = ["--device", "cpu", "--quick"]
    report = run_script(kernel_benchmark, *argv, figures=["kernel_benchmark"])
    assert report["claims"]["triton-vs-python"]["verdict"] == "needs a GPU"
    found = {m["name"]: m for m in report["results"]["measurements"]}
    wanted = {"cpu-decode-b16-512", "gather-cpu-decode-b16-512", "sdpa-cpu-decode-b16-512",
              "cpu-decode-b1-8k", "sdpa-cpu-decode-b1-8k", "cpu-prefill-1k", "cpu-decode-b1-1k",
              "python-cpu-decode-b1-1k", "read-bandwidth", "copy-bandwidth", "matmul-float32", "launch"}  # fmt: skip
    assert wanted == set(found) and not report["results"]["left_out"]
    assert all(found[n]["unit"] == "us" and found[n]["floor"] > 0 for n in wanted if "cpu-" in n)

    # Cut short in the middle, it goes on where it was: figures that are there stay, the missing one is measured.
    kept = report["results"]["measurements"]
    report["results"]["measurements"] = [m for m in kept if m["name"] != "cpu-prefill-1k"]
    (tmp_path / "report.json").write_text(json.dumps(report))
    again = {m["name"]: m for m in run_script(kernel_benchmark, *argv, "--resume")["results"]["measurements"]}
    assert set(again) == wanted and again["cpu-prefill-1k"]["value"] != found["cpu-prefill-1k"]["value"]
    assert all(again[name] == found[name] for name in wanted - {"cpu-prefill-1k"})

    report["results"]["limits"]["device_name"] = "other"
    for text, says in (("{", "not JSON"), (json.dumps(report), r"measured on another device \(other\)")):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(LabError, match=says):
            open_bench("cpu", "float32", True, 0, str(tmp_path / "x.json"))


@pytest.mark.skipif(not INTERPRETED, reason="needs Triton's interpreter")
def test_the_gpu_story_in_the_interpreter(lab, monkeypatch):
    """Every line of it but the launches: tiny cases, calls in place of a recorded graph, a CPU's clock."""
    for name, case in list(vars(cases).items()):
        if isinstance(case, cases.AttentionCase):
            monkeypatch.setattr(cases, name, tiny(case, most=20))
    monkeypatch.setattr(cases, "WRITE_8K", replace(cases.WRITE_8K, tokens=20, heads=SMALL_HEADS))
    once = partial(timing.time_call, least=1)
    monkeypatch.setattr(kernel_measure, "time_call", once)
    monkeypatch.setattr(kernel_measure, "time_in_graph", lambda call, seconds: once(call, "cpu", seconds))
    monkeypatch.setattr(kernel_story, "LAYERS", 2)
    small = [(replace(case, inputs=64, outputs=32), title) for case, title in kernel_story.GEMMS]
    monkeypatch.setattr(kernel_story, "GEMMS", small)
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    bench = Bench(LIMITS, "cpu", "float16", seconds=0)
    kernel_story.on_gpu(lab, bench)
    names = set(bench.found)
    for case in ("b64-4k", "b1-32k-graph"):
        assert sum(n.startswith("ladder-") and n.endswith(f"-{case}") for n in names) == 7
    sdpa = {"decode-b64-4k", "decode-b1-32k-graph", "decode-b1-4k-graph", "prefill-8k"}
    others = {"decode-skewed", "decode-one-long-graph", "decode-fp8-b64-4k", "write-kv-8k", "decode-b1-512"}
    peers = {"python-decode-b1-512", "torch-write-kv-8k", "gemm-int4-b1", "torch-gemm-b1"}
    assert sdpa | others | peers | {f"sdpa-{n}" for n in sdpa} <= names
    assert all("FlashInfer" in what for what in bench.left_out), bench.left_out
    assert {"triton-vs-python", "fp8-against-bf16"} <= {p.claim for p in lab.predictions}
    assert [f.name for f in lab.figures] == ["kernel_benchmark.png"]
