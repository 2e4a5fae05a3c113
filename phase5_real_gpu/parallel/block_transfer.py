"""Blocks of keys and values on their way from one engine to another.

The prefill side keeps its whole cache in shared memory. So nothing is sent: the decode side reads the blocks where they lie,
as a network card reads another machine's memory (RDMA). All that goes through a connection is words:

    decode side                     prefill side
    connects           ->           here is my cache: its name, its shape, its model     (once: the handshake)
    reads blocks
    "done with 17"     ->           frees the blocks of transfer 17

Between the two stands a lease: a promise to keep the blocks until a certain moment. When it is over, the prefill side frees
them, whether it has heard of the other side or not; it may be dead. No message is needed to end it: both look at the clock, and
all processes of a computer have the same one. So who reads must look at the clock *after* reading. What was read before the
end is good; everything later may be anything.

Source: vllm/distributed/kv_transfer/kv_connector/v1/nixl; Gray and Cheriton, "Leases" (1989).
"""

import hashlib
import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

import torch
from torch import Tensor

from labkit.errors import LabError
from phase2_attention_kvcache.model.transformer import Transformer
from phase5_real_gpu.parallel.shared_memory import open_shared_memory

BlockPair = tuple[int, int]  # (block of the other side, own block)
ANSWER_SECONDS = 5.0  # a side that does not say who it is within this time is as good as dead
CLOCK_MARGIN = 0.005  # a lease ends earlier by this for who reads than for who frees


@dataclass(frozen=True)
class KVLayout:
    """What two engines must have in common, or one cannot read the other's blocks."""

    model: str  # a fingerprint of the weights
    dtype: str
    num_layers: int
    block_size: int
    num_kv_heads: int
    head_dim: int

    @classmethod
    def of(cls, model: Transformer, block_size: int) -> "KVLayout":
        c = model.config
        dtype = str(model.dtype).removeprefix("torch.")
        return cls(fingerprint(model), dtype, c.num_layers, block_size, c.num_kv_heads, c.head_dim)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block: keys and values, in all layers."""
        numbers = 2 * self.num_layers * self.block_size * self.num_kv_heads * self.head_dim
        return numbers * getattr(torch, self.dtype).itemsize

    def shape(self, num_blocks: int) -> tuple[int, ...]:
        """Of a cache (see `KVStorage.data`)."""
        return (2, self.num_layers, num_blocks, self.block_size, self.num_kv_heads, self.head_dim)

    def check(self, other: "KVLayout") -> None:
        """Raises LabError, in one line, if blocks of `other` cannot be read with this layout."""
        for name, own in asdict(self).items():
            theirs = getattr(other, name)
            if own != theirs:
                raise LabError(
                    f"the prefill side's {name} is {theirs}, the decode side's is {own}: start both with the same "
                    f"{'model' if name != 'block_size' else 'block_size'}"
                )


def fingerprint(model: Transformer) -> str:
    """Equal for equal weights, and for others almost certainly not: a hash of some numbers of each tensor."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(tensor.flatten()[:64].double().cpu().numpy().tobytes())
    return digest.hexdigest()[:12]


# ---------------------------------------------------------------------- copying


def runs(pairs: Sequence[BlockPair], longest: int = 16) -> Iterator[tuple[int, int, int]]:
    """(their first block, own first block, number) of blocks that lie side by side on both sides: one copy each.

    >>> list(runs([(7, 1), (8, 2), (9, 3), (2, 4)]))
    [(7, 1, 3), (2, 4, 1)]
    """
    first = 0
    for i in range(1, len(pairs) + 1):
        theirs, own = pairs[first]
        n = i - first
        if i == len(pairs) or n == longest or pairs[i] != (theirs + n, own + n):
            yield theirs, own, n
            first = i


def copy_blocks(
    source: Tensor,
    target: Tensor,
    pairs: Sequence[BlockPair],
    lease_until: float,
    clock: Callable[[], float] = time.monotonic,
) -> set[int]:
    """Read blocks of another engine's cache under a lease.

    Args:
        source, target: [2, num_layers, num_blocks, block_size, num_kv_heads, head_dim].
        lease_until: by `clock`, from when on `source` may hold anything.

    Returns:
        own blocks that do not hold what they should: all from the first copy on that ended too late.
    """
    copied = 0
    for theirs, own, n in runs(pairs):
        target[:, :, own : own + n].copy_(source[:, :, theirs : theirs + n])
        if clock() >= lease_until:
            break
        copied += n
    return {own for _, own in pairs[copied:]}


# ---------------------------------------------------------------------- the two ends of the wire


class BlockServer:
    """The prefill side's end: tells whoever connects where its cache lies, and hears which transfers are over."""

    def __init__(self, layout: KVLayout, path: Path, num_blocks: int) -> None:
        self._hello = json.dumps({"layout": asdict(layout), "path": str(path), "num_blocks": num_blocks})
        self._listener = Listener()
        self.address: str = self._listener.address
        self._done: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
                connection.send_bytes(self._hello.encode())
            except OSError:
                if self._closed:
                    return
                continue  # who called is gone already
            threading.Thread(target=self._listen, args=(connection,), daemon=True).start()

    def _listen(self, connection: Connection) -> None:
        try:
            while True:
                self._done.put(connection.recv_bytes().decode())
        except (EOFError, OSError):
            pass  # the decode side is gone; its leases will end

    def take_done(self) -> list[str]:
        """Transfers that are over, since the last call."""
        return [self._done.get() for _ in range(self._done.qsize())]

    def close(self) -> None:
        self._closed = True
        self._listener.close()


class Peer:
    """The decode side's end of a connection to a prefill side.

    Attributes:
        blocks: its cache, [2, num_layers, num_blocks, block_size, num_kv_heads, head_dim].

    Raises:
        ConnectionError: nobody answers there. LabError: its blocks cannot be read.
    """

    def __init__(self, address: str, layout: KVLayout) -> None:
        try:
            self._connection = Client(address)
            if not self._connection.poll(ANSWER_SECONDS):
                raise TimeoutError(f"no word within {ANSWER_SECONDS:g} s")
            hello = json.loads(self._connection.recv_bytes())
            memory = open_shared_memory(hello["path"])
        except (OSError, EOFError) as error:
            raise ConnectionError(
                f"no prefill side answers at {address} ({error or 'it hung up'}): is it running?"
            ) from None
        layout.check(KVLayout(**hello["layout"]))
        self.blocks = memory.view(getattr(torch, layout.dtype)).view(layout.shape(hello["num_blocks"]))

    def done(self, transfer: str) -> None:
        self._connection.send_bytes(transfer.encode())
