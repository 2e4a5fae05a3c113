"""An engine whose model lies in several processes answers as one whose model lies in its own."""

import asyncio
import os
import pickle
import pkgutil
import re
import signal
import tomllib
from types import SimpleNamespace

import psutil
import pytest
import torch

from labkit.errors import LabError
from labkit.paths import ROOT
from phase2_attention_kvcache.model import SamplingParams, Transformer
from phase2_attention_kvcache.model.config import read_config
from phase2_attention_kvcache.model.sampling import BadLogitsError, Sampler
from phase2_attention_kvcache.story.small_families import write_small_model
from phase4_scheduler.engine import EngineConfig, LLMEngine, Request, StepBatch
from phase4_scheduler.features.executor import EXECUTORS, ExecutorError
from phase4_scheduler.serve import build_parser, serve
from phase4_scheduler.server.client import Answer, complete, running_server
from phase4_scheduler.simulator import step_traffic
from phase5_real_gpu import tensor_parallel
from phase5_real_gpu.parallel import MultiprocExecutor, Place, ShardedTransformer
from phase5_real_gpu.parallel.executor import RemoteLogits, RemoteModel
from phase5_real_gpu.parallel.shard_loading import load_shard
from phase5_real_gpu.parallel.worker import Worker
from tests.phase5_real_gpu.conftest import repeat_in_python
from tests.phase5_real_gpu.parallel.conftest import SIZES, Answers, parallel_engine, prompts, whole_engine


