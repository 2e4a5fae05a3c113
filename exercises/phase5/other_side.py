"""A prefill side for exercise 5.6: blocks that can be read, a lease, and a death at a chosen moment. Its clock is its own."""


class OtherSide:
    """Who has the blocks.

    Args:
        blocks: content by number.
        lease_until: from when on a block may hold what another request has written there.
        dies_after: so many reads succeed, then it is dead; None: it lives.

    Attributes:
        log: what was asked of it: ("read", block) and ("done",).
    """

    def __init__(self, blocks: dict[int, str], lease_until: float, dies_after: int | None = None) -> None:
        self.lease_until, self.log = lease_until, []
        self._blocks, self._dies_after, self._now = blocks, dies_after, 0.0

    def clock(self) -> float:
        """Seconds. Only reading takes time here: one second a block."""
        return self._now

    def read(self, block: int) -> str:
        """What a block holds. Raises ConnectionError if this side is dead."""
        self._live()
        self._now += 1.0
        self.log.append(("read", block))
        return self._blocks[block] if self._now < self.lease_until else "words of another request"

    def done(self) -> None:
        """To say that all is read: the blocks may be freed. Raises ConnectionError if this side is dead."""
        self._live()
        self.log.append(("done",))

    def _live(self) -> None:
        if self._dies_after is not None and sum(entry[0] == "read" for entry in self.log) >= self._dies_after:
            raise ConnectionError("the other side has died")
