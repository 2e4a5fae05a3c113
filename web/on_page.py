"""The pieces of the page, with the data that each shows at first.

A chapter says where: <!-- piece: tokens --> on a line of its own. Code hosts show nothing there. contents.toml has the title and
the task of each.
"""

import json
from collections.abc import Callable
from functools import cache

from labkit.models import find_model
from labkit.paths import ROOT
from phase1_tokens_embeddings.tokens import BPETokenizer
from phase1_tokens_embeddings.weights.embeddings import load_embeddings
from phase2_attention_kvcache.model import SamplingParams, Transformer
from phase2_attention_kvcache.story.heads_at_work import weights_of
from phase4_scheduler.engine import LLMEngine
from web.pieces.allocator import allocator_piece
from web.pieces.attention import attention_piece
from web.pieces.batching import batching_piece
from web.pieces.cards import cards_piece
from web.pieces.chunks import chunks_piece
from web.pieces.decoding import Decoding, decoding_piece
from web.pieces.drawers import drawers_piece
from web.pieces.embedding import embedding_piece
from web.pieces.head import head_piece
from web.pieces.journey import journey_piece
from web.pieces.lens import lens_piece
from web.pieces.piece import Piece, piece_in
from web.pieces.replay import Recording, replay_piece
from web.pieces.roofline import roofline_piece
from web.pieces.rotary import rotary_piece
from web.pieces.sampling import sampling_piece
from web.pieces.speculation import speculation_piece
from web.pieces.splits import splits_piece
from web.pieces.tokens import tokenizer_piece
from web.texts import read_contents


@cache
def tales() -> tuple[Transformer, BPETokenizer]:
    """Return the model of the page, in Python: it computes the first state of the pieces."""
    return Transformer.from_pretrained("tales"), BPETokenizer.from_file(
        find_model("tales") / "tokenizer.json"
    )


def attention() -> Piece:
    model, tok = tales()
    ids = tok.encode("The king took off his crown, because the king was tired of it.")
    return attention_piece(weights_of(model, ids), [tok.decode([i]) for i in ids])


def head() -> Piece:
    config = tales()[0].config
    return head_piece("The king took off his crown", config.num_layers, config.num_heads)


def journey() -> Piece:
    prompt = "Once upon a time a wolf came to the house and knocked at the"
    return journey_piece(*tales(), prompt, {s.name: s.title for s in read_contents().sections})


def cramped_engine() -> LLMEngine:
    """Return an engine with little memory, so that waiting and preemption come within a few steps. Phase 4's notebook has the same one."""
    return LLMEngine.from_pretrained(
        "tales", dtype="float32", device="cpu",
        max_num_seqs=3, max_num_batched_tokens=12, num_blocks=14, block_size=4, max_model_len=48,
    )  # fmt: skip


def cramped_run() -> Recording:
    common = "Once upon a time there was a king who "
    arrivals = [
        (1, "bob", common + "lived in a castle by the sea and", 18),
        (1, "carol", common + "had", 16),
        (3, "alice", "The cat looked at the moon and", 14),
        (60, "zoe", common + "slept", 6),
    ]
    return Recording.of(
        cramped_engine(),
        [
            (step, name, prompt, SamplingParams(temperature=0, max_tokens=n, ignore_eos=True))
            for step, name, prompt, n in arrivals
        ],
    )


def of_notebook(phase: str, module: str) -> Piece:
    """Return a piece from the outputs of a companion notebook, which has computed what takes long.

    Raises:
        ValueError: the notebook has no such output.
    """
    notebook = json.loads((ROOT / "notebooks" / f"{phase}.ipynb").read_text(encoding="utf-8"))
    outputs = [o for cell in notebook["cells"] for o in cell.get("outputs", ())]
    pages = ["".join(o.get("data", {}).get("text/html", "")) for o in outputs]
    for page in pages:
        if (piece := piece_in(page)) and piece.module == module:
            return piece
    raise ValueError(
        f"notebooks/{phase}.ipynb does not show {module!r}: run the notebook, or `make companions`"
    )


PIECES: dict[str, Callable[[], Piece]] = {
    "journey": journey,
    "tokens": lambda: tokenizer_piece(tales()[1]),
    "embedding": lambda: embedding_piece(load_embeddings(find_model("tales"))),
    "rotary": rotary_piece,
    "head": head,
    "attention": attention,
    "lens": lambda: lens_piece(*tales()),
    "drawers": lambda: drawers_piece(*tales()),
    "sampling": lambda: sampling_piece(*tales()),
    "decoding": lambda: decoding_piece(Decoding.of(*tales(), "Once upon a time there was", new_tokens=16)),
    "roofline": roofline_piece,
    "bits": lambda: of_notebook("phase2_attention_kvcache", "bits"),
    "splits": splits_piece,
    "cards": cards_piece,
    "batching": batching_piece,
    "blocks": lambda: allocator_piece(caching=False, operations=[("add", 0, 11), ("add", 0, 6)]),
    "allocator": lambda: allocator_piece(operations=[("add", 8, 3), ("add", 8, 2), ("add", 0, 5)]),
    "chunks": chunks_piece,
    "speculation": lambda: speculation_piece(
        tales()[0], Transformer.from_pretrained("tales-draft"), tales()[1]
    ),
    "replay": lambda: replay_piece(cramped_run()),
}
"""By name, the function that makes a piece."""


@cache
def piece_of(name: str) -> Piece:
    """Return a piece of the page; it is made once."""
    return PIECES[name]()
