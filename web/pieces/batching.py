"""Static and continuous batching: the same requests, batch by batch and in places that are filled at once."""

from phase4_scheduler.engine import LLMEngine
from phase4_scheduler.simulator.batching import Job, serve_continuously, serve_statically
from web.pieces.piece import Piece, in_words

LENGTHS, PLACES = (12, 3, 20, 5, 8, 4, 16, 6), 3


def batching_piece() -> Piece:
    """Make the piece: answers of different lengths in a batch of few places, each with the step after which an engine returns it."""
    engine = LLMEngine.from_pretrained("tales", dtype="float32", device="cpu", max_num_seqs=PLACES)
    jobs = [Job(f"{i}", [i], n) for i, n in enumerate(LENGTHS)]
    static, continuous = serve_statically(engine, jobs, PLACES), serve_continuously(engine, jobs)
    lines = [f"{'tokens':>6}  {'static':>6}  {'continuous':>10}"]
    for name, _, length in jobs:
        lines.append(f"{length:>6}  {static.done_step[name]:>6}  {continuous.done_step[name]:>10}")
    what = f"{PLACES} places in a batch. The step after which each answer is handed out:"
    fallback = in_words("Lengths of answers to type.", what, lines)
    return Piece("batching", {"lengths": LENGTHS, "places": PLACES}, fallback)
