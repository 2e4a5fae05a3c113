"""Which pieces stand on the page, and what each shows before anybody has touched it.

A README says where: <!-- piece: tokens --> on a line of its own. Code hosts show nothing there.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from labkit.models import find_model
from phase1_tokens_embeddings.tokens import BPETokenizer
from phase2_attention_kvcache.model import Transformer
from web.pieces.piece import Piece
from web.pieces.sampling import sampling_piece
from web.pieces.tokens import tokenizer_piece


class OnPage(NamedTuple):
    """A piece on the page.

    Attributes:
        label: its name for people. make: the piece, with its data and the text for those who cannot see it.
    """

    label: str
    make: Callable[[], Piece]


@cache
def tales() -> tuple[Transformer, BPETokenizer]:
    """The model that the page runs, in Python: what a piece shows first is computed with it."""
    return Transformer.from_pretrained("tales"), BPETokenizer.from_file(
        find_model("tales") / "tokenizer.json"
    )


PIECES = {
    "tokens": OnPage("Type into a tokenizer", lambda: tokenizer_piece(tales()[1])),
    "sampling": OnPage("Turn the knobs of sampling", lambda: sampling_piece(*tales())),
}


@cache
def piece_of(name: str) -> Piece:
    """A piece of the page, made once."""
    return PIECES[name].make()
