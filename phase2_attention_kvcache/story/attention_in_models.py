"""A look into real models: in which order a block works, and what its heads look at.

Nothing here changes a model: what is shown is what it really computed.
"""

import argparse
from collections.abc import Callable, Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn

from labkit.errors import LabError
from labkit.figures import GREY, new_figure
from labkit.lab import Lab
from labkit.models import find_model, load_reference
from phase1_tokens_embeddings.weights.gguf_model import load_tokenizer
from phase2_attention_kvcache.model import Transformer
from phase2_attention_kvcache.story.heads_at_work import weights_of

MOST_TOKENS_DRAWN = 32  # more labels than this cannot be read in a figure


def block_order(model: nn.Module, token_ids: torch.Tensor) -> list[str]:
    """Run a GPT-2 (`GPT2Model`) and note in which order its first block works: PyTorch calls a forward hook after each part.

    A residual connection ("add the input back") has no part of its own that one could listen to. It is found
    by arithmetic: does the next part get exactly input + output?
    """
    block = model.h[0]
    names = {"ln_1": "LayerNorm", "attn": "attention", "ln_2": "LayerNorm", "mlp": "MLP"}
    came_in: dict[str, torch.Tensor] = {}
    went_out: dict[str, torch.Tensor] = {}  # in the order in which the parts finished

    def listen(name: str) -> Callable:
        def hook(_module, inputs, output) -> None:
            came_in[name] = inputs[0]
            went_out[name] = output[0] if isinstance(output, tuple) else output

        return hook

    hooks = [getattr(block, name).register_forward_hook(listen(name)) for name in names]
    hooks.append(block.register_forward_hook(listen("block")))
    with torch.no_grad():
        model(token_ids)
    for hook in hooks:
        hook.remove()

    # Part -> (what a residual would add to, what the sum would be).
    sums = {"attn": (came_in["block"], came_in["ln_2"]), "mlp": (came_in["ln_2"], went_out["block"])}
    order = []
    for part in (name for name in went_out if name in names):
        order.append(names[part])
        if part in sums:
            before, after = sums[part]
            if torch.allclose(before + went_out[part], after, atol=1e-6):
                order.append("residual")
    return order


def head_habits(weights: torch.Tensor) -> dict[str, torch.Tensor]:
    """How much each head looks at the previous token, at itself, and at the first token.

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


def draw_heads(
    weights: torch.Tensor, best: int, tokens: Sequence[str], finding: str, subtitle: str
) -> Figure:
    """Heat maps of up to four heads of one layer, the one called `best` among them.

    Args:
        weights: [num_heads, N, N] from `attention_weights`.
    """
    shown = sorted([best, *[h for h in range(weights.shape[0]) if h != best][:3]])
    labels = [t.replace("\n", "\\n") for t in tokens]
    past = np.tril(np.ones(weights.shape[1:], dtype=bool))
    # The first token always gives itself 1; leaving it out lets the others use the whole scale.
    darkest = max(weights[shown, 1:].max().item(), 0.1)
    fig, axes = new_figure(finding, subtitle, panels=len(shown), size=(3.6 * len(shown) + 1.6, 5.6))
    for axis, head in zip(axes, shown, strict=True):
        seen = np.where(past, weights[head].numpy(), np.nan)
        image = axis.imshow(seen, cmap="Blues", vmin=0, vmax=darkest, aspect="auto")
        axis.set_facecolor(GREY + "55")
        axis.set_title(f"head {head}", fontsize=10)
        axis.grid(False)
        size = 8 if len(tokens) <= 20 else 6
        axis.set_xticks(range(len(tokens)), labels, rotation=90, fontsize=size)
        axis.set_yticks(range(len(tokens)), labels if axis is axes[0] else [""] * len(tokens), fontsize=size)
        axis.set_xlabel("token looked at (key)")
    axes[0].set_ylabel("token that looks (query)")
    fig.colorbar(image, ax=axes, shrink=0.8, pad=0.01, extend="max", label="attention weight")
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
    lab.title(f"What the heads of {lab.args.model} look at")
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
    habits = [head_habits(w) for w in weights]
    layer = lab.args.layer
    if layer is None:  # the layer with the head that looks at the previous token the most
        layer = max(range(len(habits)), key=lambda i: habits[i]["previous"].max().item())
    chosen = habits[layer]
    best = int(chosen["previous"].argmax())
    rounded = [[round(x, 2) for x in chosen[name].tolist()] for name in ("previous", "itself", "first")]
    weight, even = chosen["previous"][best].item(), chosen["even"][0].item()
    lab.say(f"""Weights averaged over the {len(ids) - 1} tokens after the first, which has only itself to look at. A
        head that spread its attention weight evenly would give {even:.2f} to each of the three.""")
    lab.table(
        f"Habits of layer {layer}",
        ["head", "previous token", "itself", "first token"],
        [[h, *row] for h, row in enumerate(zip(*rounded))],
        note="A first-token weight far above the even one is a resting place: weights must add up to 1, so a "
        "head that finds nothing of interest has to put them somewhere.",
    )
    strong = weight > 2 * even
    verdict = "That is a habit." if strong else "Under twice the even weight: a leaning, not a habit."
    lab.say(f"""The strongest previous-token head of this layer is head {best}: {weight:.2f}, which is
        {weight / even:.1f} times the even weight. {verdict}""")
    lab.record(layer=layer, text=lab.args.text, tokens=len(ids), even_share=even,
        previous_token_head=best, previous_token_share=weight)  # fmt: skip
    finding = (
        f"Head {best} of layer {layer} gives {weight:.0%} of its attention to the previous token"
        if strong
        else f"No head of layer {layer} looks mainly at the previous token ({weight:.0%} at most)"
    )
    subtitle = (
        f"{lab.args.model}, {len(ids)} tokens; an even spread would give it {even:.0%}. Rows add up to 1."
    )
    lab.figure(draw_heads(weights[layer], best, tokens, finding, subtitle), "attention_heads")
