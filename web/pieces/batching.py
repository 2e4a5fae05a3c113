"""Static and continuous batching: the same requests, batch by batch and in places that are filled at once."""

from web.pieces.piece import Piece, in_words


def serve(lengths: list[int], places: int, continuous: bool) -> list[tuple[int, int, int]]:
    """Who holds which place when, in an engine that writes a token of each running request a step.

    Args:
        lengths: tokens that each request wants. All are there at the beginning.

    Returns:
        for each request its place, its first step and its last, counted from 1.
    """
    free = [0] * places  # the last step in which a place was busy
    rows = []
    for number, length in enumerate(lengths):
        if not continuous and number % places == 0:
            free = [max(free)] * places  # a batch begins when the last one is done
        place = free.index(min(free))
        rows.append((place, free[place] + 1, free[place] + length))
        free[place] += length
    return rows


def batching_piece(lengths: tuple[int, ...] = (12, 3, 20, 5, 8, 4, 16, 6), places: int = 3) -> Piece:
    """Answers of different lengths in a batch with so many places: when each is written, and when it is handed out."""
    lines = [
        f"{'tokens':>6}  {'static: steps':>13}  {'handed out':>10}  {'continuous: steps':>17}  {'handed out':>10}"
    ]
    static, continuous = (serve(list(lengths), places, way) for way in (False, True))
    for number, length in enumerate(lengths):
        batch = static[number // places * places : (number // places + 1) * places]
        (_, first, last), (_, begin, end) = static[number], continuous[number]
        out = max(e for _, _, e in batch)
        lines.append(f"{length:>6}  {f'{first}-{last}':>13}  {out:>10}  {f'{begin}-{end}':>17}  {end:>10}")
    fallback = in_words("Lengths of answers to type.", f"{places} places in a batch:", lines)
    return Piece("batching", {"lengths": list(lengths), "places": places}, fallback)
