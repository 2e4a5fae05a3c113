"""The proxy: the one whom users know. It sends each request first to the prefill process, then to the decode process.

    user -> proxy -> prefill process    computes the prompt, keeps its blocks under a lease
                  -> decode process     reads them, writes the answer -> proxy -> user

Either of the two may die. The proxy starts it again, and no answer is lost:

- Without a prefill process the decode process computes prompts itself, like an ordinary engine: slower, and right.
- If the decode process dies, its requests go the whole way again. (Their prompts are still in the prefix cache of the prefill
  process.) What a user has seen already is left out of the second answer. It is the same one: greedy, or with a seed. (A request
  that samples without a seed gets one from the proxy.)

Source: vllm/examples/online_serving/disaggregated_serving; vllm tests/v1/kv_connector/nixl_integration/toy_proxy_server.py.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from multiprocessing.connection import wait
from typing import NamedTuple

from phase2_attention_kvcache.model import SamplingParams
from phase4_scheduler.engine.core import EngineCoreOutput
from phase4_scheduler.server.engine_process import Add, Finish, StepMessage
from phase5_real_gpu.parallel.engine_worker import Worker, WorkerConfig

ONE_TOKEN = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)


class NewTokens(NamedTuple):
    """What a user gets: tokens, when they came, and why an answer ended."""

    request_id: str
    token_ids: list[int]
    time: float
    finish_reason: str | None = None
    error: str | None = None


@dataclass
class Served:
    """A request on its way."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    arrival_time: float
    at_prefill: bool = False
    seen: int = 0  # tokens that its user has
    skip: int = 0  # of them, those that this attempt writes again
    where: str = field(default="", init=False)  # its name in the engines, in this attempt


