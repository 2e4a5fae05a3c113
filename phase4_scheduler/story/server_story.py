"""Chapters of server_lab.py: why two processes, the wait, the hit rate, reading speed."""

import asyncio
import multiprocessing
import statistics
import sys
import time
from multiprocessing.pool import ThreadPool
from pathlib import Path

import torch

from labkit.lab import Lab
from labkit.models import find_model
from phase1_tokens_embeddings.weights.gguf_model import load_tokenizer
from phase2_attention_kvcache.model import SamplingParams
from phase4_scheduler.engine import LLMEngine
from phase4_scheduler.server.client import RunningServer, running_server, send_all
from phase4_scheduler.story.full_cache_story import load_engine
from phase4_scheduler.story.windows import BEGINNINGS

MAX_NUM_SEQS = 8
ARTICLE_QUERIES = {
    "vllm:time_to_first_token_seconds": "vllm:time_to_first_token_seconds",
    "vllm:time_per_output_token_seconds": "vllm:inter_token_latency_seconds",
    "vllm:gpu_prefix_cache_hit_rate": "vllm:prefix_cache_hits_total / vllm:prefix_cache_queries_total",
    "vllm:gpu_cache_usage_perc": "vllm:kv_cache_usage_perc",
}


def tokenise(folder: str, seconds: float) -> None:
    """What the API process does for a very long prompt, for so long."""
    tokenizer, until = load_tokenizer(Path(folder)), time.monotonic() + seconds
    while time.monotonic() < until:
        tokenizer.encode(" ".join(f"word{i}" for i in range(1000)))


def decode_steps(engine: LLMEngine, seconds: float) -> list[float]:
    """Milliseconds of each decode step of four users, for so long."""
    params = SamplingParams(temperature=0, ignore_eos=True)
    users = [f"user-{i}" for i in range(4)]
    for i, user in enumerate(users):
        engine.add_request(user, [100 + i, 200, 300], params)
    engine.step()
    times, until = [], time.perf_counter() + seconds
    while engine.has_unfinished_requests and time.perf_counter() < until:
        began = time.perf_counter()
        engine.step()
        times.append(1e3 * (time.perf_counter() - began))
    for user in users:
        engine.abort(user)
    return times


def two_processes(lab: Lab) -> None:
    seconds = 1.0 if lab.quick else 4.0
    folder = str(find_model(lab.args.model))
    lab.title("Why two processes")
    lab.say("""Four users decode. Meanwhile another user's very long prompt is tokenized: first in another process,
        then in a thread of the engine's own. Python runs one thread of a process at a time, so two threads that both have
        work to do take turns.""")
    spawn = multiprocessing.get_context("spawn")
    times: dict[str, list[float]] = {}
    cores = torch.get_num_threads()
    torch.set_num_threads(max(1, cores - 1))  # a core is left for the other process
    try:
        engine = load_engine(lab, max_num_seqs=4)  # its kernels take as many threads as torch has now
        decode_steps(engine, 0.3)  # warms up
        # (An interrupted program would wait for ever for the process of a `ProcessPoolExecutor`. A `Pool` ends its own.)
        with spawn.Pool(1) as process, ThreadPool(1) as thread:
            ways = {"nowhere": None, "in another process": process, "in a thread": thread}
            for name, pool in lab.progress(ways.items(), "tokenising beside the steps"):
                if pool is not None:
                    pool.apply(tokenise, (folder, 0.0))  # its imports are no part of the prompt
                    pool.apply_async(tokenise, (folder, seconds + 1))
                times[name] = decode_steps(engine, seconds)
                if pool is not None:
                    pool.close()
                    pool.join()
    finally:
        torch.set_num_threads(cores)
    medians = {name: statistics.median(each) for name, each in times.items()}
    alone, turn = medians["nowhere"], 1e3 * sys.getswitchinterval()
    lab.predict(
        claim="two-processes",
        question="a step beside a thread that tokenises is so many times as long (predicted: with a turn of Python's lock)",
        predicted=(alone + turn) / alone,
        measured=medians["in a thread"] / alone,
        unit="x",
        tolerance=0.5,
        kind="timing",
        note=f"""A thread that computes in Python holds its lock, and is asked to release it after a turn of {turn:.0f} ms. A step, alone
            {alone:.1f} ms long, gives it away by itself at each call of torch, and may wait a turn to get it back; a compiled step
            has few such calls. So vLLM and `lab serve` give HTTP, tokens and texts a process of their own, and the engine's
            process only steps.""",
    )
    lab.table(
        "A step of four users, while a prompt is tokenized",
        ["the prompt is tokenized", "step, ms", "times as long"],
        [[name, medians[name], medians[name] / alone] for name in ways],
        note="""Beside another process it should take no longer, if each has a core of its own. Where it does, the system has put
            both on one core for some of the time, or the cores share something.""",
    )
    lab.record(step_milliseconds=medians)


