"""A look into real models: what the heads of a layer attend to.

Nothing here changes a model: the figure shows the weights that it computed.
"""

import argparse
from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.figure import Figure

from labkit.errors import LabError
from labkit.figures import GREY, INK, new_figure
from labkit.lab import Lab
from labkit.models import find_model, load_reference
from phase1_tokens_embeddings.weights.gguf_model import load_tokenizer
from phase2_attention_kvcache.model import Transformer
from phase2_attention_kvcache.story.heads_at_work import weights_of

MOST_TOKENS_DRAWN = 32  # more labels than this cannot be read in a figure


def head_habits(weights: torch.Tensor) -> dict[str, torch.Tensor]:
    """The weight that each head gives to the previous token, to the token itself, and to the first token.

    Args:
        weights: [num_heads, N, N] from `attention_weights`, N >= 2.

    Returns:
        For each habit the weight [num_heads], averaged over all tokens but the first (which has no choice).
        "even" is what a head would give to any one token if it spread its attention weight evenly: the yardstick.
    """
    rows = weights[:, 1:, :]
    num_tokens = weights.shape[-1]
    even = sum(1 / (i + 1) for i in range(1, num_tokens)) / (num_tokens - 1)
    return {
        "previous": torch.diagonal(rows, 0, -2, -1).mean(-1),
        "itself": torch.diagonal(rows, 1, -2, -1).mean(-1),
        "first": rows[:, :, 0].mean(-1),
        "even": torch.full((weights.shape[0],), even),
    }


def after_copies(weights: torch.Tensor, ids: Sequence[int]) -> torch.Tensor:
    """The weight that each head gives to tokens that followed an earlier copy of the present token (induction heads).

    Args:
        weights: [num_heads, N, N] from `attention_weights`. ids: the N tokens.

    Returns:
        The weight [num_heads], averaged over all tokens with an earlier copy; 0 where no token has one.
    """
    followers = {i: [j + 1 for j in range(i) if ids[j] == ids[i]] for i in range(len(ids))}
    shares = [weights[:, i, places].sum(-1) for i, places in followers.items() if places]
    return torch.stack(shares).mean(0) if shares else torch.zeros(weights.shape[0])


def draw_head(weights: torch.Tensor, tokens: Sequence[str], finding: str, subtitle: str) -> Figure:
    """A heat map of one head. weights: [N, N], its attention weights."""
    n = len(tokens)
    labels = [t.strip().replace("\n", "\\n") or repr(t) for t in tokens]
    past = np.tril(np.ones((n, n), dtype=bool))
    fig, (axis,) = new_figure(finding, subtitle, size=(6.4, 6.2))
    axis.imshow(np.where(past, weights.numpy(), np.nan), cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axis.set_facecolor(GREY + "55")
    axis.grid(False)
    size = 10 if n <= 16 else 6
    centred = dict(ha="center", va="center", fontsize=size - 1)
    for i, j in zip(*np.nonzero(past & (weights.numpy() >= 0.05)), strict=True):
        color = "white" if weights[i, j] > 0.5 else INK
        axis.text(j, i, f"{100 * weights[i, j]:.0f}", color=color, **centred)
    axis.set_xticks(range(n), labels, rotation=90, fontsize=size)
    axis.set_yticks(range(n), labels, fontsize=size)
    axis.set(xlabel="token attended to (key)", ylabel="token that attends (query)")
    return fig


def load_sentence(args: argparse.Namespace) -> tuple[Transformer, list[int], list[str]]:
    """Load --model, encode --text, check --layer.

    Returns:
        The model, the ids of the text, and its tokens as texts.

    Raises:
        LabError: too few or too many tokens, or no such layer.
    """
    folder = find_model(args.model)
    model = Transformer.from_pretrained(folder)
    tok = load_tokenizer(folder)
    ids = tok.encode(args.text)
    longest = min(MOST_TOKENS_DRAWN, model.config.max_context)
    if not 2 <= len(ids) <= longest:
        raise LabError(f"--text has {len(ids)} tokens: use 2 to {longest}, so that the figure can be read")
    last = model.config.num_layers - 1
    if args.layer is not None and not 0 <= args.layer <= last:
        raise LabError(f"--layer {args.layer} is out of range: this model has layers 0 to {last}")
    return model, ids, [tok.decode([i]) for i in ids]


def show_heads(lab: Lab, model: Transformer, ids: list[int], tokens: list[str]) -> None:
    """The story's last part: the heads of --model on --text, in numbers and as a figure."""
    lab.title(f"What the heads of {lab.args.model} attend to")
    weights = weights_of(model, ids)
    # "eager" computes the weights openly; the fused kernels never write them down.
    theirs = load_reference(lab.args.model, attn_implementation="eager")
    with torch.no_grad():
        own = theirs(torch.tensor([ids]), output_attentions=True).attentions
    gap = max((w - o[0]).abs().max().item() for w, o in zip(weights, own, strict=True))
    lab.predict(
        "attention-of-a-model",
        "our weights are those of transformers to 4 decimals, in every layer",
        predicted=True,
        measured=gap < 1e-4,
    )
    habits = [head_habits(w) | {"copy": after_copies(w, ids)} for w in weights]
    kind = "copy" if len(set(ids)) < len(ids) else "previous"
    layers = range(len(habits)) if lab.args.layer is None else [lab.args.layer]
    layer = max(layers, key=lambda i: habits[i][kind].max().item())
    chosen = habits[layer]
    head = int(chosen[kind].argmax())
    rounded = [
        [round(x, 2) for x in chosen[name].tolist()] for name in ("previous", "itself", "first", "copy")
    ]
    even = chosen["even"][0].item()
    lab.say(f"""Weights averaged over the {len(ids) - 1} tokens after the first, which can only attend to itself. A
        head that spread its attention weight evenly would give {even:.2f} to each of the first three.""")
    lab.table(
        f"Patterns of the heads in layer {layer}",
        ["head", "previous token", "itself", "first token", "what followed an earlier copy"],
        [[h, *row] for h, row in enumerate(zip(*rounded))],
        note="A first-token weight far above the even one is an attention sink: weights must add up to 1, so a head that finds "
        "nothing relevant gives them to a token where they do little harm. Last column: only tokens that stood before.",
    )
    own_weights = weights[layer][head]
    rows = [i for i in range(1, len(ids)) if kind == "previous" or ids[i] in ids[:i]]
    row = max(rows, key=lambda i: own_weights[i].max().item())
    key = int(own_weights[row].argmax())
    finding = (
        f"Layer {layer}, head {head}: {tokens[row].strip()!r} gives {own_weights[row, key]:.0%} of its weight to "
        f"{tokens[key].strip()!r}"
    )
    lab.figure(
        draw_head(
            own_weights,
            tokens,
            finding,
            f"{lab.args.model}; attention weights in percent, each row adds up to 100",
        ),
        "attention_heads",
    )
