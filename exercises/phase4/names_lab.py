"""Debugging lab 4: a scheduler with a planted bug, blocks that record their tokens, and the symptom in the engine."""

import random
from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace

from exercises.judging.engine_runs import passed, same_or_stop, tales
from exercises.judging.sources import handed_out
from phase2_attention_kvcache.model import SamplingParams
from phase3_paged_attention.paging import BlockManager, BlockTable, hash_block
from phase4_scheduler.engine import (
    EngineConfig,
    LLMEngine,
    Request,
    RequestStatus,
    Scheduler,
    SchedulerConfig,
)

__all__ = ["RequestStatus", "play", "repair_in_the_engine", "show_symptom"]
NAME = "p4d1_names_without_blocks"


class LabScheduler(Scheduler):
    """The course's scheduler with the learner's `preempt`."""

    def __init__(self, config: SchedulerConfig, block_manager: BlockManager, preempt: Callable) -> None:
        super().__init__(config, block_manager)
        self.preempt = partial(preempt, self)


class WatchedManager(BlockManager):
    """The course's block manager, which notices when `uncache` gets a table that was freed before."""

    uncached_too_late = False

    def uncache(self, table: BlockTable, first: int = 0) -> None:
        self.uncached_too_late |= not table.blocks
        super().uncache(table, first)


# ---------------------------------------------------------------------- blocks that record their tokens