def over_the_wire(lab: Lab) -> None:
    a = lab.args
    with running_server(
        a.model, "--dtype", a.dtype, "--max-num-seqs", str(MAX_NUM_SEQS), "--device", "cpu"
    ) as server:
        hit_rate(lab, server)
        where_the_wait_is(lab, server)
        what_queries_find(lab, server)


def hit_rate(lab: Lab, server: RunningServer) -> None:
    users, block = 8, 16
    lab.title("The hit rate depends on the lengths")
    lab.say(f"""`lab serve` runs now, at {server.address}. {users} users come, one after another. All their prompts begin with the
        same system prompt of 64 tokens, and go on differently: in a chat with 32 tokens, in a question about a document with 192. The first user's
        prompt is computed whole. After that the 64 tokens are found in the cache, in whole blocks of {block}.""")
    for kind, own in (("chat", 32), ("documents", 192)):
        shared = [300 + own + i for i in range(64)]  # another system prompt for each kind
        before = server.metrics()
        for user in range(users):
            prompt = [*shared, *(1000 + 200 * user + i for i in range(own))]
            asyncio.run(send_all(server.address, [{"prompt": prompt, "max_tokens": 1}]))
        after = server.metrics()
        hits, queries = (
            after[f"vllm:prefix_cache_{name}_total"] - before[f"vllm:prefix_cache_{name}_total"]
            for name in ("hits", "queries")
        )
        lab.predict(
            claim="hit-rate-chat",
            question=f"hit rate of {kind}: 64 tokens shared, {own} of one's own",
            predicted=(users - 1) * 64 / (users * (64 + own)),
            measured=hits / queries,
            source_says="above 0.5" if kind == "chat" else None,
            tolerance=1e-9,
            note="" if kind == "chat" else "The same system prompt, the same engine, and no fault anywhere.",
        )


