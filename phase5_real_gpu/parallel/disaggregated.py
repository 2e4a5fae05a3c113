"""A prefill engine, a decode engine, and the proxy in front: it sends each request first to the one, then to the other.

    client -> proxy -> prefill side    computes the prompt, keeps its blocks under a lease
                    -> decode side     reads them, writes the answer -> proxy -> client

Each of the two may be lost, with all that it holds, and no answer is:

- Without a prefill side the decode side computes prompts itself, like an ordinary engine: slower, and right.
- If the decode side is lost, its requests go the whole way again. (Their prompts are still in the prefix cache of the prefill
  side.) What a client has seen is left out of the second answer, which is the same one: greedy, or with a seed.

Source: vllm/examples/online_serving/disaggregated_serving; vllm tests/v1/kv_connector/nixl_integration/toy_proxy_server.py.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from phase2_attention_kvcache.model import SamplingParams
from phase2_attention_kvcache.model.transformer import Transformer
from phase3_paged_attention.paging import PagedKVCache
from phase4_scheduler.assembly.build import build_core
from phase4_scheduler.engine import EngineConfig, EngineCore, Request
from phase4_scheduler.engine.core import EngineCoreOutput
from phase5_real_gpu.parallel.connectors import LEASE_SECONDS, Clock, DecodeConnector, PrefillConnector

ONE_TOKEN = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)


@dataclass
class Served:
    """A request on its way.

    Attributes:
        seen: tokens that its client has. skip: those of them that this attempt writes again.
        name: its id in the engines, in this attempt.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    seen: int = 0
    skip: int = 0
    name: str = ""


class DisaggregatedEngine:
    """
    Args:
        config: of both engines; `num_blocks` must be set.

    Attributes:
        prefill, decode: the engines. `prefill` is None once it is lost.
        requests: those that are alive, by id.
    """

    def __init__(
        self,
        model: Transformer,
        config: EngineConfig,
        lease_seconds: float = LEASE_SECONDS,
        clock: Clock = time.monotonic,
    ) -> None:
        self._model, self._config, self._lease_seconds, self._clock = model, config, lease_seconds, clock
        self.prefill: EngineCore | None = self._make(PrefillConnector, lease_seconds)
        self.decode = self._make(DecodeConnector, config.block_size)
        self.requests: dict[str, Served] = {}
        self._by_name: dict[str, Served] = {}
        # An engine may still keep blocks under an old name, so each attempt gets a new one.
        self._numbers = count()

    def _make(self, connector: type, argument: Any) -> EngineCore:
        c = self._config
        cache = PagedKVCache(
            self._model.config, c.num_blocks, c.block_size, self._model.dtype, self._model.device
        )
        made = connector(cache.storage.data, argument, self._clock)
        return build_core(self._model, c, kv_cache=cache, kv_connector=made)

    def add(self, request_id: str, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        """Begin a request. Raises ValueError: its id is in use, or it could never be served."""
        if request_id in self.requests:
            raise ValueError(f"request id {request_id!r} is in use: give each request an id of its own")
        served = Served(request_id, list(prompt_token_ids), params)
        self._begin(served)
        self.requests[request_id] = served

    def abort(self, request_id: str) -> None:
        """End a request now, wherever it is. Fine if it has ended."""
        if (served := self.requests.pop(request_id, None)) is not None:
            del self._by_name[served.name]
            for core in filter(None, (self.prefill, self.decode)):
                core.finish(served.name, "abort")

    def step(self) -> list[EngineCoreOutput]:
        """A step of both engines. Returns what is new for clients, under their own ids."""
        for output in self.prefill.step().outputs if self.prefill else ():
            # Its one token is thrown away: the decode side samples it itself.
            if output.request_id in self._by_name:
                self._send(self.decode, self._by_name[output.request_id], output.extras["kv_transfer_params"])
        news = []
        for output in self.decode.step().outputs:
            served = self._by_name[output.request_id]
            known = min(served.skip, len(output.token_ids))
            served.skip -= known
            output.request_id, output.token_ids = served.request_id, output.token_ids[known:]
            served.seen += len(output.token_ids)
            if output.finish_reason is not None:
                del self.requests[served.request_id], self._by_name[served.name]
            if output.token_ids or output.finish_reason is not None:
                news.append(output)
        return news

    def _begin(self, served: Served) -> None:
        self._by_name.pop(served.name, None)
        served.skip, served.name = served.seen, f"{served.request_id}/{next(self._numbers)}"
        if self.prefill is None:
            self._send(self.decode, served, None)
        else:
            self._send(self.prefill, served, {"do_remote_decode": True})
        self._by_name[served.name] = served

    def _send(self, core: EngineCore, served: Served, kv_transfer_params: dict | None) -> None:
        params = ONE_TOKEN if core is self.prefill else served.params
        request = Request(served.name, served.prompt_token_ids, params)
        request.extras["kv_transfer_params"] = kv_transfer_params
        core.add(request)

    # ------------------------------------------------------------------ losses

    def lose_prefill(self) -> None:
        """The prefill side ends without a word. What it was computing begins again, on the decode side."""
        core, self.prefill = self.prefill, None
        core.scheduler.connector.is_dead = True
        for name in list(core.requests):
            self._begin(self._by_name[name])

    def lose_decode(self) -> None:
        """The decode side ends without a word, and another one takes its place. What it was writing begins again."""
        lost, self.decode = self.decode, self._make(DecodeConnector, self._config.block_size)
        for name in list(lost.requests):
            self._begin(self._by_name[name])
