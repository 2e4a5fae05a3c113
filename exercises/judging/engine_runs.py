"""For the cells "Into the engine": the embedded model, prompts for it, and what the engine refuses."""

from functools import cache
from typing import NoReturn

from exercises.judging import boxes
from exercises.judging.comparing import verdict_of
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


def refuse(error: NotYet) -> NoReturn:
    """What the engine showed, in a box."""
    boxes.display(boxes.engine_box(verdict_of(error)))
    raise error
