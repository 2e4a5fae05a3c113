"""What users, models, listeners and Ctrl-C can do to an engine; afterwards it must serve as if nothing had been."""

import dataclasses
import signal
import threading

import numpy as np
import pytest

from labkit.errors import LabError
from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase3_paged_attention.paging.block_manager import BlockManager
from phase3_paged_attention.paging.paged_kv_cache import PagedKVCache
from phase4_scheduler.engine.config import EngineConfig
from phase4_scheduler.engine.engine import LLMEngine
from phase4_scheduler.engine.scheduler import Scheduler, SchedulerConfig
from phase4_scheduler.features.recording import record

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
DRAWN = SamplingParams(temperature=0.9, max_tokens=8, ignore_eos=True, seed=5)


def drain(engine, most_steps=1000):
    """All tokens by request id and answer, errors by request id."""
    got, errors = {}, {}
    while engine.has_unfinished_requests:
        most_steps -= 1
        assert most_steps, "it does not end"
        for out in engine.step():
            for c in out.outputs:
                got.setdefault(out.request_id, {}).setdefault(c.index, []).extend(c.token_ids)
            if out.error:
                errors[out.request_id] = out.error
        engine.core.block_manager.check_integrity()
    return got, errors


def expected(tiny, prompts, params):
    return [tiny.engine().generate([p], params)[0].token_ids for p in prompts]


# ---------------------------------------------------------------------- mistakes of the user


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "the prompt is empty"),
        ([1] * 128, "the prompt has 128 tokens, the context holds 128"),
        ([1] * 60, "60 prompt tokens and an answer of 8 do not fit the 56 tokens that the KV cache has"),
        ([1, 400], "token id 400 is out of range: this model takes 0 to 399"),
        ([-1], "token id -1 is out of range"),
        ([1, 2.0], "the prompt is [1, 2.0]: give a text or a list of token ids, which are whole numbers"),
        ([True], "the prompt is [True]"),
        ([[1, 2], [3, 4]], "the prompt is [[1, 2], [3, 4]]"),
        (7, "the prompt is 7: give a text or a list of token ids"),
    ],
)
def test_a_bad_prompt_is_refused_in_one_line_and_nothing_starts(prompt, message, tiny, assert_empty):
    engine = tiny.engine(num_blocks=15, block_size=4)
    for call in (
        lambda: engine.add_request("a", prompt, GREEDY),
        lambda: engine.generate([[1, 2], prompt, [3]], GREEDY),
        lambda: next(engine.stream(prompt, GREEDY)),
    ):
        with pytest.raises(ValueError) as error:
            call()
        assert message in str(error.value) and "\n" not in str(error.value)
        assert engine.core.num_steps == 0
        assert_empty(engine)


def test_ids_of_requests_are_unique_while_they_live(tiny):
    engine = tiny.engine()
    engine.add_request("a", [1], dataclasses.replace(DRAWN, n=2))
    with pytest.raises(ValueError, match="request id 'a' is in use"):
        engine.add_request("a", [2], GREEDY)
    with pytest.raises(ValueError, match="'1_a' is in use"):  # the second answer is called so inside
        engine.add_request("1_a", [2], GREEDY)
    got, _ = drain(engine)
    assert [len(got["a"][i]) for i in (0, 1)] == [8, 8]
    engine.add_request("a", [2], GREEDY)
    engine.add_request("request-1", [3], GREEDY)  # as the engine itself would call its first one
    assert engine.generate([[4, 5]], GREEDY)[0].token_ids == expected(tiny, [[4, 5]], GREEDY)[0]
    drain(engine)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(num_blocks=1), "num_blocks is 1"),
        (dict(block_size=0), "block_size is 0"),
        (dict(max_model_len=129), "max_model_len is 129: from 1 to the model's context, 128"),
        (dict(max_model_len=0), "max_model_len is 0"),
        (dict(max_num_seqs=0), "max_num_seqs is 0"),
        (dict(max_num_batched_tokens=-3), "max_num_batched_tokens is -3"),
        (dict(policy="lifo"), "unknown policy 'lifo'"),
        (dict(preemption="pause"), "unknown preemption 'pause'"),
        (dict(num_swap_blocks=-1), "num_swap_blocks is -1"),
        (dict(long_prefill_token_threshold=-1), "long_prefill_token_threshold is -1"),
        (dict(max_num_seqs="8"), "max_num_seqs is '8': it must be a whole number"),
        (dict(block_sise=4), "unknown setting 'block_sise'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message, tiny):
    with pytest.raises(ValueError, match=message):
        tiny.engine(**settings)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(priority="high"), "priority is 'high'"),
        (dict(arrival_time=float("nan")), "arrival_time is nan"),
        (dict(params={"max_tokens": 5}), "give SamplingParams"),
        (dict(request_id=3), "give a string"),
        (dict(params=SamplingParams(stop_token_ids=[400])), "token 400: this vocabulary goes from 0 to 399"),
        (dict(params=SamplingParams(logit_bias={400: 1})), "token 400: this vocabulary goes from 0 to 399"),
    ],
)
def test_arguments_of_a_request_are_checked_before_it_queues(arguments, message, tiny):
    engine = tiny.engine(policy="priority")
    with pytest.raises(ValueError, match=message):
        engine.add_request(**dict(request_id="a", prompt=[5]) | arguments)
    engine.add_request("b", np.array([5]), GREEDY)  # numbers of numpy are token ids
    assert drain(engine)[0]["b"][0] == expected(tiny, [[5]], GREEDY)[0]


