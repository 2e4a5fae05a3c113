"""A prefill engine, a decode engine, and the proxy in front: it sends each request first to the one, then to the other.

    client -> proxy -> prefill side    computes the prompt, keeps its blocks under a lease
                    -> decode side     reads them, generates the answer -> proxy -> client

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
    """A request that has not ended. name: its id in the engines."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    name: str


class DisaggregatedEngine:
    """
    Args:
        config: of both engines; `num_blocks` must be set.

    Attributes:
        prefill, decode: the engines.
        requests: those that are alive, by id.
    """

    def __init__(
        self,
        model: Transformer,
        config: EngineConfig,
        lease_seconds: float = LEASE_SECONDS,
        clock: Clock = time.monotonic,
    ) -> None:

        def make(connector: type, argument: Any) -> EngineCore:
            blocks = (config.num_blocks, config.block_size)
            cache = PagedKVCache(model.config, *blocks, model.dtype, model.device)
            made = connector(cache.storage.data, argument, clock)
            return build_core(model, config, kv_cache=cache, kv_connector=made)

        self.prefill = make(PrefillConnector, lease_seconds)
        self.decode = make(DecodeConnector, config.block_size)
        self.requests: dict[str, Served] = {}
        self._by_name: dict[str, Served] = {}
        # An engine may still keep the blocks of an aborted request whose id is used again.
        self._numbers = count()

    def add(self, request_id: str, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        """Begin a request. Raises ValueError: its id is in use, or it could never be served."""
        if request_id in self.requests:
            raise ValueError(f"request id {request_id!r} is in use: give each request an id of its own")
        name = f"{request_id}/{next(self._numbers)}"
        served = Served(request_id, list(prompt_token_ids), params, name)
        self._send(self.prefill, served, {"do_remote_decode": True})
        self.requests[request_id] = self._by_name[name] = served

    def abort(self, request_id: str) -> None:
        """End a request now, wherever it is. Fine if it has ended."""
        if (served := self.requests.pop(request_id, None)) is not None:
            del self._by_name[served.name]
            for core in (self.prefill, self.decode):
                core.finish(served.name, "abort")

    def step(self) -> list[EngineCoreOutput]:
        """A step of both engines. Returns what is new for clients, under their own ids."""
        for output in self.prefill.step().outputs:
            # Its one token is discarded: the decode side samples it itself.
            if output.request_id in self._by_name:
                self._send(self.decode, self._by_name[output.request_id], output.extras["kv_transfer_params"])
        news = []
        for output in self.decode.step().outputs:
            served = self._by_name[output.request_id]
            output.request_id = served.request_id
            if output.finish_reason is not None:
                del self.requests[served.request_id], self._by_name[served.name]
            news.append(output)
        return news

    def _send(self, core: EngineCore, served: Served, kv_transfer_params: dict[str, Any]) -> None:
        params = ONE_TOKEN if core is self.prefill else served.params
        request = Request(served.name, served.prompt_token_ids, params)
        request.extras["kv_transfer_params"] = kv_transfer_params
        core.add(request)