def check_equal(
    folder, t: int, p: int, dtype: str, number: int, expert_parallel: bool = False, **settings
) -> None:
    """Tokens, scores and counted bytes; with preemptions and prefix hits."""
    asked = prompts(number)
    one = Answers(whole_engine(folder, dtype, **settings), asked)
    engine = parallel_engine(folder, t, p, dtype, enable_expert_parallel=expert_parallel, **settings)
    engine.core.executor.traffic()
    many = Answers(engine, asked)
    traffic = engine.core.executor.traffic()
    facts = engine.core.executor.facts
    engine.core.executor.shutdown()

    assert one.preemptions and one.cached
    assert (many.tokens, many.steps, many.preemptions) == (one.tokens, one.steps, one.preemptions)
    # Each process chooses its matrix multiplications, so sums round differently.
    error = 1e-12 if dtype == "float64" else 1e-5
    for expected, found in zip(one.scores, many.scores, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=error * expected.abs().max().item())

    # Each rank has read its share of the file, and nothing else (test_placement proves the shares). In memory the last share of the vocabulary is as long as the others.
    config, width = read_config(folder), 8 if dtype == "float64" else 4
    for rank in range(t * p):
        place = Place(rank, t, p, expert_parallel)
        with torch.device("meta"):
            held = ShardedTransformer(config, SimpleNamespace(place=place)).state_dict()
        padding = -(-config.vocab_size // t) - len(place.share(config.vocab_size))
        padding *= config.d_model * sum(name in held for name in ("token_table.weight", "head.weight"))
        numbers = sum(x.numel() for x in held.values())
        assert facts[rank] == (width * numbers, 4 * (numbers - padding))

    # What each rank brought, over all stages: exactly what the formula says.
    for tensor_rank in range(t):
        own = [traffic[stage * t + tensor_rank] for stage in range(p)]
        for kind in ("all_reduce", "gather", "send"):
            counted = [sum(rank.get(kind, (0, 0))[i] for rank in own) for i in (0, 1)]
            # Of a step the number of tokens counts, or of scores.
            sizes = [(1, len(s)) for s in one.scores] if kind == "gather" else [(n, 0) for n in one.steps]
            calls = [step_traffic(config, *size, t, p, width).get(kind, (0, 0)) for size in sizes]
            assert counted == [sum(c[i] for c in calls) for i in (0, 1)], (kind, tensor_rank)


def test_a_model_in_four_processes_answers_as_one_in_one(folders):
    """KV heads: 2, as many as ranks in a stage. In float64 a sum in another order is equal to 12 digits."""
    check_equal(folders["llama"], 2, 2, "float64", 14, num_blocks=60)


def test_a_mixture_whose_experts_are_dealt_out_answers_as_one_whole(folders):
    check_equal(folders["qwen3_moe"], 2, 1, "float64", 14, expert_parallel=True, num_blocks=60)


SAMPLED = [
    dict(temperature=0),
    dict(temperature=0.8),
    dict(temperature=1.0, seed=7, logprobs=3),
    dict(temperature=0, repetition_penalty=1.5, min_tokens=4),
    dict(temperature=1.0, top_p=0.7, seed=7, bad_words=[], presence_penalty=0.5),
    dict(temperature=0.8, top_k=20, logit_bias={5: 3.0}),
]


def test_tokens_are_sampled_where_the_logits_are(folders):
    """Logits of 64 requests and 128k tokens are 33 MB: no step sends them, unless a feature looks at them."""
    params = [SamplingParams(max_tokens=8, ignore_eos=True, **own) for own in SAMPLED]
    asked = prompts(len(params))
    wanted = whole_engine(folders["llama"], "float64").generate(asked, params)
    engine = parallel_engine(folders["llama"], 2, 1, "float64")
    call, calls = engine.core.executor.collective_rpc, []

    def noted(method, *arguments):
        calls.append(method)
        return call(method, *arguments)

    engine.core.executor.collective_rpc = noted
    found = engine.generate(asked, params)
    assert [o.outputs[0].token_ids for o in found] == [o.outputs[0].token_ids for o in wanted]
    for mine, theirs in zip(found[2].outputs[0].logprobs, wanted[2].outputs[0].logprobs, strict=True):
        assert mine == pytest.approx(theirs)
    assert set(calls) == {"execute", "sample"}

    calls.clear()
    engine.generate(asked[:1], SamplingParams(max_tokens=2, prompt_logprobs=2))
    assert [method for method in calls if method != "execute"] == ["logits", "sample", "sample"]
    engine.core.executor.shutdown()


def test_a_rank_on_a_gpu_replays_its_decode_steps(tmp_path):
    """Played by a rank without peers, whose kernels are interpreted and whose recordings are repeated in Python."""
    write_small_model("llama", tmp_path, SIZES | dict(head_dim=16))
    alone = SimpleNamespace(place=Place(0), gather=lambda x: [x])
    worker = Worker.__new__(Worker)
    worker.settings, worker.device = SimpleNamespace(place=alone.place), "cuda"
    worker.model, _ = load_shard(tmp_path, torch.float32, "cpu", alone)
    ranks = SimpleNamespace(collective_rpc=lambda method, *asked: [getattr(worker, method)(*asked)])

    def initialize_kv_cache(*sizes):
        cache = MultiprocExecutor.initialize_kv_cache(ranks, *sizes)
        worker.runner._record = repeat_in_python
        return cache

    ranks.initialize_kv_cache = initialize_kv_cache
    settings = EngineConfig(num_blocks=60, block_size=4, max_num_seqs=4)
    ranks.model = RemoteModel(ranks, worker.model.whole_config, torch.float32)
    engine = LLMEngine(ranks.model, None, settings, executor=ranks)
    params, asked = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True), prompts(3)
    found = engine.generate(asked, params)
    wanted = LLMEngine(Transformer.from_pretrained(tmp_path), None, settings).generate(asked, params)
    assert [o.token_ids for o in found] == [o.token_ids for o in wanted]
    assert {bucket for bucket, _ in worker.runner.recordings} == {4}
    assert [line[:9] for line in engine.core.runner.prepare()] == ["CUDA grap"] * 3
    assert {bucket for bucket, _ in worker.runner.recordings} == {1, 2, 4}

    worker.runner.recordings.clear()  # now it can record no more: its peers would wait for other all-reduces
    worker.runner._record = lambda step: 1 / 0
    engine.add_request("late", [1, 2], params)
    engine.step()
    with pytest.raises(RuntimeError, match=r"ZeroDivisionError.*enforce_eager=True"):
        worker.runner.execute(StepBatch([1], [3], [[1]], [5], [2], [6]))


def test_logits_that_allow_no_token_move_no_generator():
    """The rank says so with its answer, and lives on; the other requests are sampled again from where they stood."""
    place = Place(0, 1, 1)
    worker = Worker.__new__(Worker)
    worker.settings, worker.hidden = SimpleNamespace(place=place), torch.zeros(1, 4)
    worker.model = SimpleNamespace(logits=lambda hidden: torch.full((1, 9), torch.nan))
    ask = lambda method, *asked: [None, pickle.loads(pickle.dumps(worker.sample(*asked)))]  # noqa: E731
    ranks = SimpleNamespace(collective_rpc=ask)
    request = Request("a", [1, 2], SamplingParams(temperature=1.0, seed=3))
    sampler = Sampler(generator=torch.Generator().manual_seed(5))
    generators = (request.generator, sampler.generator)
    before = [generator.get_state() for generator in generators]
    with pytest.raises(BadLogitsError, match="row 0 of the logits: NaN, infinity"):
        RemoteLogits(ranks, torch.arange(1)).sample(sampler, [request])
    assert all(torch.equal(g.get_state(), state) for g, state in zip(generators, before))