def test_an_engine_without_a_tokenizer(tiny):
    engine = tiny.engine(tokenizer=None)
    with pytest.raises(ValueError, match="no tokenizer"):
        engine.generate("text", GREEDY)
    with pytest.raises(ValueError, match="stop strings and bad_words need text"):
        engine.generate([[1]], dataclasses.replace(GREEDY, stop="x"))
    out = engine.generate([[1]], GREEDY)[0]
    assert out.text == "" and len(out.token_ids) == 8


# ---------------------------------------------------------------------- abort


def test_abort_from_inside_on_output(tiny):
    prompts = [[1, 2], [3, 4], [5, 6]]
    wanted = expected(tiny, prompts, GREEDY)
    engine, seen = tiny.engine(), {"a": [], "b": [], "c": []}

    def on_output(out):
        seen[out.request_id].append(out)
        if out.request_id == "a" and len(seen["a"]) == 3:
            assert engine.abort("a") and engine.abort("b")
            engine.add_request(
                "b", prompts[2], dataclasses.replace(GREEDY, max_tokens=2), on_output=seen["c"].append
            )

    engine.add_request("a", prompts[0], GREEDY, on_output=on_output)
    engine.add_request("b", prompts[1], GREEDY, on_output=on_output)
    drain(engine)
    assert [t for o in seen["a"] for t in o.token_ids] == wanted[0][:3]
    assert seen["a"][-1].finish_reason == seen["b"][-1].finish_reason == "abort"
    # The second request had its third token in that very step; the new one of its name must not see it.
    assert [t for o in seen["b"] for t in o.token_ids] == wanted[1][:2]
    assert [t for o in seen["c"] for t in o.token_ids] == wanted[2][:2]


def test_generate_and_stream_end_when_their_requests_are_aborted(tiny):
    engine = tiny.engine()
    engine.add_request(
        "spoiler", [7], GREEDY, on_output=lambda out: [engine.abort(f"request-{i}") for i in (1, 2)]
    )
    a, b = engine.generate([[1, 2], [3]], GREEDY)
    assert a.finished and (a.finish_reason, b.finish_reason) == ("abort", "abort")
    stream = engine.stream([1, 2], GREEDY)
    next(stream)
    engine.abort("request-3")
    assert [o.finish_reason for o in stream] == ["abort"]
    drain(engine)


# ---------------------------------------------------------------------- mistakes of listeners


def test_a_step_inside_on_output_is_refused(tiny):
    engine = tiny.engine()
    engine.add_request("a", [1], GREEDY, on_output=lambda out: engine.step())
    engine.add_request("b", [2], GREEDY, on_output=lambda out: engine.generate([[3]], GREEDY))
    _got, errors = drain(engine)
    assert sorted(errors) == ["a", "b"] and "start no step" in errors["a"] and "start no step" in errors["b"]


def test_a_recorder_that_raises_is_dropped_with_a_warning(tiny, tmp_path):
    engine, seen = tiny.engine(), []

    def recorder(event):
        seen.append(event)
        if len(seen) == 2:
            raise OSError("disk full")

    record(engine, recorder)
    with pytest.raises(FileNotFoundError):  # said at once, and the old one goes on
        record(engine, tmp_path / "no" / "such" / "folder.jsonl")
    with pytest.warns(UserWarning, match="recording stopped: OSError: disk full"):
        out = engine.generate([[1, 2]], GREEDY)[0]
    assert out.token_ids == expected(tiny, [[1, 2]], GREEDY)[0] and len(seen) == 2


# ---------------------------------------------------------------------- Ctrl-C, threads, parts that do not fit


