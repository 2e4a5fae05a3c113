"""Static and continuous batching: the same requests, batch by batch and in places that are filled at once."""

from phase4_scheduler.engine import LLMEngine
from phase4_scheduler.simulator.batching import Job, serve_continuously, serve_statically
from web.pieces.piece import Piece, in_words


def batching_piece(lengths: tuple[int, ...] = (12, 3, 20, 5, 8, 4, 16, 6), places: int = 3) -> Piece:
    """Answers of different lengths in a batch with so many places: after which step an engine hands each of them out."""
    engine = LLMEngine.from_pretrained("tales", dtype="float32", device="cpu", max_num_seqs=places)
    jobs = [Job(f"{i}", [i], n) for i, n in enumerate(lengths)]
    static, continuous = serve_statically(engine, jobs, places), serve_continuously(engine, jobs)
    lines = [f"{'tokens':>6}  {'static':>6}  {'continuous':>10}"]
    for name, _, length in jobs:
        lines.append(f"{length:>6}  {static.done_step[name]:>6}  {continuous.done_step[name]:>10}")
    what = f"{places} places in a batch. The step after which each answer is handed out:"
    return Piece(
        "batching",
        {"lengths": list(lengths), "places": places},
        in_words("Lengths of answers to type.", what, lines),
    )
