"""Prefill apart from decode: the same tokens as from one engine, every byte counted, no block lost, whoever dies."""

import random
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from labkit.errors import LabError
from phase2_attention_kvcache.model import ModelConfig, SamplingParams, Transformer
from phase4_scheduler.engine import EngineConfig, LLMEngine, Request
from phase4_scheduler.server.engine_process import Add
from phase5_real_gpu.parallel.block_transfer import KVLayout, Peer, copy_blocks, runs
from phase5_real_gpu.parallel.engine_worker import Worker, WorkerConfig, decode_core, prefill_core
from phase5_real_gpu.parallel.proxy import ONE_TOKEN, Proxy
from phase5_real_gpu.parallel.shared_memory import create_shared_memory

TINY = ModelConfig(
    name="tiny", family="gpt2", num_layers=2, d_model=32, num_heads=2, num_kv_heads=2, head_dim=16, d_ff=64,
    vocab_size=101, max_context=128, tied=True,
)  # fmt: skip
SIZE = 8  # tokens a block


class Clock:
    """Seconds as a test wants them."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture(scope="module")
def model():
    """In float64, so that no two ways of adding give another token."""
    made = Transformer.random(TINY, seed=3).double()
    for parameter in made.parameters():  # larger weights: answers that depend on every token
        if parameter.ndim == 2:
            parameter.data *= 15
    return made


class Pair:
    """A prefill and a decode engine in this process, and what stands between them, step by step."""

    def __init__(self, model, clock, lease_seconds=30.0, num_blocks=(60, 40)):
        settings = dict(block_size=SIZE, max_num_seqs=16, max_num_batched_tokens=64)
        self.model = model
        self.prefill, self.memory = prefill_core(
            model, EngineConfig(num_blocks=num_blocks[0], **settings), lease_seconds, clock=clock
        )
        self.decode = decode_core(model, EngineConfig(num_blocks=num_blocks[1], **settings), clock=clock)
        self._let_loads_be_told(self.decode.scheduler.connector)
        self.tokens, self.ended = {}, {}
        self.to_decode = {}  # request -> what the prefill side said of its blocks
        self.params = {}

    def _let_loads_be_told(self, connector):
        """The loader's thread begins a load when the test says so. Time flies here: how soon a thread gets its turn on this
        machine would decide which leases run out meanwhile."""
        self.asked, self.may, self.over = 0, threading.Semaphore(0), threading.Semaphore(0)
        start, load = connector.start_load_kv, connector._load

        def start_load_kv(loads):
            self.asked += len(loads)
            start(loads)

        def when_told(one):
            self.may.acquire()
            try:
                return load(one)
            finally:
                self.over.release()

        connector.start_load_kv, connector._load = start_load_kv, when_told

    def finish_loads(self):
        for _ in range(self.asked):
            self.may.release()
            self.over.acquire()
        self.asked = 0

    def add(self, name, prompt, params):
        self.tokens[name], self.params[name] = [], (prompt, params)
        request = Request(name, prompt, ONE_TOKEN)
        request.extras["kv_transfer_params"] = {"do_remote_decode": True}
        self.prefill.add(request)

    def step_prefill(self):
        for output in self.prefill.step().outputs:
            self.to_decode[output.request_id] = output.extras["kv_transfer_params"]

    def compute_prompts(self, requests):
        """All of them, by the prefill side. Nothing is handed over yet."""
        for i, request in enumerate(requests):
            self.add(str(i), *request)
        while len(self.to_decode) < len(requests):
            self.step_prefill()

    def hand_over(self, name):
        prompt, params = self.params[name]
        request = Request(name, prompt, params)
        request.extras["kv_transfer_params"] = self.to_decode.pop(name)
        self.decode.add(request)

    def step_decode(self, finish_loads=True):
        for output in self.decode.step().outputs:
            self.tokens[output.request_id] += output.token_ids
            if output.finish_reason:
                self.ended[output.request_id] = output.finish_reason
        if finish_loads:
            self.finish_loads()

    def close(self):
        self.finish_loads()
        for core in (self.prefill, self.decode):
            core.scheduler.connector.shutdown()
        self.memory.unlink(missing_ok=True)

    def leaks(self):
        for core in (self.prefill, self.decode):
            core.block_manager.check_integrity()
        return [
            core.block_manager.num_blocks - 1 - core.block_manager.num_free_blocks
            for core in (self.prefill, self.decode)
        ]


def make_requests(number, seed):
    """Prompts, some of which begin alike; greedy, or with a seed."""
    rng = random.Random(seed)
    beginnings = [[rng.randrange(101) for _ in range(24)] for _ in range(3)]
    requests = []
    for i in range(number):
        own = [rng.randrange(101) for _ in range(rng.randrange(1, 30))]
        prompt = rng.choice(beginnings)[: rng.choice([0, 0, 8, 16, 24])] + own
        length, chance = rng.randrange(1, 24), rng.random() < 0.3
        params = SamplingParams(
            temperature=0.8 if chance else 0, seed=i if chance else None, max_tokens=length, ignore_eos=True
        )
        requests.append((prompt, params))
    return requests


@pytest.fixture(scope="module")
def alone(model):
    """What one engine answers to these requests."""

    def answers(requests):
        engine = LLMEngine(model, config=EngineConfig(num_blocks=400, block_size=SIZE))
        prompts, params = zip(*requests, strict=True)
        return [output.token_ids for output in engine.generate(prompts, params)]

    return answers


def test_same_tokens_with_preemption_aborts_and_leases_that_run_out(model, alone):
    requests, clock = make_requests(120, seed=1), Clock()
    expected = alone(requests)
    pair, rng = Pair(model, clock, lease_seconds=5.0), random.Random(2)
    waiting = [str(i) for i in range(len(requests))]
    aborted, late = set(), 0
    try:
        while waiting or any(name not in pair.ended for name in pair.tokens if name not in aborted):
            if waiting and rng.random() < 0.7:
                name = waiting.pop(0)
                pair.add(name, *requests[int(name)])
            pair.step_prefill()
            for name in list(pair.to_decode):
                if rng.random() < 0.5:  # the proxy takes its time
                    late += clock.now >= pair.to_decode[name]["lease_until"]
                    pair.hand_over(name)
            # Some leases run out, and some aborts come, while blocks are on their way.
            pair.step_decode(finish_loads=rng.random() < 0.6)
            clock.now += rng.choice([0.1, 0.1, 0.1, 6.0])
            if rng.random() < 0.1 and (names := sorted(pair.tokens.keys() - pair.ended.keys() - aborted)):
                aborted.add(name := rng.choice(names))
                pair.to_decode.pop(name, None)
                pair.prefill.finish(name, "abort")
                pair.decode.finish(name, "abort")
        until = time.monotonic() + 10
        while (pair.prefill.scheduler.has_requests or pair.decode.scheduler.has_requests) and (
            time.monotonic() < until
        ):
            clock.now += 6.0
            pair.step_prefill()
            pair.step_decode()
        for i, answer in enumerate(expected):
            if str(i) not in aborted:
                assert pair.tokens[str(i)] == answer, i
        assert pair.leaks() == [0, 0]
        # It was what it is meant to be.
        assert len(aborted) > 5 and late > 5 and pair.decode.stats.num_preemptions > 5
        assert (
            pair.prefill.scheduler.connector.num_expired > 5
            and pair.decode.scheduler.connector.num_blocks_loaded > 100
        )
        assert pair.decode.scheduler.connector.num_failed > 5
    finally:
        pair.close()


def until_done(pair, names):
    """Steps of both until these requests are answered."""
    until = time.monotonic() + 20
    while any(name not in pair.ended for name in names) and time.monotonic() < until:
        pair.step_prefill()
        for name in list(pair.to_decode):
            pair.hand_over(name)
        pair.step_decode()


def test_every_byte_is_counted_and_what_is_cached_is_not_read_again(model, alone):
    beginning = list(range(20))  # two full blocks, and four tokens
    requests = [(beginning + [40 + i] * n, SamplingParams(temperature=0, max_tokens=3, ignore_eos=True))
                for i, n in enumerate((5, 9, 12, 12))]  # fmt: skip
    pair = Pair(model, Clock())
    try:
        read = []
        for i, request in enumerate(requests):
            pair.add(str(i), *request)
            until_done(pair, [str(i)])
            read.append(pair.decode.scheduler.connector.num_blocks_loaded - sum(read))
        assert [pair.tokens[str(i)] for i in range(4)] == alone(requests)
        assert read == [4, 2, 2, 2]  # of 4, 4, 4 and 4 blocks: the first two are there
        of_a_block = 2 * 2 * SIZE * 2 * 16 * 8  # keys and values, layers, tokens, heads, numbers, bytes
        assert pair.decode.scheduler.connector.num_bytes_loaded == sum(read) * of_a_block
    finally:
        pair.close()


def test_a_prefill_side_that_is_gone_costs_time_and_no_answer(model, alone):
    requests = make_requests(6, seed=4)
    pair = Pair(model, Clock())
    try:
        pair.compute_prompts(requests)
        pair.prefill.scheduler.connector.shutdown()  # its address answers no more
        pair.memory.unlink()
        until_done(pair, [str(i) for i in range(6)])
        assert [pair.tokens[str(i)] for i in range(6)] == alone(requests)
        assert (
            pair.decode.scheduler.connector.num_failed == 6
            and pair.decode.scheduler.connector.num_blocks_loaded == 0
        )
    finally:
        pair.close()


def test_blocks_that_cannot_be_read_are_computed_and_the_loader_goes_on(model, alone):
    requests = make_requests(2, seed=4)
    pair = Pair(model, Clock())
    try:
        pair.compute_prompts(requests)
        wrong = pair.to_decode["0"]
        wrong["remote_block_ids"] = [10**6 for _ in wrong["remote_block_ids"]]  # the prefill side has 60
        until_done(pair, ["0", "1"])
        assert [pair.tokens[str(i)] for i in range(2)] == alone(requests)
        assert (
            pair.decode.scheduler.connector.num_failed == 1
            and pair.decode.scheduler.connector.num_blocks_loaded > 0
        )
    finally:
        pair.close()


def test_blocks_read_after_the_end_of_the_lease_do_not_count():
    clock, source, target = Clock(), torch.ones(2, 1, 40, 2, 1, 1), torch.zeros(2, 1, 40, 2, 1, 1)

    def reads_take_a_second():
        clock.now += 1
        return clock.now

    pairs = [(1, 9), (2, 10), (5, 3), (7, 4), (8, 6)]
    assert list(runs(pairs)) == [(1, 9, 2), (5, 3, 1), (7, 4, 1), (8, 6, 1)]
    assert copy_blocks(source, target, pairs, 3.0, reads_take_a_second) == {4, 6}
    clock.now = 0
    assert copy_blocks(source, target, pairs, 9.0, reads_take_a_second) == set()
    assert target.sum() == 5 * 2 * 2


def test_mistakes_get_one_line(model, tmp_path):
    with pytest.raises(LabError, match=r"no shared memory of .* lower num_blocks") as full:
        create_shared_memory(1 << 60)
    pair = Pair(model, Clock())
    try:
        address, layout = pair.prefill.scheduler.connector.server.address, KVLayout.of(model, SIZE)
        with pytest.raises(LabError, match="block_size is 8, the decode side's is 16: start both") as size:
            Peer(address, replace(layout, block_size=16))
        other = Transformer.random(TINY, seed=4).double()
        with pytest.raises(LabError, match=r"model is .* start both with the same model") as weights:
            decode_core(other, EngineConfig(num_blocks=10, block_size=SIZE)).scheduler.connector.connect(
                address
            )
        for mistake in (full, size, weights):
            assert "\n" not in str(mistake.value)
    finally:
        pair.close()
    with pytest.raises(ConnectionError, match=r"no prefill side answers at .* is it running\?"):
        Peer(address + "-gone", layout)


def test_what_a_proxy_tells_its_engines():
    sent = []
    proxy = Proxy(WorkerConfig("tales"), WorkerConfig("tales"))
    engine = SimpleNamespace(ready=True, send=lambda *commands: sent.extend(commands))
    proxy.workers = {"decode": engine}  # no prefill process yet: all goes to the decode process
    sampled = SamplingParams(temperature=1, bad_words="ogre").fitted(99, lambda text: [7])
    for params in (sampled, sampled, replace(sampled, seed=5), replace(sampled, temperature=0)):
        proxy.add("same", [1, 2], params)
        proxy.abort("same")
    begun = [command for command in sent if isinstance(command, Add)]
    assert len({add.request_id for add in begun}) == 4  # blocks may be kept under the old names
    seeds = [add.params.seed for add in begun]
    assert begun[0].params.bad_words_token_ids == sampled.bad_words_token_ids != ()
    assert None not in seeds[:2] and seeds[0] != seeds[1] and seeds[2:] == [5, None]
    proxy.add("same", [1, 2], sampled)
    proxy._begin(proxy.requests["same"])  # as after a death
    assert sent[-1].params == sent[-2].params and sent[-1].request_id != sent[-2].request_id


# ---------------------------------------------------------------------- real processes


@pytest.mark.proof
def test_a_prefill_process_that_is_killed_before_it_is_heard_leaves_no_memory():
    worker = Worker(WorkerConfig("tales", "float32", dict(num_blocks=50), role="prefill"))
    memory = worker.config.memory
    try:
        while worker.process.is_alive() and not memory.exists():
            time.sleep(0.01)
        assert memory.exists()
    finally:
        worker.bury()
    assert not memory.exists()


@pytest.mark.proof
def test_500_requests_through_real_processes_of_which_each_is_killed_once():
    engine = LLMEngine.from_pretrained("tales", dtype="float32", device="cpu", num_blocks=4000)
    rng = random.Random(5)
    text = engine.tokenizer.encode("Once upon a time there was a king who had three sons, and the youngest")
    requests = []
    for _ in range(500):
        prompt = text[: rng.randrange(4, len(text))] + [
            rng.randrange(8000) for _ in range(rng.randrange(1, 40))
        ]
        requests.append(
            (prompt, SamplingParams(temperature=0, max_tokens=rng.randrange(1, 12), ignore_eos=True))
        )
    expected = [o.token_ids for o in engine.generate(*map(list, zip(*requests, strict=True)))]

    settings = dict(num_blocks=20, max_num_seqs=32, max_num_batched_tokens=256)
    config = WorkerConfig("tales", "float32", settings, lease_seconds=1.0)
    proxy = Proxy(replace(config, settings={**settings, "num_blocks": 400}), config)
    tokens, ended, aborted = {str(i): [] for i in range(500)}, {}, set()
    files = set()  # of shared memory, of each process that there was
    proxy.start()
    try:
        sent, killed, books = 0, [], []
        while len(ended) + len(aborted) < 500:
            both_there = all(worker.ready for worker in proxy.workers.values())
            files |= {worker.config.memory for worker in proxy.workers.values()} - {None}
            most = 500 if both_there else 400  # some are left for the time when both are there again
            while sent < most and len(proxy.requests) < 60:
                proxy.add(str(sent), *requests[sent])
                sent += 1
                if sent % 40 == 0:
                    aborted.add(name := rng.choice(sorted(proxy.requests)))
                    proxy.abort(name)
            if len(killed) < 2 and sent > 150 * (len(killed) + 1) and both_there:
                role = ("prefill", "decode")[len(killed)]
                if role == "decode":
                    # (What it had to say is lost, and said once more.)
                    books.append(proxy.workers[role].books())
                proxy.workers[role].process.kill()
                killed.append(role)
            for new in proxy.poll(20):
                assert new.error is None
                tokens[new.request_id] += new.token_ids
                if new.finish_reason:
                    ended[new.request_id] = new.finish_reason
        assert proxy.num_restarts == 2 and len(aborted) > 8
        for i in range(500):
            assert str(i) in aborted or tokens[str(i)] == expected[i], i
        while not all(worker.ready for worker in proxy.workers.values()):
            proxy.poll(20)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            last = {role: worker.books() for role, worker in proxy.workers.items()}
            if not any(b["blocks_in_use"] for b in last.values()):
                break
            time.sleep(0.2)
        assert [b["blocks_in_use"] for b in last.values()] == [0, 0], last
        # How many, and how many preemptions, is a matter of who is faster: the test with a clock above counts them.
        assert books[0]["num_blocks_loaded"] > 0
    finally:
        proxy.stop()
    assert len(files) > 1 and not any(file.exists() for file in files)
