"""Which pieces stand on the page, and what each shows before the reader touches it.

A chapter says where: <!-- piece: tokens --> on a line of its own. Code hosts show nothing there.
"""

import json
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

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


class OnPage(NamedTuple):
    """A piece on the page.

    Attributes:
        label: its title. task: something to try, with words that set the piece (`extension.set_by_click`).
        make: the piece, with its data and the text for readers who cannot see it.
    """

    label: str
    task: str
    make: Callable[[], Piece]


@cache
def tales() -> tuple[Transformer, BPETokenizer]:
    """The model that the page runs, in Python: what a piece shows first is computed with it."""
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


def cramped_run() -> Recording:
    """An engine with little room, so that everything happens within a few steps; the notebook of phase 4 has it too."""
    engine = LLMEngine.from_pretrained(
        "tales", dtype="float32", device="cpu",
        max_num_seqs=3, max_num_batched_tokens=12, num_blocks=14, block_size=4, max_model_len=48,
    )  # fmt: skip
    common = "Once upon a time there was a king who "
    arrivals = [
        (1, "Ann", common + "lived in a castle by the sea and", 18),
        (1, "Ben", common + "had", 16),
        (3, "Lea", "The cat looked at the moon and", 14),
        (60, "Zoe", common + "slept", 6),
    ]
    return Recording.of(
        engine,
        [
            (step, name, prompt, SamplingParams(temperature=0, max_tokens=n, ignore_eos=True))
            for step, name, prompt, n in arrivals
        ],
    )


def of_notebook(phase: str, module: str) -> Piece:
    """A piece as a companion notebook shows it: what takes long was worked out there.

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


PIECES = {
    "journey": OnPage(
        "Follow a prompt to the next token",
        "Change the prompt, choose another token in stage 1, or append the next token. The address then holds your prompt.",
        journey,
    ),
    "tokens": OnPage(
        "Type into a tokenizer",
        "Write [grandmother]{text=grandmother}, then [the same word after a space]{text= grandmother}: how many tokens is each? Then remove [all merges]{merges=0}.",
        lambda: tokenizer_piece(tales()[1]),
    ),
    "embedding": OnPage(
        "A map of your words",
        "Which words are close to each other among [king queen bread milk forest tree]{words=king queen bread milk forest tree}?",
        lambda: embedding_piece(load_embeddings(find_model("tales"))),
    ),
    "rotary": OnPage(
        "Turn a query and a key",
        "Move [both by 1,000]{!far}: every dial turns, and the score stays. Why?",
        rotary_piece,
    ),
    "head": OnPage(
        "One head, number by number",
        "Let [the first word]{who looks=0} attend: which weight does it give, and why? Then follow the numbers of [the model]{whose numbers=model}.",
        head,
    ),
    "attention": OnPage(
        "Which token attends to which",
        "Of [layer 4, head 2]{layer=3; head=1} and [layer 4, head 4]{layer=3; head=3} one attends to the first token and one to tokens close by. Which is which?",
        attention,
    ),
    "lens": OnPage(
        "The answer, layer by layer",
        "After which layer does the answer lead after [Once upon a]{text=Once upon a}? Is it most certain after the last layer?",
        lambda: lens_piece(*tales()),
    ),
    "drawers": OnPage(
        "Open the drawers of the MLP",
        "How many drawers are open in [layer 1]{layer=0}, and how many in [layer 6]{layer=5}?",
        lambda: drawers_piece(*tales()),
    ),
    "sampling": OnPage(
        "Change the sampling parameters",
        "At [temperature 2]{temperature=2; min_p=0} every token is possible. How many are left with [min_p 0.1]{temperature=2; min_p=0.1}?",
        lambda: sampling_piece(*tales()),
    ),
    "decoding": OnPage(
        "Write a text with a cache and without",
        "Go to the [last step]{step=15}: how many tokens has the loop without a cache computed altogether?",
        lambda: decoding_piece(Decoding.of(*tales(), "Once upon a time there was", new_tokens=16)),
    ),
    "roofline": OnPage(
        "Change the batch size",
        "With [64 tokens each]{tokens each=0; users=511} 512 users make arithmetic the limit. Does it stay so with [512 tokens each]{tokens each=3; users=511}?",
        roofline_piece,
    ),
    "bits": OnPage(
        "Change the number of bits",
        "Which loses less: [4 bits with a scale for a row]{bits=2; a scale for=0}, or [3 bits with a scale for 32 weights]{bits=1; a scale for=32}?",
        lambda: of_notebook("phase2_attention_kvcache", "bits"),
    ),
    "splits": OnPage(
        "Fill a card with programs",
        "One user with 32,768 tokens: how much of the card works [without splits]{users=0; tokens=7; cut=off}, and how much [with them]{cut=on}?",
        splits_piece,
    ),
    "cards": OnPage(
        "Share a model",
        "On [8 cards with PCIe]{cards=3; wire=PCIe}, which takes longer: reading, or the wire and its fixed delays? And with [NVLink]{cards=3; wire=NVLink}?",
        cards_piece,
    ),
    "batching": OnPage(
        "Fill the batch",
        "For which answers does continuous batching gain nothing? Try [equal lengths]{tokens of each answer=20 20 20 20 20 20} and [one long answer in each batch]{tokens of each answer=40 2 2 40 2 2 40 2 2}.",
        batching_piece,
    ),
    "blocks": OnPage(
        "Give tokens blocks",
        "[Add a token]{!append A} to request A, and once more: when does it take a new block? Then [free it]{!free A}: where in the free list do its blocks go?",
        lambda: allocator_piece(caching=False, operations=[("add", 0, 11), ("add", 0, 6)]),
    ),
    "allocator": OnPage(
        "Allocate and free blocks",
        "[Add the common prompt again]{shared tokens=8; own tokens=3; !add}: which of its blocks are new? Then free all requests and add it once more.",
        lambda: allocator_piece(operations=[("add", 8, 3), ("add", 8, 2), ("add", 0, 5)]),
    ),
    "chunks": OnPage(
        "One long prompt among short steps",
        "Set the budget to [192 tokens]{tokens a step (the budget)=0}: the longest wait shrinks. What does the prompt pay for it?",
        chunks_piece,
    ),
    "speculation": OnPage(
        "Let a small model guess",
        "Which number of drafts, [1]{drafts a step=1} or [8]{drafts a step=8}, needs fewer steps of the large model, and which wastes more drafts?",
        lambda: speculation_piece(tales()[0], Transformer.from_pretrained("tales-draft"), tales()[1]),
    ),
    "replay": OnPage(
        "Watch an engine",
        "Go to the [next step in which a request waits]{!next wait}. Which request waits, and what is missing?",
        lambda: replay_piece(cramped_run()),
    ),
}


@cache
def piece_of(name: str) -> Piece:
    """A piece of the page, made once."""
    return PIECES[name].make()
