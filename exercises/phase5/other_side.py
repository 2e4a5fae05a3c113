"""A prefill side for exercise 5.6: readable blocks, a lease, a failure after a given number of reads, and its own clock."""


class OtherSide:
    """The side that holds the blocks.

    Args:
        blocks: block number -> content.
        lease_until: the time from which on a block may hold data of another request.
        dies_after: number of reads that succeed before it dies; None: it does not die.

    Attributes:
        log: the calls it received: ("read", block) and ("done",).
    """

    def __init__(self, blocks: dict[int, str], lease_until: float, dies_after: int | None = None) -> None:
        self.lease_until, self.log = lease_until, []
        self._blocks, self._dies_after, self._now = blocks, dies_after, 0.0

    def clock(self) -> float:
        """Return the time in seconds. Only reading takes time here: one second per block."""
        return self._now

    def read(self, block: int) -> str:
        """Return the content of a block. Raises ConnectionError if this side is dead."""
        self._live()
        self._now += 1.0
        self.log.append(("read", block))
        return self._blocks[block] if self._now < self.lease_until else "words of another request"

    def done(self) -> None:
        """Receive the message that all blocks are read and may be freed. Raises ConnectionError if this side is dead."""
        self._live()
        self.log.append(("done",))

    def _live(self) -> None:
        if self._dies_after is not None and sum(entry[0] == "read" for entry in self.log) >= self._dies_after:
            raise ConnectionError("the other side has died")
