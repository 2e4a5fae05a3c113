"""A small machine for exercise 5.3: it answers loads late, as memory does, and writes down what happens.

A **round** is the time that a program needs to compute with one tile. Page ids that are asked for take most of a
round to come. Who asks one round early finds them there.
"""

from collections.abc import Sequence

import numpy as np

ROUND, LATE = 100, 80  # ticks of the machine's clock: computing with a tile; how long page ids take to come


class TileMachine:
    """One program, a block table in slow memory, and what the program asked for.

    Attributes:
        log: what happened, in order: ("load", logical blocks read) and ("fetch", slots read).
        waited: time that the program stood still, waiting for page ids.
        outside: entries that were read and are not of this request's table.
    """

    def __init__(self, table: Sequence[int], block_size: int, rubbish: int = 999) -> None:
        self.table, self.block_size, self.rubbish = list(table), block_size, rubbish
        self.log: list[tuple[str, list[int]]] = []
        self.outside: list[int] = []
        self.now = self.waited = 0
        self._comes: list[tuple[np.ndarray, int]] = []  # page ids not yet used, and when they are here

    def load(self, logical: np.ndarray, valid: np.ndarray) -> np.ndarray:
        """Ask for entries of the block table; 0 where `valid` is False: nothing is read there."""
        logical, valid = np.asarray(logical), np.asarray(valid)
        read = [int(i) for i in logical[valid]]
        self.outside += [i for i in read if not 0 <= i < len(self.table)]
        self.log.append(("load", read))
        inside = [self.table[i] if 0 <= i < len(self.table) else self.rubbish for i in logical.tolist()]
        pages = np.where(valid, np.array(inside), 0)
        if read:
            self._comes.append((pages, self.now + LATE))
        return pages

    def fetch(self, pages: np.ndarray, offsets: np.ndarray, valid: np.ndarray) -> None:
        """Fetch the keys of a tile: page pages[i], place offsets[i], where valid[i]. Then compute with them."""
        pages, offsets, valid = (np.asarray(x) for x in (pages, offsets, valid))
        mine = next((i for i, (asked, _) in enumerate(self._comes) if np.array_equal(asked, pages)), None)
        if mine is not None:
            _, comes = self._comes.pop(mine)
            self.waited += max(0, comes - self.now)
            self.now = max(self.now, comes)
        self.log.append(("fetch", [int(s) for s in (pages * self.block_size + offsets)[valid]]))
        self.now += ROUND
