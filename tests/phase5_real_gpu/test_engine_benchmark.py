"""The engine benchmark: its floors, its workloads, its peer, and its report when memory runs out."""

import warnings
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM

from labkit.errors import LabError
from labkit.lab import Lab
from phase2_attention_kvcache.measuring.roofline import hollow, work_of_batch
from phase2_attention_kvcache.model import Transformer
from phase3_paged_attention.paging import compiled_kernel
from phase4_scheduler.engine import EngineConfig
from phase5_real_gpu import engine_benchmark
from phase5_real_gpu.kernels.gpu_runner import GPURunner
from phase5_real_gpu.measuring import engine_cases as cases
from phase5_real_gpu.measuring import engine_runs
from phase5_real_gpu.measuring.engine_cases import MODEL_NAMES, BenchModel, Plan, bench_model, plan_for
from phase5_real_gpu.measuring.engine_peers import hf_config, random_transformers, static_batches
from phase5_real_gpu.measuring.measurements import Bench, Floor, Limits
from phase5_real_gpu.story import engine_story

LIMITS = Limits(
    100.0, 90.0, {"bfloat16": 10.0, "float16": 10.0, "float32": 5.0}, 5.0, device_name="a machine"
)
SHAPE = dict(name="small", vocab_size=211, d_model=48, num_layers=2, num_heads=4, head_dim=12, max_context=96)
LLAMA = replace(bench_model("tinyllama").config, **SHAPE, num_kv_heads=2, d_ff=64)
SMALL_MODEL = BenchModel("small", "small", LLAMA)
SMALL = Plan(
    models=("small",), isls=(4, 20, 500), batches=(1, 3, 5), isl=6, osl=5, mixed=(4, 2, 9), repeats=1,
    step_tokens=128, peer_seconds=60.0,
)  # fmt: skip


# ---------------------------------------------------------------------- cases and floors


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_a_step_reads_every_matrix_once_but_not_the_token_table(name):
    config = bench_model(name).config
    with torch.device("meta"):
        model = Transformer(config)
        theirs = AutoModelForCausalLM.from_config(hf_config(config))
    assert theirs.num_parameters() == config.num_parameters
    tables = config.vocab_size * config.d_model * (not config.tied)
    if config.family == "gpt2":
        tables += config.max_context * config.d_model
    matrices = sum(p.numel() for p in model.parameters() if p.ndim == 2) - tables
    kv = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    alone, seven = (work_of_batch(config, [(99, 1)] * n, 2) for n in (1, 7))
    assert alone.bytes == 2 * (matrices + 100 * kv) and seven.bytes == 2 * (matrices + 7 * 100 * kv)
    assert seven.operations == 7 * alone.operations


def test_floors_of_a_run_are_those_of_its_steps():
    step, prompts = (
        LIMITS.floor(work_of_batch(LLAMA, [of] * 3, 4), "float32").seconds for of in ((6 + 2, 1), (0, 6))
    )
    assert cases.run_floor(LLAMA, 3, 6, 5, LIMITS, "float32").seconds == pytest.approx(prompts + 4 * step)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("quick", [True, False])
def test_every_request_of_a_plan_fits_its_models(device, quick):
    plan = plan_for(device, quick)
    for bm in map(bench_model, plan.models):
        for ending, workload in engine_runs.workloads_of(bm, plan, 0).items():
            assert len(workload) == int(ending.removeprefix("mixed").removeprefix("b"))
            assert all(len(p) + osl <= bm.config.max_context for p, osl in workload)


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_the_kernels_take_the_hollow_model(name):
    """Its step without work is timed beside each model. On a card the benchmark would end where they refuse its shape."""
    config = hollow(bench_model(name).config)
    with warnings.catch_warnings(action="error"):
        assert GPURunner.create(Transformer.random(config), EngineConfig(max_num_seqs=1, max_model_len=64), 8)


# ---------------------------------------------------------------------- measuring


