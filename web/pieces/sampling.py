"""The sampling parameters on the model's own distribution."""

import torch

from phase1_tokens_embeddings.tokens import BPETokenizer
from phase2_attention_kvcache.model import NoCache, Transformer
from web.pieces.piece import Piece, in_words

SHOWN = 12


@torch.inference_mode()
def sampling_piece(model: Transformer, tok: BPETokenizer) -> Piece:
    """The distribution of the token after a text, under temperature, top_k, top_p and min_p."""
    text = "The cat looked at the moon and"
    ids = tok.encode(text)
    logits = model.logits(model(torch.tensor(ids), torch.arange(len(ids)), NoCache())[-1:])[0]
    tokens = [
        b.decode("utf-8", errors="replace").replace(" ", "␣").replace("\n", "↵") for b in tok.token_bytes
    ]
    probs = logits.softmax(-1)
    lines = [f"{tokens[i]:<12} {probs[i]:6.1%}" for i in probs.topk(SHOWN).indices.tolist()]
    data = {"text": text, "logits": [round(x, 4) for x in logits.tolist()], "tokens": tokens}
    what = f"The likeliest tokens after “{text}”, before any parameter is changed."
    return Piece("sampling", data, in_words(what, lines))
