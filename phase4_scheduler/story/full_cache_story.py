"""Two chapters of server_lab.py that need no server: a full KV cache, and an engine without batching."""

import statistics
import time
from typing import Any

from labkit.lab import Lab
from phase2_attention_kvcache.model import SamplingParams
from phase4_scheduler.engine import LLMEngine, RequestOutput
from phase4_scheduler.features.recording import Event, record

BLOCK_SIZE, NUM_BLOCKS, PROMPT, USERS = 16, 40, 16, 8


def load_engine(lab: Lab, **settings: Any) -> LLMEngine:
    """The lab's model in an engine on the CPU."""
    return LLMEngine.from_pretrained(
        lab.args.model, dtype=lab.args.dtype, device="cpu", seed=lab.seed, **settings
    )


def serve_watched(
    engine: LLMEngine, prompts: list[list[int]], max_tokens: int
) -> tuple[list[RequestOutput], list[Event]]:
    """Outputs of greedy requests, and the events of the steps that wrote them."""
    steps: list[Event] = []
    record(engine, steps.append)
    outputs = engine.generate(prompts, SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True))
    record(engine, None)
    return outputs, steps


def num_preempted(steps: list[Event]) -> int:
    return sum(len(step["preempted"]) for step in steps)


def full_cache(lab: Lab) -> None:
    lab.title("A full KV cache is not out of memory")
    lab.say(f"""The pool of KV blocks is allocated once, when the engine starts. Here it has {NUM_BLOCKS} blocks of
        {BLOCK_SIZE} tokens, and {USERS} users with prompts of {PROMPT} tokens. First their answers are so long that all
        {NUM_BLOCKS} blocks are needed, and no more. Then they are longer.""")
    prompts = [[100 + 20 * user + i for i in range(PROMPT)] for user in range(USERS)]
    # The last token of an answer is never computed, so it needs no slot.
    exact = NUM_BLOCKS // USERS * BLOCK_SIZE - PROMPT + 1
    small = load_engine(lab, max_num_seqs=USERS, num_blocks=NUM_BLOCKS + 1, enable_prefix_caching=False)
    pool = small.core.runner.kv_cache.storage.data
    held = (pool.data_ptr(), pool.nbytes)
    _, steps = serve_watched(small, prompts, exact)
    usage = max(step["usage"] for step in steps)
    lab.predict(
        claim="kv-090-evicts",
        question=f"requests preempted while all {USERS} fit, usage of the cache rising to {usage:.0%}",
        predicted=0,
        measured=num_preempted(steps),
        source_says="evicts from 0.9 on",
        note="""No threshold exists. A request is preempted when a block is needed and none is free, whatever the
            gauge said before.""",
    )
    longer = exact + 4 * BLOCK_SIZE
    outputs, steps = serve_watched(small, prompts, longer)
    wide = load_engine(lab, max_num_seqs=USERS, enable_prefix_caching=False)
    free_of_want, roomy_steps = serve_watched(wide, prompts, longer)
    same = [out.token_ids for out in outputs] == [out.token_ids for out in free_of_want]
    lab.predict(
        claim="oom-kv",
        question=f"answers of {USERS} that fail when they need more blocks than there are",
        predicted=0,
        measured=sum(out.finish_reason != "length" for out in outputs),
        source_says="out of memory",
        note=f"""{num_preempted(steps)} preemptions instead ({num_preempted(roomy_steps)} with blocks for all): a preempted request gives its blocks
            back, waits, and is computed again. It costs time. Memory runs out elsewhere, if at all: in activations, or in
            another program.""",
    )
    lab.predict(
        claim="oom-kv",
        question="is the pool still where it was, and as large?",
        predicted=True,
        measured=held == (pool.data_ptr(), pool.nbytes),
    )
    lab.predict(
        claim="oom-kv",
        question="are the tokens those of an engine with room for all?",
        predicted=True,
        measured=same,
        # In 16 bit, sums in another order may be rounded to another token.
        kind="structure" if lab.args.dtype == "float32" else "timing",
    )


def without_batching(lab: Lab) -> None:
    users, tokens = 16, 24 if lab.quick else 96
    lab.title("What a server without continuous batching would lose")
    lab.say(f"""The article finds vLLM twice as fast as Ollama with many users, and says: Ollama has no continuous
        batching. Our engine can be told to run one request at a time. {users} users ask at once, with and without.""")
    engines = {num_seqs: load_engine(lab, max_num_seqs=num_seqs) for num_seqs in (1, users)}
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    prompts = [[100 + 20 * user + i for i in range(8)] for user in range(users)]
    step = {}
    for num_seqs, engine in engines.items():
        _, steps = serve_watched(engine, prompts[:num_seqs], 12)
        # After the prompts, and after the first decode step, which warms up.
        step[num_seqs] = statistics.median(event["seconds"] for event in steps[2:])
    seconds = {}
    for num_seqs in lab.progress(engines, "one at a time, and together"):
        began = time.perf_counter()
        engines[num_seqs].generate(prompts, params)
        seconds[num_seqs] = time.perf_counter() - began
    lab.predict(
        claim="no-continuous-batching",
        question=f"tokens per second for {users} users, together / one at a time",
        predicted=users * step[1] / step[users],
        measured=seconds[1] / seconds[users],
        source_says=2,
        unit="x",
        tolerance=0.3,
        kind="timing",
        note=f"""Predicted from two steps: {users} tokens in {1e3 * step[users]:.1f} ms against one in
            {1e3 * step[1]:.1f} ms. An engine that is only twice as slow with many users does batch. The server of
            llama.cpp, on which Ollama is built, has batched continuously since 2023; the factor has other causes.""",
    )
    lab.record(step_seconds=step, seconds=seconds)