def test_every_figure_gets_its_name_and_its_tokens_and_is_saved():
    saved = []
    bench = Bench(LIMITS, "cpu", "float32", save=lambda bench: saved.append(len(bench.found)))
    engine_runs.measure_model(bench, SMALL, SMALL_MODEL)
    endings = ("b1", "b3", "b5", "mixed4")
    assert set(bench.found) == {
        "ttft-small-isl4", "ttft-small-isl20", "itl-small-b1", "itl-small-b3", "itl-small-b5",
        *(f"throughput-small-{e}" for e in endings), *(f"transformers-static-throughput-small-{e}" for e in endings),
    }  # fmt: skip
    assert bench.left_out == {"TTFT of 500 tokens, small": "its context is 96"}
    assert set(saved) >= set(range(1, len(bench.found) + 1))
    for name, m in bench.found.items():
        assert m.details["lowest"] <= m.value <= m.details["highest"]
        assert (m.unit, m.better) == (("tok/s", "higher") if "throughput" in name else ("ms", "lower"))
    tokens = {name: m.details.get("tokens") for name, m in bench.found.items()}
    assert tokens["throughput-small-b5"] == 25
    assert tokens["throughput-small-mixed4"] == sum(osl for _, osl in cases.mixed_workload(4, 2, 9, 211))
    floor = cases.run_floor(LLAMA, 5, 6, 5, LIMITS, "float32")
    assert bench.found["throughput-small-b5"].floor == pytest.approx(25 / floor.seconds)
    ttft = LIMITS.floor(work_of_batch(LLAMA, [(0, 4)], 4), "float32").seconds
    assert bench.found["ttft-small-isl4"].floor == 1e3 * ttft
    alone = bench.found["itl-small-b1"].details
    assert alone["path"] == ("kernel" if compiled_kernel() else "gather")
    assert alone["fixed_ms"] > 0 and len(alone["seconds"]) == 4


def test_static_batches_write_the_tokens_of_single_requests():
    """Padding changes no answer, and each is cut to its own length."""
    model = random_transformers(LLAMA, "float32", "cpu")
    workload = cases.mixed_workload(5, 2, 20, LLAMA.vocab_size)
    assert static_batches(model, workload) == [static_batches(model, [request])[0] for request in workload]


def test_an_answer_of_the_wrong_length_is_no_figure(monkeypatch):
    workload = cases.equal_workload(2, 4, 3, 211)
    engine = engine_runs.make_engine(Transformer.random(LLAMA, "float32"), SMALL)
    step = engine.step
    monkeypatch.setattr(engine, "step", lambda: (step(), engine.abort("request-1"))[0])
    with pytest.raises(RuntimeError, match="wrong length"):
        engine_runs.serve(engine, workload)


# ---------------------------------------------------------------------- the script


def test_main_quick(run_script, monkeypatch):
    few = dict(isls=(10, 200), batches=(1, 8), mixed=(4, 4, 16), peer_seconds=float("inf"))
    unhurried = replace(plan_for("cpu", quick=True), **few)  # however slow the machine
    monkeypatch.setattr(engine_benchmark, "plan_for", lambda *_: unhurried)
    argv = ["--quick", "--device", "cpu"]
    data = run_script(engine_benchmark, *argv, figures=["engine_benchmark"])
    names = {m["name"] for m in data["results"]["measurements"]}
    assert {"ttft-tales-isl10", "ttft-tales-isl200", "itl-tales-b1", "throughput-tales-b8"} <= names
    assert "transformers-static-throughput-tales-b8" in names
    verdicts = [(p["claim"], p["verdict"], p["kind"]) for p in data["predictions"]]
    assert ("t4-throughput", "corrected", "structure") in verdicts
    assert ("t4-ttft", "needs a GPU", "structure") in verdicts
    assert data["results"]["left_out"] == {} and "TinyLlama-1.1B on a T4" in data["out"]
    again = run_script(engine_benchmark, *argv, "--resume")["results"]["measurements"]
    assert again == data["results"]["measurements"]  # nothing was missing, so nothing was measured


