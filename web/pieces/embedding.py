"""A map of words by their rows in the model's token table."""

from phase1_tokens_embeddings.weights.embeddings import Embeddings
from web.pieces.piece import Piece, in_words

WORDS = ("king", "queen", "prince", "princess", "son", "daughter", "brother", "sister", "dog", "cat", "horse", "gold",
         "silver", "sea", "river", "wood", "house")  # fmt: skip
NEAREST = 6


def embedding_piece(embeddings: Embeddings) -> Piece:
    """Words on a map, and for each the tokens nearest to it in the whole vocabulary."""
    nearest = {word: embeddings.neighbours(word, NEAREST) for word in WORDS}
    data = {
        "words": WORDS,
        "vectors": [[round(x, 4) for x in row] for row in embeddings.vectors(WORDS).tolist()],
        "nearest": nearest,
    }
    lines = [
        f"{word}: {', '.join(f'{w.strip()} {c:.2f}' for w, c in near)}" for word, near in nearest.items()
    ]
    fallback = in_words("Words to type, and a map of them.", "The nearest tokens:", lines)
    return Piece("embedding", data, fallback)
