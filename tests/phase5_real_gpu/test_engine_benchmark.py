"""The engine benchmark: its floors, its workloads, its peers, and what it says when memory runs out."""

import importlib.util
import time
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from transformers import AutoModelForCausalLM, LlamaConfig

from labkit.errors import LabError
from labkit.lab import Lab
from phase2_attention_kvcache.model import NoCache, SamplingParams, Transformer
from phase3_paged_attention.paging import BlockManager
from phase4_scheduler.engine import EngineConfig, LLMEngine, Request
from phase5_real_gpu import engine_benchmark
from phase5_real_gpu.measuring import engine_peers, engine_runs
from phase5_real_gpu.measuring.engine_bench import Bench, out_of_memory
from phase5_real_gpu.measuring.engine_cases import (
    MODEL_NAMES,
    BenchModel,
    Plan,
    bench_model,
    blocks_of,
    card_ceiling,
    decode_floor,
    default_dtype,
    equal_workload,
    mixed_workload,
    plan_for,
    run_floor,
    step_work,
    ttft_floor,
)
from phase5_real_gpu.measuring.engine_peers import (
    StaticBatches,
    continuous_batches,
    hf_config,
    to_transformers,
)
from phase5_real_gpu.measuring.machine_limits import Floor, MachineLimits
from phase5_real_gpu.story import engine_story

LIMITS = MachineLimits(100.0, 90.0, {"bfloat16": 10.0, "float16": 10.0, "float32": 5.0}, 5.0, "a machine")
SHAPE = dict(name="small", vocab_size=211, d_model=48, num_layers=2, num_heads=4, head_dim=12, max_context=96)
LLAMA = replace(bench_model("tinyllama").config, **SHAPE, num_kv_heads=2, d_ff=64)
GPT2 = replace(bench_model("tales").config, **SHAPE, num_kv_heads=4, d_ff=192)
SMALL = Plan(
    models=("small",), isls=(4, 20, 500), batches=(1, 3, 5), peer_batches=(3,), isl=6, osl=5, mixed=(4, 2, 9),
    repeats=1, step_tokens=128, peer_seconds=60.0,
)  # fmt: skip


def small_bench(**changes) -> Bench:
    return Bench("cpu", "float32", SMALL, LIMITS, **changes)


def greedy(model, workload):
    engine = LLMEngine(model, None, EngineConfig(max_num_seqs=8, num_blocks=200))
    params = [SamplingParams(temperature=0, max_tokens=osl, ignore_eos=True) for _, osl in workload]
    return [o.token_ids for o in engine.generate([p for p, _ in workload], params)]


# ---------------------------------------------------------------------- cases and floors


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_a_step_reads_every_matrix_once_but_not_the_token_table(name):
    config = bench_model(name).config
    with torch.device("meta"):
        model = Transformer(config)
    tables = config.vocab_size * config.d_model * (not config.tied)
    if config.family == "gpt2":
        tables += config.max_context * config.d_model
    matrices = sum(p.numel() for p in model.parameters() if p.ndim == 2) - tables
    kv = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    assert step_work(config, 1, 1, 0, 2).bytes == 2 * (matrices + kv)
    assert step_work(config, 7, 1, 99, 2).bytes == 2 * (matrices + 7 * 100 * kv)
    assert step_work(config, 7, 1, 99, 2).operations == 7 * step_work(config, 1, 1, 99, 2).operations


def test_unknown_model():
    with pytest.raises(LabError, match=r"unknown model 'gpt5'.*tinyllama"):
        bench_model("gpt5")


def test_the_floor_of_ttft_is_flat_and_then_in_proportion():
    config = bench_model("tinyllama").config
    floors = {isl: ttft_floor(config, isl, LIMITS, "bfloat16") for isl in (10, 20, 1000, 2000, 4000)}
    assert floors[10].limit == "bandwidth" and floors[4000].limit == "arithmetic"
    assert floors[20].seconds == pytest.approx(floors[10].seconds, rel=0.01)
    assert 1.95 < floors[2000].seconds / floors[1000].seconds < 2.2
    # 2 operations a parameter and token, and a little for attention
    assert floors[1000].seconds == pytest.approx(2 * 1.0e9 * 1000 / 10e12, rel=0.1)