def test_a_model_that_does_not_fit_is_told_and_the_next_one_runs(run_script, monkeypatch):
    random = Transformer.random.__func__

    def small_memory(cls, config, *args):
        if config.name == "large":
            raise torch.OutOfMemoryError("CUDA out of memory")
        return random(cls, config, *args)

    shapes = {"gpt2": replace(LLAMA, name="large"), "tales": LLAMA}
    monkeypatch.setattr(engine_benchmark, "bench_model", lambda name: BenchModel(name, name, shapes[name]))
    monkeypatch.setattr(engine_benchmark, "plan_for", lambda *_: SMALL)
    monkeypatch.setattr(Transformer, "random", classmethod(small_memory))
    options = ["--quick", "--device", "cpu", "--no-peers", "--models"]
    data = run_script(engine_benchmark, *options, "gpt2", "tales")
    assert "gpt2: out of memory" in data["out"] and data["results"]["left_out"]["gpt2"] == "out of memory"
    names = [m["name"] for m in data["results"]["measurements"]]
    assert "throughput-tales-b5" in names and not any("gpt2" in name for name in names)
    # When no model fits, the arithmetic is still told.
    assert "t4-throughput" in run_script(engine_benchmark, *options, "gpt2")["out"]


def test_a_kernel_that_breaks_the_gpu_ends_the_script_in_a_line(monkeypatch):
    """After an illegal address every call of CUDA raises."""

    def broken(*_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", broken)
    with pytest.raises(LabError, match=r"^decode failed and left the GPU unusable .*illegal memory access"):
        Bench(LIMITS, "cuda", "bfloat16").attempt("decode", broken)


def measured_on_a_gpu(flat: bool) -> tuple[Bench, Plan]:
    """Figures made up by hand, as a GPU would leave them, so that the story of a GPU can be tested without one."""
    plan = plan_for("cuda", quick=False)
    bench = Bench(replace(LIMITS, device_name="a card"), "cuda", "bfloat16")
    add = engine_runs.add_figure
    for name in plan.models:
        for isl in plan.isls:
            ms = 3.0 + isl / (100 if flat else 10)
            add(bench, f"ttft-{name}-isl{isl}", [ms], "ms", Floor(1e-3, "bandwidth"))
        for batch in plan.batches:
            add(bench, f"itl-{name}-b{batch}", [2.0 + (batch - 1) * 0.02], "ms", Floor(1.9e-3, "bandwidth"))
            for engine, speed in {"": 400.0, "transformers-static-": 90.0}.items():
                floor = None if engine else Floor(0.002 * batch**0.2, "bandwidth")
                figure = f"{engine}throughput-{name}-b{batch}"
                add(bench, figure, [speed * batch**0.8], "tok/s", floor, tokens=batch)
    return bench, plan


@pytest.mark.parametrize("flat", [True, False])
def test_the_story_of_a_gpu(tmp_path, capsys, flat):
    args = Namespace(predict=False, figures=str(tmp_path), quick=False, seed=0)
    lab = Lab(Path(engine_benchmark.__file__), args, Console(width=100))
    bench, plan = measured_on_a_gpu(flat)
    models = [bench_model(n) for n in plan.models]
    engine_story.check_claims(lab, bench, plan, models)
    said = {p.claim: p for p in lab.predictions}
    assert said["t4-ttft"].verdict == ("reproduced" if flat else "differs here")
    assert [said["t4-throughput"].measured, said["t4-throughput"].predicted] == pytest.approx([64**0.8] * 2)
    assert said["t4-throughput"].source_says == pytest.approx(15.6, abs=0.1)
    assert said["at-least-transformers"].measured is True and said["decode-floor"].holds
    assert all(p.kind == "timing" for p in lab.predictions)  # no card can fail the course
    for bm in models:
        engine_story.show_model(lab, bench, plan, bm)
    lab.figure(engine_story.draw(bench, plan, models), "engine_benchmark")
    out = capsys.readouterr().out
    assert "Llama-3-8B: 8,030M parameters" in out and max(map(len, out.splitlines())) <= 100
