"""A long prompt beside requests in decode: how long they wait if it is computed whole, and if in chunks."""

from dataclasses import asdict

from phase1_tokens_embeddings.weights import cards
from phase4_scheduler.simulator import StepSize
from phase4_scheduler.simulator.cost_model import ComputedCost
from web.pieces.piece import Piece, in_words
from web.pieces.roofline import cost_of

CARDS = ("l4", "a100-80", "h100", "h200")
CONTEXT = 1024  # of each user who writes


def steps_of(cost: ComputedCost, users: int, prompt: int, budget: int) -> list[float]:
    """Seconds of each step until the prompt is computed. Each user takes one token of the budget, the prompt the rest."""
    seconds, done = [], 0
    while done < prompt:
        chunk = min(prompt - done, budget - users)
        writing = [(CONTEXT + len(seconds), 1)] * users
        seconds.append(cost.seconds(StepSize.of([*writing, (done, chunk)])))
        done += chunk
    return seconds


def chunks_piece() -> Piece:
    """Sliders for users, the prompt and the token budget of a step; the steps drawn as long as they take."""
    card, users, prompt = "l4", 32, 8000
    costs = {name: asdict(cost_of("llama-3-8b", name)) for name in CARDS}
    data = {
        "cards": {name: cards.CARDS[name].title for name in CARDS},
        "costs": costs,
        "context": CONTEXT,
        "start": {"card": card, "users": users, "prompt": prompt, "budget": 512},
    }
    lines = [f"{'budget':>6}  {'longest step, ms':>16}  {'first token after, ms':>21}"]
    for n in (256, 512, 2048, prompt + users):
        seconds = steps_of(cost_of("llama-3-8b", card), users, prompt, n)
        lines.append(f"{n:>6}  {1e3 * max(seconds):>16.1f}  {1e3 * sum(seconds):>21.1f}")
    step = f"{users} users write, and a prompt of {prompt:,} tokens comes. Llama-3 8B at the limits of a data sheet ({card}):"
    return Piece("chunks", data, in_words("Sliders.", step, lines))