def test_the_floor_of_a_run_is_its_prefill_and_its_steps():
    config = bench_model("gpt2").config
    prefill = 8 * ttft_floor(config, 1024, LIMITS, "bfloat16").seconds
    step = decode_floor(config, 8, 1024 + 16, LIMITS, "bfloat16").seconds
    assert run_floor(config, 8, 1024, 33, LIMITS, "bfloat16").seconds == pytest.approx(prefill + 32 * step)
    assert step > decode_floor(config, 1, 1024 + 16, LIMITS, "bfloat16").seconds


def test_what_a_t4_can_do_for_one_user_of_tinyllama():
    """Against transformers' count of the parameters, and a division."""
    config = LlamaConfig(
        vocab_size=32000, hidden_size=2048, num_hidden_layers=22, num_attention_heads=32,
        num_key_value_heads=4, intermediate_size=5632,
    )  # fmt: skip
    with torch.device("meta"):
        parameters = AutoModelForCausalLM.from_config(config).num_parameters()
    ceiling = card_ceiling("t4", "tinyllama-1.1b")
    assert ceiling.weight_bytes == 2 * parameters
    assert ceiling.rule_tokens_s == pytest.approx(320e9 / (2 * parameters))
    assert ceiling.tokens_s == pytest.approx(320e9 / (2 * (parameters - 32000 * 2048)), rel=1e-3)
    assert ceiling.tokens_s < 180 < 1.3 * ceiling.tokens_s


def test_an_old_card_computes_in_float16(monkeypatch):
    assert default_dtype("cpu") == "bfloat16"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    assert default_dtype("cuda") == "float16"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert default_dtype("cuda") == "bfloat16"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("quick", [False, True])
def test_every_plan_can_be_run(device, quick):
    plan = plan_for(device, quick)
    assert set(plan.peer_batches) <= set(plan.batches) and 1 in plan.batches
    for name in plan.models:
        bm = bench_model(name)
        for ending, workload in engine_runs.workloads_of(bm, plan, 0).items():
            assert len(workload) == int(ending.removeprefix("mixed").removeprefix("b"))
            assert all(len(p) + osl <= bm.config.max_context for p, osl in workload)
    if device == "cuda" and not quick:
        assert plan.isls == (10, 100, 500, 1000, 4000) and plan.batches == (1, 8, 32, 64, 256)


@given(
    st.integers(1, 20), st.integers(1, 30), st.integers(0, 40), st.integers(1, 5000), st.integers(0, 2**40)
)
@settings(max_examples=50)
def test_workloads_are_of_the_sizes_asked_for(count, low, more, vocab_size, seed):
    mixed = mixed_workload(count, low, low + more, vocab_size, seed)
    equal = equal_workload(count, low, 7, vocab_size, seed)
    assert len(mixed) == len(equal) == count
    assert all(low <= len(p) <= low + more and low <= osl <= low + more for p, osl in mixed)
    assert all(len(p) == low and osl == 7 for p, osl in equal)
    assert all(0 <= i < vocab_size for p, _ in mixed + equal for i in p)
    assert mixed == mixed_workload(count, low, low + more, vocab_size, seed)


def test_blocks_of_a_workload_are_those_that_the_block_manager_gives_out():
    workload = mixed_workload(12, 1, 70, 100)
    manager = BlockManager(500, 16, False)
    for i, (prompt, osl) in enumerate(workload):
        request = Request(str(i), prompt + [0] * osl, SamplingParams(max_tokens=1))
        manager.allocate(request.block_table, request.token_ids, len(request.token_ids))
    assert blocks_of(workload, 16) == 499 - manager.num_free_blocks


# ---------------------------------------------------------------------- the peers


@pytest.mark.parametrize("config", [GPT2, LLAMA, replace(LLAMA, tied=True)], ids=["gpt2", "llama", "tied"])
def test_transformers_gets_our_weights_and_writes_our_tokens(config):
    model = Transformer.random(config, "float32", seed=1)
    theirs = to_transformers(model)
    assert not any(t.is_meta for t in [*theirs.parameters(), *theirs.buffers()])
    ids = torch.arange(30)
    with torch.inference_mode():
        expected = theirs(ids[None]).logits[0]
        torch.testing.assert_close(model.logits(model(ids, ids, NoCache())), expected, atol=2e-5, rtol=2e-5)
    if config.family == "llama":  # no second copy of the weights
        ours = {p.untyped_storage().data_ptr() for p in model.parameters()}
        assert {p.untyped_storage().data_ptr() for p in theirs.parameters()} == ours
    workload = mixed_workload(5, 2, 20, config.vocab_size)
    written = greedy(model, workload)
    assert StaticBatches(theirs).run(workload) == written
    with continuous_batches(theirs, workload, 128) as engine:
        assert engine.run(workload) == written
        assert engine.run(workload[:2]) == written[:2]


