"""KV events: what enters the prefix cache and what leaves it, so that a router outside knows what each replica holds.

Changes nothing in what the engine decides. With `kv_events_config={"enable_kv_cache_events": True}` the events go out over ZeroMQ
after each step, in vLLM's frames and form, so that a router made for vLLM (llm-d, Dynamo) reads them. With "publisher": "null" they
wait until `take_kv_events` of the block manager is called.
Attaches to: `BlockManager.prefix_cache`, `cache_blocks`, `reset_prefix_cache`; `EngineCore.step`.

Source: vllm/distributed/kv_events.py; vllm/v1/core/block_pool.py.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from phase2_attention_kvcache.model.transformer import Transformer
from phase3_paged_attention.paging.block_allocator import PhysicalBlock
from phase3_paged_attention.paging.block_manager import BlockManager
from phase3_paged_attention.paging.block_table import BlockTable, hash_block
from phase3_paged_attention.paging.prefix_cache import PrefixCache
from phase4_scheduler.assembly import Feature
from phase4_scheduler.engine.config import EngineConfig
from phase4_scheduler.engine.core import EngineCore, EngineCoreOutputs


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Blocks that follow each other in a text. Equal blocks of two requests are stored twice.

    Attributes:
        block_hashes: one for each block. parent_block_hash: of the block before them; None: the text begins with them.
        token_ids: of all of them. extra_keys: for each block what else its hash holds: a salt's hash (in vLLM the
            salt), in the first block of a text.
    """

    block_hashes: list[bytes]
    parent_block_hash: bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: None = None
    medium: str = "GPU"
    lora_name: None = None
    extra_keys: list[tuple[str] | None] | None = None


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """Blocks that are overwritten, or hold no more what their hashes say."""

    block_hashes: list[bytes]
    medium: str = "GPU"


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The cache was reset."""


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared


def block_names(token_ids: Sequence[int], block_size: int, salt: bytes = b"") -> list[bytes]:
    """The hashes by which events call the full blocks of a text."""
    names = [salt]
    for end in range(block_size, len(token_ids) + 1, block_size):
        names.append(hash_block(names[-1], token_ids[end - block_size : end]))
    return names[1:]


class WatchedPrefixCache(PrefixCache):
    """
    Attributes:
        added: hashes of the blocks that entered. removed: called with the hash of a block that leaves.
    """

    def __init__(self, removed: Callable[[bytes], None]) -> None:
        super().__init__()
        self.added: list[bytes] = []
        self.removed = removed

    def add(self, block: PhysicalBlock, block_hash: bytes) -> None:
        super().add(block, block_hash)
        self.added.append(block_hash)

    def remove(self, block: PhysicalBlock) -> None:
        if block.block_hash is not None:
            self.removed(block.block_hash)
        super().remove(block)


class KVEventBlockManager(BlockManager):
    """Attributes: kv_events: since they were taken last."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.kv_events: list[KVEvent] = []
        self.prefix_cache = WatchedPrefixCache(lambda name: self.kv_events.append(BlockRemoved([name])))

    def cache_blocks(self, table: BlockTable, token_ids: Sequence[int], num_tokens: int) -> None:
        super().cache_blocks(table, token_ids, num_tokens)
        if added := self.prefix_cache.added:
            first, size = table.block_hashes.index(added[0]), self.block_size
            parent = table.block_hashes[first - 1] if first else None
            tokens = list(token_ids[first * size : (first + len(added)) * size])
            salted = table.salt and not first
            keys = [(table.salt.hex(),), *[None] * (len(added) - 1)] if salted else None
            self.kv_events.append(BlockStored(added, parent, tokens, size, extra_keys=keys))
            self.prefix_cache.added = []

    def reset_prefix_cache(self) -> bool:
        so_far = list(self.kv_events)
        if done := super().reset_prefix_cache():
            self.kv_events = [*so_far, AllBlocksCleared()]
        return done

    def take_kv_events(self) -> list[KVEvent]:
        events, self.kv_events = self.kv_events, []
        return events


class KVEventCore(EngineCore):
    """Args: publisher: of the events of each step; None: they wait in the block manager."""

    def __init__(self, *args, publisher: Publisher | None, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.publisher = publisher

    def step(self) -> EngineCoreOutputs:
        step = super().step()
        if self.publisher and (events := self.block_manager.take_kv_events()):
            self.publisher.publish(events)
        return step

    def shutdown(self) -> None:
        super().shutdown()
        if self.publisher:
            self.publisher.socket.close(linger=0)


class Publisher:
    """A PUB socket. Each message has three frames: the topic, a number that counts up (8 bytes), the batch in msgpack.

    Raises ValueError: the endpoint is taken, or is none.
    """

    def __init__(self, endpoint: str, topic: str = "") -> None:
        import zmq  # only where events are published

        self.socket = zmq.Context.instance().socket(zmq.PUB)
        binds = "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))
        try:
            (self.socket.bind if binds else self.socket.connect)(endpoint)  # as vLLM does
        except zmq.ZMQError as error:
            self.socket.close()
            raise ValueError(f"kv_events_config: endpoint {endpoint!r}: {error}") from None
        self._topic, self._numbers = topic.encode(), itertools.count()

    def publish(self, events: Sequence[KVEvent]) -> None:
        self.socket.send_multipart((self._topic, next(self._numbers).to_bytes(8, "big"), packed(events)))


def packed(events: Sequence[KVEvent]) -> bytes:
    """vLLM's KVEventBatch: [seconds since 1970, events, data-parallel rank]."""
    import msgspec

    return msgspec.msgpack.encode([time.time(), [{"type": type(e).__name__, **asdict(e)} for e in events], 0])


class KVEvents(Feature):
    """Setting: `kv_events_config`, vLLM's fields: enable_kv_cache_events (False), publisher ("zmq" or "null"), endpoint
    ("tcp://*:5557"), topic ("").
    """

    settings = {"kv_events_config": None}
    block_manager, core = KVEventBlockManager, KVEventCore

    def is_on(self, model: Transformer, config: EngineConfig, features: Sequence[Feature]) -> bool:
        """Raises ValueError: a field of vLLM's, or a publisher, that is not known here."""
        own = dict(self.kv_events_config or {})
        if unknown := own.keys() - {"enable_kv_cache_events", "publisher", "endpoint", "topic"}:
            raise ValueError(f"kv_events_config: {sorted(unknown)[0]!r} is not known here: leave it out")
        if (publisher := own.get("publisher", "zmq")) not in ("zmq", "null"):
            raise ValueError(f"kv_events_config: publisher is {publisher!r}: give zmq or null")
        return bool(own.get("enable_kv_cache_events"))

    def arguments(self, part: str) -> dict[str, Any]:
        if part != "core":
            return {}
        own = self.kv_events_config
        if own.get("publisher") == "null":
            return {"publisher": None}
        return {"publisher": Publisher(own.get("endpoint", "tcp://*:5557"), own.get("topic", ""))}
