"""The chapters of disaggregation.py that run: what is handed over, what copying costs, deaths, and a stream that others disturb."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch

from labkit.lab import Lab
from labkit.machine import time_calls
from labkit.paths import ROOT
from phase2_attention_kvcache.model import SamplingParams
from phase4_scheduler.engine import LLMEngine
from phase5_real_gpu.parallel.block_transfer import copy_blocks
from phase5_real_gpu.parallel.engine_worker import WorkerConfig, own_cores
from phase5_real_gpu.parallel.proxy import Proxy
from phase5_real_gpu.parallel.replicas import Replicas
from phase5_real_gpu.parallel.shared_memory import create_shared_memory

BLOCK_SIZE = 16
SETTINGS = dict(block_size=BLOCK_SIZE, num_blocks=600, max_num_seqs=32, max_num_batched_tokens=256)
WORKER = WorkerConfig("tales", "float32", SETTINGS)
BLOCK_BYTES = 2 * 6 * BLOCK_SIZE * 256 * 4  # keys and values, layers, tokens, numbers, bytes


def answers_of(front: Any, requests: dict[str, tuple[list[int], SamplingParams]]) -> dict[str, list[int]]:
    """Send all requests, and collect their answers."""
    for name, (prompt, params) in requests.items():
        front.add(name, prompt, params)
    answers: dict[str, list[int]] = {name: [] for name in requests}
    missing = set(answers)
    while missing:
        for new in front.poll():
            answers[new.request_id] += new.token_ids
            if new.finish_reason:
                missing.discard(new.request_id)
    return answers


def make_requests(tokenizer: Any, number: int) -> dict[str, tuple[list[int], SamplingParams]]:
    """Questions about one story: the same 200 tokens, and an end of its own."""
    text = (ROOT / "phase1_tokens_embeddings" / "texts" / "tales.txt").read_text(encoding="utf-8")
    ids = tokenizer.encode(text)
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    return {
        f"question {i + 1}": (ids[:200] + ids[300 + 40 * i : 330 + 45 * i], params) for i in range(number)
    }


def hand_over(lab: Lab) -> None:
    lab.title("What goes from one to the other")
    lab.say("""A prompt ends where its keys and values are computed. To write the answer, no more of it is needed. So the prefill process
        computes the prompt and keeps its blocks, and tells where they are and until when (the lease). The decode process gives the
        request blocks of its own, reads the others' into them while it goes on with its steps, and says "done".""")
    engine = LLMEngine.from_pretrained("tales", dtype="float32", device="cpu", num_blocks=600)
    requests = make_requests(engine.tokenizer, 6)
    expected = {
        name: engine.generate([prompt], params)[0].token_ids for name, (prompt, params) in requests.items()
    }
    rows, answers, cached = [], {}, 0
    proxy = Proxy(WORKER, WORKER)
    proxy.start()
    try:
        before = 0
        for name, request in requests.items():
            answers |= answers_of(proxy, {name: request})
            loaded = proxy.workers["decode"].books()["num_blocks_loaded"]
            length, read = len(request[0]), loaded - before
            here = -(-length // BLOCK_SIZE) - read
            cached += here
            rows.append([name, length, here, read, read * BLOCK_BYTES / 1e6])
            before = loaded
        books = proxy.workers["decode"].books()
    finally:
        proxy.stop()
    lab.table(
        "One question after the other, about the same story",
        ["", "tokens", "blocks there", "blocks read", "MB"],
        rows,
        note="Blocks there: in the decode side's prefix cache, from an earlier question. They are not read again.",
    )
    lab.predict(
        claim="pd-same-tokens",
        question="six answers of 24 tokens: how many tokens differ from those of one engine?",
        predicted=0,
        measured=sum(a != b for name in requests for a, b in zip(expected[name], answers[name], strict=True)),
    )
    blocks = [-(-len(prompt) // BLOCK_SIZE) for prompt, _ in requests.values()]
    shared = 200 // BLOCK_SIZE
    lab.predict(
        claim="pd-bytes",
        question=f"how many bytes are read for these six prompts? A block has {BLOCK_BYTES:,}, the first {shared} are the same in all",
        predicted=(sum(blocks) - shared * (len(blocks) - 1)) * BLOCK_BYTES,
        measured=books["num_bytes_loaded"],
        unit="bytes",
        note="All blocks of the first prompt, and of each other one those that it does not share.",
    )
    lab.record(blocks_read=[row[3] for row in rows], blocks_cached=cached)


def copying(lab: Lab) -> None:
    lab.title("What copying costs")
    lab.say("""A prompt of 512 tokens of GPT-2's size is 32 blocks, 18.9 MB. They lie in shared memory, and not side by side: keys and
        values, layer by layer, are far apart. How much of the speed of one plain copy is left?""")
    num_blocks, moved = 200, 32
    n = 2 * 12 * num_blocks * BLOCK_SIZE * 12 * 64 * 2
    path, memory = create_shared_memory(n)
    path.unlink()
    source = memory.view(torch.bfloat16).view(2, 12, num_blocks, BLOCK_SIZE, 12, 64)
    target = torch.ones_like(source)  # written to before, as a cache in use
    plain_a = torch.ones(moved * n // num_blocks, dtype=torch.uint8)
    plain_b = torch.ones_like(plain_a)
    together = [(20 + i, 100 + i) for i in range(moved)]
    apart = [(5 * i + 3, 199 - 6 * i) for i in range(moved)]
    times = dict(plain=[], together=[], apart=[])
    torch_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(3 if lab.quick else 7):  # in turns
            times["plain"] += time_calls(lambda: plain_b.copy_(plain_a), repeats=5)
            for name, pairs in (("together", together), ("apart", apart)):
                times[name] += time_calls(
                    lambda pairs=pairs: copy_blocks(source, target, pairs, float("inf")), repeats=5
                )
    finally:
        torch.set_num_threads(torch_threads)
    took = {name: min(values) for name, values in times.items()}
    size = plain_a.nbytes
    lab.table(
        f"{size / 1e6:.1f} MB, one core",
        ["", "ms", "GB/s"],
        [
            ["one plain copy", took["plain"] * 1e3, size / took["plain"] / 1e9],
            ["32 blocks side by side", took["together"] * 1e3, size / took["together"] / 1e9],
            ["32 blocks all over the cache", took["apart"] * 1e3, size / took["apart"] / 1e9],
        ],
    )
    lab.predict(
        claim="pd-copy-speed",
        question="blocks all over the cache: which share of a plain copy's speed is reached?",
        predicted=[0.5, 1.1],
        between=True,
        measured=took["plain"] / took["apart"],
        kind="timing",
        note="Computing that prompt took about 340 ms on the machine of this course, copying it takes a few.",
    )


def deaths(lab: Lab) -> None:
    lab.title("If one of them dies")
    lab.say("""Eight answers are being written. The prefill process is killed, then the decode process. The proxy starts each again.
        Meanwhile the decode process computes prompts itself; and what it was writing when it died is asked for once more,
        without what users have seen already.""")
    engine = LLMEngine.from_pretrained("tales", dtype="float32", device="cpu", num_blocks=600)
    requests = {
        name: (prompt, replace(params, max_tokens=60))
        for name, (prompt, params) in make_requests(engine.tokenizer, 8).items()
    }
    prompts, params = zip(*requests.values(), strict=True)
    expected = [output.token_ids for output in engine.generate(list(prompts), list(params))]
    proxy = Proxy(WORKER, WORKER)
    proxy.start()
    seen: dict[str, list[int]] = {name: [] for name in requests}
    ended: set[str] = set()
    try:
        names = list(requests)
        for name in names[:4]:
            proxy.add(name, *requests[name])
        proxy.workers["prefill"].process.kill()
        for name in names[4:]:
            proxy.add(name, *requests[name])
        killed = False
        while len(ended) < len(names):
            for new in proxy.poll():
                seen[new.request_id] += new.token_ids
                if new.finish_reason:
                    ended.add(new.request_id)
            if not killed and sum(map(len, seen.values())) > 100:
                killed = True
                proxy.workers["decode"].process.kill()
        restarts = proxy.num_restarts
    finally:
        proxy.stop()
    lab.predict(
        claim="pd-deaths",
        question="both processes were killed once, in the middle of eight answers: how many tokens are lost, doubled or wrong?",
        predicted=0,
        measured=sum(
            abs(len(a) - len(b)) + sum(x != y for x, y in zip(a, b))
            for a, b in zip(expected, seen.values(), strict=True)
        ),
        note=f"{restarts} processes were started again.",
    )


def stall(lab: Lab) -> None:
    lab.title("One answer, while others bring long prompts")
    cores = own_cores()
    if len(cores) < 2:
        lab.say("(Left out: it needs two CPU cores for this process, on Linux.)")
        return
    lab.say("""One user reads along. Eight others come, one after the other, with prompts of 900 tokens. The largest gap between two
        tokens of the reader is what contention means.""")
    first, second = (replace(WORKER, core=core) for core in cores[:2])
    cases = [
        ("one engine, chunks of 1,024", Replicas([replace(second, settings=SETTINGS | chunk(1024))])),
        ("one engine, chunks of 32", Replicas([replace(second, settings=SETTINGS | chunk(32))])),
        ("prefill and decode apart", Proxy(replace(first, settings=SETTINGS | chunk(1024)), second)),
    ]
    rows, worst = [], {}
    for name, front in cases:
        front.start()
        try:
            gaps, seconds = gaps_of_reader(front)
        finally:
            front.stop()
        worst[name] = max(gaps) / median(gaps)
        rows.append([name, median(gaps) * 1e3, max(gaps) * 1e3, worst[name], seconds])
    lab.table(
        "Gaps between the tokens of one answer",
        ["", "median ms", "largest ms", "ratio", "all prompts done, s"],
        rows,
    )
    lab.predict(
        claim="pd-contention",
        question="the reader's largest gap over the usual one, prefill and decode apart",
        predicted=[1.0, 10.0],
        source_says=1.0,
        between=True,
        measured=worst["prefill and decode apart"],
        kind="timing",
        note="No step of the reader has a prompt in it any more. Reading blocks takes memory bandwidth and, with a core each, time "
        "of the same core.",
    )
    lab.record(gap_ratios=worst)


def chunk(tokens: int) -> dict[str, int]:
    return {"max_num_batched_tokens": tokens}


def gaps_of_reader(front: Any) -> tuple[Sequence[float], float]:
    """Gaps between tokens of one answer while eight long prompts come; and how long those took, all together."""
    reader = SamplingParams(temperature=0, max_tokens=900, ignore_eos=True)
    other = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    front.add("reader", list(range(1, 20)), reader)
    times: list[float] = []
    sent, ended, began = 0, 0, 0.0
    while ended < 8:
        for new in front.poll():
            if new.request_id == "reader":
                times += [new.time] * len(new.token_ids)
            elif new.finish_reason:
                ended += 1
        if len(times) > 20 and sent == ended and sent < 8:
            began = began or time.perf_counter()
            front.add(f"long {sent}", [(37 * sent + 11 * i) % 8000 for i in range(900)], other)
            sent += 1
    seconds = time.perf_counter() - began
    front.requests.clear()
    return [b - a for a, b in zip(times[10:], times[11:])], seconds