def where_the_wait_is(lab: Lab, server: RunningServer) -> None:
    loads = (1, MAX_NUM_SEQS, 4 * MAX_NUM_SEQS)
    tokens = 16 if lab.quick else 48
    lab.title("Where the wait for the first word comes from")
    lab.say(f"""The server runs {MAX_NUM_SEQS} sequences at a time (`--max-num-seqs`). 1, {MAX_NUM_SEQS} and {4 * MAX_NUM_SEQS} clients ask at once, as often as
        it takes to see a mean. A histogram of Prometheus holds a sum and a count, so the mean of what happened between
        two scrapes is the difference of the sums over the difference of the counts.""")
    rows, seconds = [], {}
    for users in lab.progress(loads, "clients"):
        bodies = [
            {"prompt": [50 + i % 400] * 24, "max_tokens": tokens, "ignore_eos": True} for i in range(users)
        ]
        before, answers = server.metrics(), []
        for _ in range(max(1, 16 // users)):
            answers += asyncio.run(send_all(server.address, bodies))
        after = server.metrics()
        ttft, queue, prefill = (
            mean_ms(name, before, after)
            for name in ("time_to_first_token", "request_queue_time", "request_prefill_time")
        )
        by_clients = 1e3 * statistics.mean(answer.ttft for answer in answers)
        rows.append([users, queue, prefill, ttft - queue - prefill, ttft, by_clients])
        seconds[users] = statistics.mean(answer.ended - answer.sent for answer in answers)
    lab.table(
        "The mean TTFT by its parts, milliseconds",
        ["clients", "queue", "prefill", "the rest", "TTFT, server", "TTFT, clients"],
        rows,
        note="The rest: tokenising, the way to the engine and back.",
    )
    # Four waves of clients wait for 0, 1, 2 and 3 rounds of answers; and then as long as 8 clients do.
    waiting, served = 1.5e3 * seconds[MAX_NUM_SEQS], rows[1][4]
    lab.predict(
        claim="ttft-parts",
        question=f"share of TTFT that is waiting in the queue, {4 * MAX_NUM_SEQS} clients, {MAX_NUM_SEQS} sequences at a time",
        predicted=waiting / (waiting + served),
        measured=rows[-1][1] / rows[-1][4],
        tolerance=0.15,
        kind="timing",
        note="""The article's figures belong to its GPU. That queueing dominates under load holds anywhere: a quarter of the
            clients is served at once, the others wait for one, two or three whole rounds of answers.""",
    )
    lab.record(ttft_parts=rows)


def mean_ms(name: str, before: dict[str, float], after: dict[str, float]) -> float:
    """The mean of what a histogram of seconds took in between two looks, in milliseconds."""
    total, count = (
        after[f"vllm:{name}_seconds_{x}"] - before[f"vllm:{name}_seconds_{x}"] for x in ("sum", "count")
    )
    return 1e3 * total / count


def what_queries_find(lab: Lab, server: RunningServer) -> None:
    lab.title("Four queries of an article")
    lab.say("""The article watches four metrics. Names change from version to version, and Prometheus does not say that a
        name is unknown: the query is just empty, and an alarm that uses it never goes off. Our server has
        the names of vLLM 0.32; a test compares them with a recording of the real one.""")
    text = server.call("/metrics")[1]
    there = {name: f"# TYPE {name} " in text for name in ARTICLE_QUERIES}
    lab.table(
        "The article's metrics",
        ["name", "there", "what vLLM 0.32 has"],
        [[name, there[name], instead] for name, instead in ARTICLE_QUERIES.items()],
    )
    lab.predict(
        claim="promql-names",
        question="metrics of the article's four that exist",
        predicted=1,
        measured=sum(there.values()),
        source_says=4,
    )


def reading_speed(lab: Lab) -> None:
    lab.title("How fast is fast enough?")
    lab.say("""People read 238 words of non-fiction per minute in silence (Brysbaert 2019, 190 studies). A word is more than one token. So
        there is an ITL at which the text comes just as fast as it is read.""")
    tokenizer = load_tokenizer(find_model(lab.args.model))
    texts = [out.text for out in load_engine(lab, max_num_seqs=8).generate(
        list(BEGINNINGS.values()), SamplingParams(max_tokens=100, seed=lab.seed, ignore_eos=True)
    )]  # fmt: skip
    per_word = sum(len(tokenizer.encode(text)) for text in texts) / sum(len(text.split()) for text in texts)
    lab.predict(
        claim="slo-guidance",
        question="ITL at which text comes as fast as it is read, ms",
        predicted=60_000 / 238 / 1.3,
        measured=60_000 / 238 / per_word,
        source_says=100,
        unit="ms",
        tolerance=0.3,
        kind="timing",
        note=f"""Predicted with 1.3 tokens per word, the rule of thumb for English and large vocabularies; this model's texts have
            {per_word:.2f}. So 100 ms is still twice as fast as one reads. It is noticed when one skims, or when
            no person reads along: a program that waits for the whole answer.""",
    )
