"""The MLP as an archive: the drawers that a text opens, and the tokens that their contents raise."""

from collections.abc import Sequence

import torch
from torch import Tensor

from phase1_tokens_embeddings.tokens import BPETokenizer
from phase2_attention_kvcache.model import NoCache, Transformer
from web.pieces.piece import Piece, in_words

SHOWN = 6  # drawers of a token, and tokens that a drawer raises
OPEN = 0.5


@torch.inference_mode()
def opened_by(model: Transformer, token_ids: Sequence[int]) -> list[Tensor]:
    """Return how far each drawer is open, the activations between the two matrices of the MLP: [N, d_ff] for each layer."""
    seen: list[Tensor] = []
    hooks = [
        block.mlp.down.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        for block in model.blocks
    ]
    model(torch.tensor(token_ids), torch.arange(len(token_ids)), NoCache())
    for hook in hooks:
        hook.remove()
    return seen


@torch.inference_mode()
def handed_out(model: Transformer, layer: int, values: Tensor) -> list[tuple[int, list[int]]]:
    """Return the drawers with the largest outputs, that is, how far they are open (`values` [d_ff]) times the length of their
    content; with each the tokens whose scores its content raises most.

    Source: Geva et al., "Transformer Feed-Forward Layers Are Key-Value Memories" (2021), section 4.
    """
    contents = model.blocks[layer].mlp.down.weight  # [d_model, d_ff]: a column is a content
    given = values.abs() * contents.norm(dim=0)
    return [
        (drawer, model.logits(contents[:, drawer][None])[0].topk(SHOWN).indices.tolist())
        for drawer in given.topk(SHOWN).indices.tolist()
    ]


def drawers_piece(model: Transformer, tok: BPETokenizer) -> Piece:
    """Make the piece: a text, and for each of its tokens and each layer the drawers with the largest outputs."""
    text = "Once upon a time there was a little girl who went to the sea"
    layer = 4  # shown first, counted from 0
    ids = tok.encode(text)
    values = opened_by(model, ids)[layer]
    rows = [
        {
            "drawer": drawer,
            "values": [round(x, 3) for x in values[:, drawer].tolist()],
            "raises": [tok.decode([i]) for i in tokens],
        }
        for drawer, tokens in handed_out(model, layer, values[-1])
    ]
    tokens = [tok.decode([i]) for i in ids]
    data = {
        "text": text,
        "tokens": tokens,
        "layer": layer,
        "layers": model.config.num_layers,
        "rows": rows,
        "drawers": model.config.d_ff,
        "open": int((values[-1] > OPEN).sum()),
    }
    lines = [
        f"drawer {row['drawer']:>4}, open {row['values'][-1]:.2f}: raises {', '.join(map(repr, row['raises']))}"
        for row in rows
    ]
    what = (
        f"Layer {layer + 1}, the last token of “{text}”. Of {data['drawers']:,} drawers {data['open']} are open "
        f"(above {OPEN:g}). Those that give most:"
    )
    return Piece("drawers", data, in_words("A text to change.", what, lines))