def test_a_failing_continuous_batch_is_an_error_and_no_hang():
    theirs = to_transformers(Transformer.random(LLAMA, "float32"))
    workload = equal_workload(2, 4, 3, 211)
    with continuous_batches(theirs, workload, 128) as engine:
        theirs.forward = None  # the model is broken from now on
        with pytest.raises(RuntimeError):
            engine.run(workload, patience=20)


def test_the_shape_for_transformers_is_ours():
    for name in MODEL_NAMES:
        config = bench_model(name).config
        with torch.device("meta"):
            theirs = AutoModelForCausalLM.from_config(hf_config(config))
        assert theirs.num_parameters() == config.num_parameters


# ---------------------------------------------------------------------- measuring


@pytest.fixture
def small_model(monkeypatch):
    """A tiny model in the place of the real ones."""
    monkeypatch.setattr(engine_runs, "bench_model", lambda name: BenchModel(name, name, LLAMA))


def test_every_figure_gets_its_name_and_its_tokens(small_model):
    bench = small_bench()
    engine_runs.measure_model(bench, "small")
    peers = {
        f"transformers-{p}-throughput-small-{e}" for p in ("static", "continuous") for e in ("b3", "mixed4")
    }
    assert set(bench.by_name) == peers | {
        "ttft-small-isl4", "ttft-small-isl20", "itl-small-b1", "itl-small-b3", "itl-small-b5",
        "throughput-small-b1", "throughput-small-b3", "throughput-small-b5", "throughput-small-mixed4",
    }  # fmt: skip
    assert bench.left_out == ["TTFT of 500 tokens, small: its context is 96"]
    for name, m in bench.by_name.items():
        assert m.value > 0 and m.details["lowest"] <= m.value <= m.details["highest"]
        assert (m.unit, m.better) == (("tok/s", "higher") if "throughput" in name else ("ms", "lower"))
    assert bench.by_name["throughput-small-b5"].details["tokens"] == 25
    mixed = sum(osl for _, osl in mixed_workload(4, 2, 9, 211))
    assert bench.by_name["throughput-small-mixed4"].details["tokens"] == mixed
    floor = run_floor(LLAMA, 5, 6, 5, LIMITS, "float32")
    assert bench.by_name["throughput-small-b5"].floor == pytest.approx(25 / floor.seconds)
    assert bench.by_name["ttft-small-isl4"].floor == 1e3 * ttft_floor(LLAMA, 4, LIMITS, "float32").seconds


def test_memory_that_runs_out_in_one_batch_does_not_stop_the_others(small_model, monkeypatch):
    serve = engine_runs.serve

    def too_large(engine, workload):
        if len(workload) == 3 and workload[0][1] == 5:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
        if len(workload[0][0]) == 20:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to")
        return serve(engine, workload)

    monkeypatch.setattr(engine_runs, "serve", too_large)
    monkeypatch.setattr(engine_runs, "warm_up", lambda engine, workload: None)
    bench = small_bench()
    engine_runs.measure_model(bench, "small", peers=False)
    assert set(bench.by_name) == {
        "ttft-small-isl4", "itl-small-b1", "itl-small-b5", "throughput-small-b1", "throughput-small-b5",
        "throughput-small-mixed4",
    }  # fmt: skip
    assert "throughput of 3 requests, small: out of memory" in bench.left_out
    assert "TTFT of 20 tokens, small: out of memory" in bench.left_out


def test_workloads_that_cannot_fit_are_left_out_beforehand():
    bench = small_bench()
    bm = BenchModel("small", "small", LLAMA)
    workloads = engine_runs.workloads_of(bm, SMALL, 0)
    block = 16 * 2 * 2 * 2 * 12 * 4  # tokens, keys and values, layers, heads, head_dim, float32
    needed = {ending: block * blocks_of(w, 16) for ending, w in workloads.items()}
    assert needed["b5"] == 5 * block
    fitting = engine_runs.that_fit(bench, bm, workloads, 4 * block)
    assert set(fitting) == {e for e, n in needed.items() if n <= 4 * block} and "b3" in fitting
    assert (
        len(bench.left_out) == len(workloads) - len(fitting)
        and "b5: keys and values need" in bench.left_out[0]
    )
    with pytest.raises(MemoryError):
        engine_runs.that_fit(bench, bm, workloads, 0)