@pytest.mark.proof
@pytest.mark.parametrize(("family", "t", "p"), [("gpt2", 1, 3), ("gpt2", 2, 2), ("llama", 4, 1)])
def test_64_prompts_get_the_same_tokens(folders, family, t, p):
    check_equal(folders[family], t, p, "float32", 64)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("family", "t", "p", "expert_parallel"),
    [
        ("qwen3_moe", 4, 1, True),  # two ranks hold two experts, two hold one
        ("mixtral", 2, 2, True),
        # A quarter of each expert; two ranks hold the same KV head, and norm its keys.
        ("olmoe", 4, 1, False),
    ],
)
def test_a_mixture_is_shared_in_each_way(folders, family, t, p, expert_parallel):
    check_equal(folders[family], t, p, "float32", 40, expert_parallel, num_blocks=80)


# ---------------------------------------------------------------------- what goes wrong


def test_a_checkpoint_in_few_bits_is_refused_before_any_process_starts(tmp_path):
    (tmp_path / "model.gguf").touch()
    with pytest.raises(ValueError, match="only checkpoints in 16 or 32 bits can be split"):
        MultiprocExecutor(tmp_path / "model.gguf", "float32", "cpu", 2)


def test_two_devices_need_an_executor(configs):
    model = Transformer.random(configs["llama"])
    with pytest.raises(ValueError, match="2 devices are asked for, and this model lies in one process"):
        LLMEngine(model, None, EngineConfig(num_blocks=9), pipeline_parallel_size=2)
    with pytest.raises(ValueError, match="quantization and tensor_parallel_size do not go together"):
        both = dict(tensor_parallel_size=2, quantization="int8")
        LLMEngine(model, None, EngineConfig(num_blocks=9), executor=object(), **both)


def test_the_package_names_its_executor():
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert pkgutil.resolve_name(groups[EXECUTORS]["mp"]) is MultiprocExecutor


@pytest.mark.proof
@pytest.mark.parametrize(
    ("signal_number", "message"),
    [
        (signal.SIGKILL, r"rank 1 ended \(exit code -9\)"),
        (signal.SIGSTOP, "no answer from rank .*1.* within 2 seconds"),
    ],
)
def test_a_rank_that_dies_or_hangs_ends_everybody_with_one_line(folders, signal_number, message):
    engine = parallel_engine(folders["llama"], 2, 1, timeout=2)
    processes = engine.core.executor._processes
    engine.add_request("a", [1, 2, 3], SamplingParams(temperature=0, max_tokens=50, ignore_eos=True))
    engine.step()
    os.kill(processes[1].pid, signal_number)
    with pytest.raises(ExecutorError, match=message) as caught:
        while True:
            engine.step()
    assert "\n" not in str(caught.value)
    assert not any(process.is_alive() for process in processes)
    with pytest.raises(ExecutorError, match=message):
        engine.step()


# ---------------------------------------------------------------------- the server


def ask(address: str) -> Answer:
    body = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    return asyncio.run(complete(address, body))


@pytest.mark.proof
def test_a_shared_model_is_served(capfd):
    """The same text; and if a rank dies, one line, and no process is left."""
    engine = LLMEngine.from_pretrained("tales", "float32", "cpu")
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    expected = engine.generate(["Once upon a time"], params)[0].outputs[0].text
    with running_server("tales", "-tp", "2", "--dtype", "float32") as server:
        assert ask(server.address).text == expected
        processes = psutil.Process(server.process.pid).children(recursive=True)
        assert len(processes) >= 4  # the engine, what starts its ranks, the ranks
        max(processes, key=psutil.Process.create_time).kill()
        assert ask(server.address).error
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
    err = capfd.readouterr().err
    assert len(re.findall(r"rank . ended \(exit code -9\), so no rank can go on", err)) == 1
    assert "Traceback" not in err


def test_what_one_device_does_is_not_estimated_for_several():
    asked = build_parser().parse_args(["nowhere", "--enable-mfu-metrics", "-pp", "2"])
    with pytest.raises(LabError, match="leave it out, or the parallel sizes"):
        serve(asked)


# ---------------------------------------------------------------------- the script


@pytest.mark.proof
def test_the_story_holds(run_script):
    figures = ("who_holds_what", "expert_load", "tensor_parallel", "pipeline_bubble")
    found = run_script(tensor_parallel, "--quick", figures=figures)["claims"]
    assert found["tp-all-reduce"]["verdict"] == "corrected"
    assert found["pp-activations"]["verdict"] == "reproduced"
    assert {"parallel-tokens", "parallel-bytes", "expert-load"} <= found.keys()


@pytest.mark.parametrize(
    ("size", "message"), [("3", "the model has 4 query heads: choose"), ("0", "0 is out of range")]
)
def test_a_size_that_does_not_divide_gets_one_line(size, message, mistake_of):
    assert message in mistake_of(tensor_parallel, "--tensor-parallel-size", size)
