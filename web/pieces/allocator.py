"""Allocate and free blocks. After each click the piece shows the decisions of phase 3's `ForkingBlockManager`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from phase3_paged_attention.paging import BlockTable
from phase3_paged_attention.sharing import ForkingBlockManager, RecordingBlockManager
from web.pieces.piece import Piece, in_words

Operation = Sequence[Any]
"""("add", tokens of the common prompt, further tokens), ("append", name), ("fork", name), ("free", name)."""


@dataclass
class Guest:
    """A request in the piece: its tokens and its table."""

    number: int
    tokens: list[int]
    table: BlockTable = field(default_factory=BlockTable)


class PokedBlockManager(RecordingBlockManager, ForkingBlockManager):
    """A block manager that copies shared blocks before a write, and counts what it does."""


@dataclass
class Played:
    """The state after some operations: the requests by their names, and the number of copied blocks. `refused`: the last operation failed for lack of blocks."""

    manager: PokedBlockManager
    guests: dict[str, Guest] = field(default_factory=dict)
    count: int = 0
    num_copied: int = 0
    refused: bool = False


def play_operations(
    operations: Sequence[Operation], num_blocks: int = 17, block_size: int = 4, caching: bool = True
) -> Played:
    """Do the operations of the piece's buttons with a real block manager. Requests are named A, B, C in their order.

    Raises:
        ValueError: an unknown operation, or a name that no request has.
    """
    manager = PokedBlockManager(num_blocks, block_size, caching)
    played = Played(manager)
    for what, *rest in operations:
        played.refused = False
        if what == "add":
            shared, own = rest
            number = played.count + 1
            tokens = [i + 1 if i < shared else 1000 * number + i for i in range(shared + own)]
            guest = Guest(number, tokens)
            prefix = manager.match_prefix(guest.table, tokens)
            played.refused = not manager.allocate(guest.table, tokens, len(tokens), prefix)
            if not played.refused:
                played.count = number
                played.guests[chr(64 + number)] = guest
            continue
        guest = played.guests.get(rest[0])
        if guest is None:
            raise ValueError(
                f"no request is called {rest[0]!r}: there are {', '.join(played.guests) or 'none'}"
            )
        if what == "append":
            guest.tokens.append(1000 * guest.number + len(guest.tokens))
            if not manager.allocate(guest.table, guest.tokens, len(guest.tokens)):
                guest.tokens.pop()
                played.refused = True
            played.num_copied += len(manager.take_copies())
        elif what == "fork":
            played.count += 1
            twin = Guest(played.count, list(guest.tokens), manager.fork(guest.table))
            played.guests[chr(64 + played.count)] = twin
        elif what == "free":
            manager.free(guest.table)
            del played.guests[rest[0]]
        else:
            raise ValueError(f"unknown operation {what!r}: use add, append, fork or free")
    return played


def allocator_piece(
    num_blocks: int = 17, block_size: int = 4, caching: bool = True, operations: Sequence[Operation] = ()
) -> Piece:
    """Make the piece with blocks to allocate and free.

    Args:
        num_blocks: the null block included, as in `BlockManager`.
        operations: done before the first click.
    """
    played = play_operations(operations, num_blocks, block_size, caching)
    lines = [
        f"request {n}: {len(g.tokens)} tokens in blocks {g.table.block_ids}" for n, g in played.guests.items()
    ]
    free = [block.block_id for block in played.manager.allocator]
    data = {
        "setup": {"num_blocks": num_blocks, "block_size": block_size, "caching": caching},
        "operations": [list(o) for o in operations],
    }
    lines.append(f"free blocks, next one first: {free}")
    return Piece("allocator", data, in_words("Buttons to add, grow, fork and free requests.", lines))
