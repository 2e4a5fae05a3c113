"""The interactive pieces of the companion notebooks, and the guesses that their readers make."""

from notebooks.widgets.allocator import allocator_piece, play_operations
from notebooks.widgets.attention import attention_piece
from notebooks.widgets.decoding import Decoding, decoding_piece
from notebooks.widgets.guesses import Guesses
from notebooks.widgets.piece import Piece
from notebooks.widgets.replay import Recording, replay_piece
from notebooks.widgets.shown import show_figure, show_table
from notebooks.widgets.splits import splits_piece
from notebooks.widgets.tokens import tokenizer_piece

__all__ = [
    "Decoding", "Guesses", "Piece", "Recording", "allocator_piece", "attention_piece", "decoding_piece",
    "play_operations", "replay_piece", "show_figure", "show_table", "splits_piece", "tokenizer_piece",
]  # fmt: skip
