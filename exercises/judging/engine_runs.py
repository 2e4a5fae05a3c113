"""For the cells "Into the engine": the embedded model and prompts for it, which answers go in, and how both runs are compared."""

import time
from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn

from exercises.judging import boxes
from exercises.judging.comparing import as_sentence, difference, verdict_of
from exercises.judging.registry import find
from exercises.judging.sandbox import judge_safely
from exercises.judging.verdict import NotYet
from labkit.models import find_model
from phase1_tokens_embeddings.tokens import BPETokenizer
from phase2_attention_kvcache.model import Transformer

PROMPTS = (
    "Once upon a time there was a king who",
    "The sea was calm, but",
    "Nobody knew where the old woman",
)


@cache
def tales() -> tuple[Transformer, BPETokenizer]:
    """The embedded model in float32, where sums in another order change no token, and its tokenizer."""
    folder = find_model("tales")
    model = Transformer.from_pretrained(folder, "float32")
    return model, BPETokenizer.from_file(folder / "tokenizer.json")


def passed(name: str, *answers: Any) -> None:
    """Only what passes its check goes into the engine. A stub says "not attempted" here as well.

    Raises:
        NotAttempted, NotYet: as `check` does, with a line in place of the box, which the check above has shown.
    """
    verdict = judge_safely(find(name), answers)
    if verdict.state != "correct":
        if verdict.state == "not yet":
            print(f"First the check above: {verdict.diagnosis}")
        raise verdict.to_error()


def same_or_stop(mine: Any, course: Any, says: str = "", tried: str = "") -> None:
    """Go on if both are the same, else show in a box where they part, and stop.

    Args:
        says: what it means that they differ, such as "with your mask the model writes something else".
        tried: what was run.

    Raises:
        NotYet: they differ. Jupyter shows no traceback.
    """
    if (found := difference(mine, course)) is None:
        return
    if course is True:  # a condition: what it was about stands in `says`
        refuse(NotYet("differs-in-engine", as_sentence(says)))
    says = f"{as_sentence(says)} {as_sentence(found[1])}".strip()
    refuse(NotYet("differs-in-engine", says, tried, mine, course))


def refuse(error: NotYet) -> NoReturn:
    """What the engine showed, in a box."""
    parts = boxes.parts_of(verdict_of(error), "with yours", "with the course's")
    boxes.display(boxes.Box("not yet", "Not yet the same in the engine", parts))
    raise error


def timed(run: Callable[[], Any], rounds: int = 2) -> tuple[Any, float]:
    """What `run` gives, and the seconds of its fastest round. The first round also warms the machine up."""
    fastest = float("inf")
    for _ in range(rounds):
        began = time.perf_counter()
        out = run()
        fastest = min(fastest, time.perf_counter() - began)
    return out, fastest


def speed(mine: float, course: float) -> str:
    """One line about two times. Rounded: the last digits are noise."""
    return f"Speed: with your part it takes {mine / course:.1f} times as long as with the course's."
