"""Looks into a model: where its parameters are, what it would answer after each layer, how close it is to transformers."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from labkit.models import load_reference
from phase2_attention_kvcache.model.caches import NoCache
from phase2_attention_kvcache.model.transformer import Transformer


def parts_of(model: Transformer) -> list[tuple[str, int]]:
    """Parameters by part of the model, in the order in which a token meets them."""
    groups = {
        "token table": ("token_table",),
        "position table": ("position_table",),
        "attention, all layers": ("attention.qkv", "attention.out"),
        "MLP, all layers": ("mlp.",),
        "norms": ("norm",),
        "output head": ("head",),
    }
    counts = dict.fromkeys(groups, 0)
    for name, parameter in model.named_parameters():
        group = next(g for g, marks in groups.items() if any(mark in name for mark in marks))
        counts[group] += parameter.numel()
    return [(group, count) for group, count in counts.items() if count]


@torch.inference_mode()
def guesses_by_layer(model: Transformer, token_ids: Tensor) -> Tensor:
    """What the model would answer if the tower ended after each layer ("logit lens").

    Returns:
        [num_layers + 1, vocab_size] probabilities for the next token; row 0 is before the first layer.
    """
    streams: list[Tensor] = []
    hooks = [
        block.register_forward_pre_hook(lambda _, args: streams.append(args[0][-1])) for block in model.blocks
    ]
    hooks.append(model.final_norm.register_forward_pre_hook(lambda _, args: streams.append(args[0][-1])))
    model(token_ids, torch.arange(len(token_ids), device=model.device), NoCache())
    for hook in hooks:
        hook.remove()
    return model.logits(model.final_norm(torch.stack(streams))).float().softmax(-1)


def largest_difference(model: Transformer, folder: Path, token_ids: Tensor) -> tuple[float, float]:
    """Our logits beside Hugging Face's, over all tokens of a prompt, in float32.

    Returns:
        The largest difference, and the largest logit.
    """
    theirs = load_reference(folder)
    ours = model if model.dtype == torch.float32 else Transformer.from_pretrained(folder, device=model.device)
    with torch.inference_mode():
        hidden = ours(token_ids, torch.arange(len(token_ids), device=ours.device), NoCache())
        expected = theirs(token_ids.cpu()[None]).logits[0]
        return float((ours.logits(hidden).cpu() - expected).abs().max()), float(expected.abs().max())


def draw_layers(probabilities: Tensor, names: list[str], prompt: str):
    """Probability of the final favourites after each layer. probabilities: [num_layers, names]."""
    from labkit.figures import new_figure

    layers = range(1, len(probabilities) + 1)
    leads = [bool((probabilities[i:].argmax(-1) == 0).all()) for i in range(len(probabilities))]
    decided = leads.index(True) + 1
    where = "in the last layer" if decided == len(probabilities) else f"from layer {decided} on"
    fig, (ax,) = new_figure(
        f"{names[0]} leads its rivals only {where}"
        if decided > 1
        else f"{names[0]} leads from the first layer on",
        f"If the tower ended early: probability of the five final favourites after {prompt!r}",
        size=(8.8, 4.6),
    )
    for i, name in enumerate(names):
        ax.plot(layers, 100 * probabilities[:, i], marker="o", label=name, linewidth=2.6 if i == 0 else 1.6)
    ax.set(xlabel="after layer", ylabel="probability, %", ylim=(0, None), xticks=list(layers))
    ax.legend(title="next token", loc="upper left", bbox_to_anchor=(1.01, 1))
    return fig