def test_only_want_of_memory_is_forgiven_to_our_engine():
    bench = small_bench()

    def fails(error):
        raise error

    assert bench.attempt("x", lambda: 5) == 5 and not bench.left_out
    with pytest.raises(ValueError, match="a bug"):
        bench.attempt("ours", lambda: fails(ValueError("a bug")))
    with pytest.raises(RuntimeError, match="other"):
        bench.attempt("ours", lambda: fails(RuntimeError("other")))
    assert bench.attempt("theirs", lambda: fails(ValueError("no such\nthing")), foreign=True) is None
    assert bench.attempt("ours", lambda: fails(MemoryError())) is None
    assert bench.left_out == ["theirs: ValueError: no such", "ours: out of memory"]
    assert not out_of_memory(ValueError("out of memory"))  # only torch words it so, in a RuntimeError


@pytest.mark.parametrize("reason", ["their time is over", "the script has to end"])
def test_other_engines_do_not_begin_late(small_model, reason):
    bench = small_bench(peers_until=time.monotonic())
    if reason == "their time is over":
        bench = Bench("cpu", "float32", replace(SMALL, peer_seconds=-1.0), LIMITS)
    engine_runs.measure_model(bench, "small")
    assert not any(name.startswith("transformers") for name in bench.by_name)
    assert sum("no time left" in line for line in bench.left_out) == 2
    assert "throughput-small-b5" in bench.by_name


def test_a_transformers_without_continuous_batching_is_left_out(small_model, monkeypatch):
    def missing(*_):
        raise AttributeError("no continuous_batching_context_manager")

    monkeypatch.setattr(engine_peers, "continuous_batches", missing)
    bench = small_bench()
    engine_runs.measure_model(bench, "small")
    assert any("transformers, continuous, small: AttributeError: no cont" in line for line in bench.left_out)
    assert "transformers-static-throughput-small-b3" in bench.by_name


def test_an_answer_of_the_wrong_length_is_no_figure(monkeypatch):
    model = Transformer.random(LLAMA, "float32")
    workload = equal_workload(2, 4, 3, 211)
    engine = engine_runs.make_engine(model, SMALL, [workload])
    step = engine.step

    def cut_short():
        outputs = step()
        engine.abort("request-1")
        return outputs

    monkeypatch.setattr(engine, "step", cut_short)
    with pytest.raises(RuntimeError, match="wrong length"):
        engine_runs.serve(engine, workload)


# ---------------------------------------------------------------------- what it says


def test_main_quick(run_script, monkeypatch):
    unhurried = replace(
        plan_for("cpu", quick=True), peer_seconds=float("inf")
    )  # however slow this machine is
    monkeypatch.setattr(engine_benchmark, "plan_for", lambda *_: unhurried)
    data = run_script(engine_benchmark, "--quick", "--device", "cpu", figures=["engine_benchmark"])
    names = {m["name"] for m in data["results"]["measurements"]}
    assert {"ttft-tales-isl10", "ttft-tales-isl1000", "itl-tales-b1", "throughput-tales-b32"} <= names
    assert {
        "transformers-static-throughput-tales-b32",
        "transformers-continuous-throughput-tales-b32",
    } <= names
    verdicts = [(p["claim"], p["verdict"], p["kind"]) for p in data["predictions"]]
    assert ("t4-throughput", "corrected", "structure") in verdicts
    assert ("t4-ttft", "needs a GPU", "structure") in verdicts
    ours = [m for m in data["results"]["measurements"] if m["name"].startswith(("ttft", "itl", "throughput"))]
    assert {m["details"]["path"] for m in ours} == {
        "kernel" if importlib.util.find_spec("numba") else "gather"
    }
    assert data["results"]["left_out"] == [] and data["results"]["limits"]["read_gb_s"] > 0
    assert "TinyLlama-1.1B on a T4" in data["out"]