class Proxy:
    """A prefill process and a decode process behind one front.

    Args:
        prefill, decode: their roles are set here.
    """

    def __init__(self, prefill: WorkerConfig, decode: WorkerConfig) -> None:
        self.configs = {"prefill": replace(prefill, role="prefill"), "decode": replace(decode, role="decode")}
        self.workers: dict[str, Worker] = {}
        self.requests: dict[str, Served] = {}
        self._by_name: dict[str, Served] = {}  # by their names in the engines
        # An engine may still keep blocks under an old name. So each attempt gets a new one, even if a user uses an id again.
        self._numbers = count()
        # For a decode process that is being started: requests, and where their blocks are.
        self._waiting: list[tuple[Served, dict | None]] = []
        self.num_restarts = 0

    def start(self) -> None:
        """Start both, and let them shake hands. Raises LabError: one cannot start, or they do not fit together."""
        self.workers["prefill"] = Worker(self.configs["prefill"])
        try:
            address = self.workers["prefill"].wait_until_ready().address
            self.workers["decode"] = Worker(replace(self.configs["decode"], peer=address))
            self.workers["decode"].wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        for worker in self.workers.values():
            worker.stop()
        self.workers = {}

    # ------------------------------------------------------------------ requests

    def add(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        arrival: float | None = None,
    ) -> None:
        """Begin a request. Raises ValueError: its id is in use, or it wants several answers.

        Call `poll` between many of them. A pipe holds little (64 KB on Linux): if nobody reads the answers, the engine waits
        with the next one and reads no more requests, and then this call waits, too, for ever.
        """
        if request_id in self.requests:
            raise ValueError(f"request id {request_id!r} is in use: give each request an id of its own")
        if params.n > 1:
            raise ValueError(f"n is {params.n}: the proxy serves one answer a request")
        if not params.greedy and params.seed is None:
            params = params.with_seed(random.getrandbits(32))  # so a second attempt writes the same answer
        arrival = time.perf_counter() if arrival is None else arrival
        served = self.requests[request_id] = Served(request_id, list(prompt_token_ids), params, arrival)
        self._begin(served)

    def abort(self, request_id: str) -> None:
        """End a request now, wherever it is. Fine if it has ended."""
        served = self.requests.pop(request_id, None)
        if served is not None:
            self._by_name.pop(served.where, None)
            for worker in self.workers.values():
                worker.send(Finish(served.where, "abort"))

    def _begin(self, served: Served) -> None:
        served.skip = served.seen
        self._by_name.pop(served.where, None)
        served.where = f"{served.request_id}/{next(self._numbers)}"
        self._by_name[served.where] = served
        prefill = self.workers.get("prefill")
        served.at_prefill = prefill is not None and prefill.ready is not None
        if served.at_prefill:
            self._send(prefill, served, ONE_TOKEN, {"do_remote_decode": True})
        else:
            self._decode(served, None)

    def _decode(self, served: Served, kv_transfer_params: dict | None) -> None:
        served.at_prefill = False
        decode = self.workers.get("decode")
        if decode is None or decode.ready is None:
            self._waiting.append((served, kv_transfer_params))
        else:
            self._send(decode, served, served.params, kv_transfer_params)

    def _send(
        self, worker: Worker, served: Served, params: SamplingParams, kv_transfer_params: dict | None
    ) -> None:
        worker.send(
            Add(
                served.where,
                served.prompt_token_ids,
                params,
                served.arrival_time,
                0,
                (("kv_transfer_params", kv_transfer_params),),
            )
        )

    # ------------------------------------------------------------------ what comes back

    def poll(self, timeout: float | None = None) -> list[NewTokens]:
        """What is new. Waits until a process says something, `timeout` seconds at most.

        Raises LabError: a process that died cannot be started again, and why.
        """
        by_pipe = {worker.pipe: role for role, worker in self.workers.items()}
        news: list[NewTokens] = []
        for pipe in wait(list(by_pipe), timeout):
            role = by_pipe[pipe]
            worker = self.workers[role]
            try:
                if worker.ready is None:
                    worker.wait_until_ready()
                    self._came_back(role)
                    continue
                message: StepMessage = pipe.recv()
            except (EOFError, ConnectionError):
                self._died(role)
                continue
            for name, reason in message.refused:
                news += self._end(name, message.ended, "error", reason)
            for output in message.outputs:
                if role == "prefill":
                    self._from_prefill(output)
                else:
                    news += self._from_decode(output, message)
        return news

    def _end(self, name: str, now: float, reason: str, error: str | None) -> list[NewTokens]:
        served = self._by_name.pop(name, None)
        if served is None:
            return []
        del self.requests[served.request_id]
        return [NewTokens(served.request_id, [], now, reason, error)]

    def _from_prefill(self, output: EngineCoreOutput) -> None:
        served = self._by_name.get(output.request_id)
        if served is not None:  # its one token is thrown away: the decode process samples it itself
            self._decode(served, output.extras.get("kv_transfer_params"))

    def _from_decode(self, output: EngineCoreOutput, message: StepMessage) -> list[NewTokens]:
        served = self._by_name.get(output.request_id)
        if served is None:
            return []
        known = min(served.skip, len(output.token_ids))
        served.skip -= known
        tokens = output.token_ids[known:]
        served.seen += len(tokens)
        if output.finish_reason is not None:
            del self.requests[served.request_id], self._by_name[output.request_id]
        if not tokens and output.finish_reason is None:
            return []
        return [NewTokens(served.request_id, tokens, message.ended, output.finish_reason, output.error)]

    # ------------------------------------------------------------------ death and return

    def _died(self, role: str) -> None:
        self.workers.pop(role).bury()
        self.num_restarts += 1
        self.workers[role] = Worker(self.configs[role])
        waiting = {served.request_id for served, _ in self._waiting}
        for served in list(self.requests.values()):
            if role == "prefill" and served.at_prefill:
                self._begin(served)  # straight to the decode process: it computes the prompt itself
            elif role == "decode" and not served.at_prefill and served.request_id not in waiting:
                self._begin(served)

    def _came_back(self, role: str) -> None:
        if role == "decode":
            waiting, self._waiting = self._waiting, []
            for served, kv_transfer_params in waiting:
                if self.requests.get(served.request_id) is served:
                    self._decode(served, kv_transfer_params)
