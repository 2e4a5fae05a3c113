"""The interactive pieces of the companion notebooks, and the guesses that their readers make."""

from notebooks.widgets.figures import show_bars, show_lines
from notebooks.widgets.guesses import Guesses
from notebooks.widgets.shown import show_figure, show_table
from web.pieces.allocator import allocator_piece, play_operations
from web.pieces.attention import attention_piece
from web.pieces.bits import FewerBits, bits_piece
from web.pieces.decoding import Decoding, decoding_piece
from web.pieces.piece import Piece
from web.pieces.replay import Recording, replay_piece
from web.pieces.splits import splits_piece
from web.pieces.tokens import tokenizer_piece