def play(seed: int, preempt: Callable) -> SimpleNamespace:
    """Run a random workload on blocks that record the tokens computed in them.

    Returns:
        plans, and the number of block hashes, after each step; lies: hashes whose block holds other tokens; counts of preemptions
        by request; contradictions.
    """
    rng = random.Random(seed)
    size = rng.choice((2, 4))
    manager = WatchedManager(1 + rng.randint(84, 120) // size, size)
    config = SchedulerConfig(
        max_num_seqs=6, max_num_batched_tokens=40, max_model_len=80, policy="priority",
        long_prefill_token_threshold=rng.choice((7, 11)),
    )  # fmt: skip
    scheduler = LabScheduler(config, manager, preempt)
    system_prompt = [rng.randrange(50) for _ in range(12)]
    requests = []
    for i in range(9):
        # A long prompt of low urgency: it arrives first, is computed in chunks, and gets preempted.
        patient = i < 3
        own = [rng.randrange(50) for _ in range(rng.randint(30, 60) if patient else rng.randint(3, 12))]
        prompt = (system_prompt if rng.random() < 0.5 else []) + own
        params = SamplingParams(
            max_tokens=rng.randint(2, 6) if patient else rng.randint(4, 20), ignore_eos=True
        )
        priority = 4 - i if patient else rng.randint(0, 1)
        requests.append(Request(f"{i}", prompt, params, arrival_time=i, priority=priority))
    log = SimpleNamespace(plans=[], names=[], lies=[], lies_of_half_filled=[], counts=[], stuck=False)
    log.broken_books = log.kept_computed = log.not_waiting = ""
    log.uncached_too_late = False
    memory, meaning = {}, {}
    chains = {request: [b""] for request in requests}  # names of the full blocks so far
    arrivals = {r: i if i < 3 else rng.randint(1, 14) for i, r in enumerate(requests)}
    for step in range(400):
        for request in requests:
            if arrivals[request] == step:
                scheduler.add(request)
        if not scheduler.has_requests and step > 14:
            log.counts = [r.num_preemptions for r in requests]
            return log
        try:
            output = scheduler.schedule()
            manager.check_integrity()
        except (RuntimeError, MemoryError) as error:
            log.broken_books = str(error)
            return log
        log.plans.append({s.request.request_id: s.num_tokens for s in output.scheduled})
        waiting = list(scheduler.waiting)
        for r in output.preempted:
            if r not in waiting:
                log.not_waiting = log.not_waiting or f"request {r.request_id} in step {step}"
            elif r.num_computed_tokens:
                log.kept_computed = log.kept_computed or f"request {r.request_id} in step {step}"
            elif r.block_table.blocks:
                log.broken_books = log.broken_books or f"request {r.request_id} waits, and keeps its blocks"
        for (
            s
        ) in output.scheduled:  # the model computes: record for each place its token and all tokens before it
            blocks, tokens = s.request.block_table.block_ids, s.request.token_ids
            for place in range(s.num_computed, s.num_computed + s.num_tokens):
                if place // size < len(blocks):
                    memory[blocks[place // size], place % size] = tuple(tokens[: place + 1])
        for request, chain in chains.items():
            for end in range(size * len(chain), len(request.token_ids) + 1, size):
                chain.append(hash_block(chain[-1], request.token_ids[end - size : end]))
                meaning[chain[-1]] = request.token_ids[:end]
        _compare_names(manager, memory, meaning, log, step)
        scheduler.update(output, [[rng.randrange(50)] if s.samples else [] for s in output.scheduled])
    log.stuck = True
    return log


def _compare_names(manager, memory, meaning, log, step) -> None:
    size, names = manager.block_size, 0
    for block in manager.allocator.blocks:
        if block.block_hash is None:
            continue
        names += 1
        tokens = meaning[block.block_hash]
        start = len(tokens) - size
        at = block.block_id
        wrong = [i for i in range(size) if memory.get((at, i)) != tuple(tokens[: start + i + 1])]
        if wrong:
            log.lies.append(f"block {at} after step {step + 1}: places {wrong} of it were never filled")
            log.lies_of_half_filled.append(wrong[0] > 0)
            log.uncached_too_late |= manager.uncached_too_late
    log.names.append(names if manager.enable_prefix_caching else -1)


# ---------------------------------------------------------------------- the symptom

NUM_BLOCKS, CHUNK = 39, 16  # with these the bug shows
BEFORE = (
    "Down by the harbour lay an old ship. The sailors were singing, and the captain counted his barrels of salt. "
    * 8
)
PROMPTS = {
    "alice": (
        "Once upon a time there was a king who had three sons. The eldest was strong, the second was clever, and the youngest "
        "had a good heart. One day the king fell ill, and no doctor in the whole kingdom could help him. Then an old woman "
        "came to the gate and said: In the garden at the end of the world there stands a tree with golden apples. Whoever "
        "eats of them will be well again. So the eldest son took the best horse and rode away, and he did not come back. The "
        "second son took the next best horse, and he did not come back either. Then the youngest",
        2,  # the least urgent
        24,
    ),
    "bob": ("The sea was calm, but the old fisherman", 0, 8),
    "carol": ("Nobody knew where the little door", 1, 8),
}


def serve(preempt: Callable | None, num_blocks: int = NUM_BLOCKS) -> list[str]:
    """The answers to three prompts. alice, whose prompt is long, comes a step before the others."""
    model, tokenizer = tales()
    config = SchedulerConfig(
        max_num_seqs=4, max_num_batched_tokens=3 * CHUNK, max_model_len=300, policy="priority",
        long_prefill_token_threshold=CHUNK,
    )  # fmt: skip
    manager = BlockManager(num_blocks, 4)
    scheduler = Scheduler(config, manager) if preempt is None else LabScheduler(config, manager, preempt)
    engine = LLMEngine(model, tokenizer, EngineConfig(), scheduler=scheduler)
    old = tokenizer.encode(BEFORE)[: 4 * (NUM_BLOCKS - 2)]
    # Memory is never empty.
    engine.generate([old], SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
    answers: dict[str, list[int]] = {name: [] for name in PROMPTS}

    def step() -> None:
        for output in engine.step():
            answers[output.request_id] += output.token_ids

    for i, (name, (prompt, priority, length)) in enumerate(PROMPTS.items()):
        params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
        engine.add_request(name, prompt, params, priority=priority, arrival_time=i)
        if i == 0:
            step()
    while engine.has_unfinished_requests:
        step()
    return [tokenizer.decode(ids) for ids in answers.values()]


def show_symptom() -> None:
    """Three answers, with memory for all and with memory short, as the planted bug gives them."""
    buggy = handed_out(NAME, "preempt")
    well, ill = serve(buggy, 150), serve(buggy)
    for (name, (prompt, *_)), a, b in zip(PROMPTS.items(), well, ill):
        print(f"{name}: ...{prompt[-40:]}")
        print(f"  memory for all: {a!r}")
        print(f"  memory short:   {b!r}")
        if a != b:
            print("                  another answer!")


def repair_in_the_engine(preempt: Callable, lying: Iterable[int]) -> None:
    """The same, with the learner's repair, beside the course's scheduler."""
    passed(NAME, preempt, lying)
    mine = serve(preempt)
    for course in (serve(None), serve(None, 150)):
        same_or_stop(mine, course, "with your repair an answer still depends on how much memory there is")
    for name, answer in zip(PROMPTS, mine):
        print(f"{name}: {answer!r}")
    print(
        "\nEvery user gets the same answer whether memory is short or not, as with the course's own scheduler."
    )