def test_ctrl_c_in_generate_drops_its_requests_and_keeps_the_others(tiny, after_forward):
    engine, inbox, calls = tiny.engine(), [], []
    engine.add_request("other", [1, 2], DRAWN, on_output=inbox.append)

    def interrupt(token_ids, hidden):
        calls.append(token_ids)
        if len(calls) == 4:
            raise KeyboardInterrupt

    after_forward(engine, interrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.generate([[3], [4]], GREEDY)
    assert list(engine.output_processor.parents) == ["other"]
    drain(engine)
    assert [t for o in inbox for t in o.token_ids] == expected(tiny, [[1, 2]], DRAWN)[0]


def test_a_scheduler_that_schedules_no_request_is_reported(tiny):
    engine = tiny.engine()
    engine.add_request("a", [1], GREEDY)
    engine.core.scheduler.admit_waiting = lambda output: None
    with pytest.raises(RuntimeError, match="it is stuck"):
        for _ in range(5):
            engine.step()
    engine.abort("a")


def test_a_real_ctrl_c_waits_for_the_end_of_the_step_and_loses_no_token(tiny, after_forward):
    """The step's outputs come with the next one."""
    engine = tiny.engine()
    after_forward(engine, lambda *_: engine.core.num_steps or signal.raise_signal(signal.SIGINT))
    engine.add_request("a", [5, 6, 7], GREEDY)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    got, errors = drain(engine)
    assert [got["a"][0]] == expected(tiny, [[5, 6, 7]], GREEDY) and not errors
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_parts_that_do_not_fit_together_are_refused(tiny):
    config = tiny.model.config
    scheduler = Scheduler(SchedulerConfig(max_model_len=128), BlockManager(20))
    with pytest.raises(ValueError, match="do not belong together"):
        tiny.engine(scheduler=scheduler, block_manager=BlockManager(20))
    unlimited = Scheduler(SchedulerConfig(), BlockManager(20))
    assert unlimited.max_model_len == 19 * 16 + 1
    tiny.engine(scheduler=unlimited)
    assert unlimited.max_model_len == 128  # what the model takes
    with pytest.raises(ValueError, match="kv_cache has 10 blocks of 16"):
        tiny.engine(scheduler=scheduler, kv_cache=PagedKVCache(config, 10, 16))
    with pytest.raises(ValueError, match="num_swap_blocks is 0"):
        tiny.engine(preemption="swap")
    with pytest.raises(LabError):
        LLMEngine.from_pretrained("/nowhere/at/all")


def test_two_threads_cannot_step_at_once_and_are_told_so(tiny, after_forward):
    """The second is refused while the first is in the model; to add and to abort from there is fine."""
    engine, said, threads = tiny.engine(), [], []

    def other_thread():
        with pytest.raises(RuntimeError, match="start no step") as refusal:
            engine.generate([[3, 4]], GREEDY)
        said.append(refusal)
        engine.add_request("late", [9, 8], DRAWN)
        engine.add_request("gone", [9, 8, 7], DRAWN)
        engine.abort("gone")

    def run_other(token_ids, hidden):
        if not threads:
            threads.append(threading.Thread(target=other_thread))
            threads[0].start()
            threads[0].join(timeout=60)

    after_forward(engine, run_other)
    engine.add_request("first", [5, 6], DRAWN)
    got, errors = drain(engine)
    assert said and not errors and set(got) == {"first", "late"}
    assert [got["first"][0], got["late"][0]] == expected(tiny, [[5, 6], [9, 8]], DRAWN)


def test_an_abort_by_another_thread_waits_until_the_step_is_decided(tiny):
    """Otherwise the scheduler gives blocks to a request that has ended, and they are lost."""
    engine, threads = tiny.engine(block_size=4), []
    reserve = engine.core.scheduler.reserve

    def abort_meanwhile(request, *args, **kwargs):
        if not threads and request.num_tokens == 5:
            threads.append(threading.Thread(target=engine.abort, args=("a",)))
            threads[0].start()
            threads[0].join(timeout=0.2)  # it would be done by now
        return reserve(request, *args, **kwargs)

    engine.core.scheduler.reserve = abort_meanwhile
    engine.add_request("a", [1, 2, 3, 4], GREEDY)
    engine.add_request("b", [5, 6], GREEDY)
    got, _ = drain(engine)
    threads[0].join()
    assert got["b"][0] == expected(tiny, [[5, 6]], GREEDY)[0]


def test_outputs_handed_out_earlier_do_not_change_later(tiny):
    engine, steps = tiny.engine(), []
    engine.add_request("other", [9], GREEDY, on_output=lambda o: steps.append((o, list(o.token_ids))))
    engine.generate([[5, 6, 7]], GREEDY)
    drain(engine)
    assert all(out.token_ids == then for out, then in steps)


@pytest.mark.parametrize(
    ("memory", "remedy"),
    [
        (10_000, "max_num_seqs or max_num_batched_tokens lower"),
        (100_000, "max_model_len to [1-9]\\d* or less"),
    ],
)
def test_a_context_that_the_memory_does_not_hold(monkeypatch, tiny, memory, remedy):
    monkeypatch.setattr("phase4_scheduler.assembly.build.memory_bytes", lambda: memory)
    with pytest.raises(ValueError, match=rf"GiB of KV cache.*set {remedy}, or num_blocks"):
        LLMEngine(tiny.model, None, EngineConfig(max_num_seqs=2))