def test_a_model_that_does_not_fit_is_told_and_the_next_one_runs(run_script, monkeypatch):
    random = Transformer.random.__func__

    def small_memory(cls, config, *args):
        if config.name == "large":
            raise torch.OutOfMemoryError("CUDA out of memory")
        return random(cls, config, *args)

    shapes = {"gpt2": replace(LLAMA, name="large"), "tales": LLAMA}
    for module in (engine_runs, engine_benchmark):
        monkeypatch.setattr(module, "bench_model", lambda name: BenchModel(name, name, shapes[name]))
    monkeypatch.setattr(engine_benchmark, "plan_for", lambda *_: SMALL)
    monkeypatch.setattr(Transformer, "random", classmethod(small_memory))
    options = ["--quick", "--device", "cpu", "--no-peers", "--models", "gpt2", "tales"]
    data = run_script(engine_benchmark, *options)
    assert "gpt2: out of memory" in data["out"]
    assert data["results"]["left_out"][0] == "gpt2: out of memory"
    names = [m["name"] for m in data["results"]["measurements"]]
    assert "throughput-tales-b5" in names and not any("gpt2" in name for name in names)


def test_when_no_model_fits_the_arithmetic_is_still_told(run_script, monkeypatch):
    def no_memory(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Transformer, "random", no_memory)
    out = run_script(engine_benchmark, "--quick", "--device", "cpu", "--no-peers")["out"]
    assert "t4-throughput" in out and "tales: out of memory" in out


def a_lab(tmp_path) -> Lab:
    args = Namespace(predict=False, figures=str(tmp_path), quick=False, seed=0)
    return Lab(Path(engine_benchmark.__file__), args, Console(width=100))


def measured_on_a_gpu(flat: bool) -> Bench:
    """As a GPU would leave it: figures made up by hand, so that what is said of them can be tested without one."""
    plan = plan_for("cuda", quick=False)
    bench = Bench("cuda", "bfloat16", plan, replace(LIMITS, device_name="a card"))
    speeds = {"": 400.0, "transformers-static-": 90.0, "transformers-continuous-": 80.0}
    for name in plan.models:
        for isl in plan.isls:
            ms = 3.0 + isl / (100 if flat else 10)
            bench.add(f"ttft-{name}-isl{isl}", [ms], "ms", Floor(1e-3, "bandwidth"))
        for batch in plan.batches:
            bench.add(f"itl-{name}-b{batch}", [2.0 + (batch - 1) * 0.02], "ms", Floor(1.9e-3, "bandwidth"))
            for engine, speed in speeds.items():
                floor = None if engine else Floor(0.002 * batch**0.2, "bandwidth")
                figure = f"{engine}throughput-{name}-b{batch}"
                bench.add(figure, [speed * batch**0.8], "tok/s", floor, batch=batch, tokens=batch)
    return bench


@pytest.mark.parametrize("flat", [True, False])
def test_what_is_said_of_a_gpu(tmp_path, capsys, flat):
    bench, lab = measured_on_a_gpu(flat), a_lab(tmp_path)
    engine_story.check_claims(lab, bench, bench.plan.models)
    said = {p.claim: p for p in lab.predictions}
    assert said["t4-ttft"].verdict == ("reproduced" if flat else "differs here")
    assert said["t4-throughput"].measured == pytest.approx(64**0.8)
    assert said["t4-throughput"].predicted == pytest.approx(64**0.8)
    assert said["t4-throughput"].source_says == pytest.approx(15.6, abs=0.1)
    assert said["at-least-transformers"].measured is True
    assert said["decode-floor"].holds
    assert said["batch-scaling"].predicted == pytest.approx(
        2.0 + 31 * 0.02
    )  # batch 32; 2.0 and 7.1 at 1 and 256
    assert all(p.kind == "timing" for p in lab.predictions)  # no card can fail the course
    models = [bench_model(n) for n in bench.plan.models]
    for bm in models:
        engine_story.show_model(lab, bench, bm)
    lab.figure(engine_story.draw(bench, models), "engine_benchmark")
    out = capsys.readouterr().out
    assert "Llama-3-8B: 8,030M parameters" in out and max(map(len, out.splitlines())) <= 100


def test_a_figure_that_beats_arithmetic_shows_a_ceiling_measured_too_low():
    bench = small_bench()
    bench.add("a", [1.0], "ms", Floor(1.2e-3, "arithmetic"))
    bench.add("b", [1.0], "ms", Floor(1.2e-3, "bandwidth"))  # a small model in a cache
    bench.add("c", [1.0], "ms", Floor(0.9e-3, "arithmetic"))
    bench.add("d", [12.0], "tok/s", Floor(1.0, "arithmetic"), tokens=10)
    bench.add("e", [5.0], "tok/s")
    assert engine_story.beats_its_floor(bench) == ["a", "d"]
