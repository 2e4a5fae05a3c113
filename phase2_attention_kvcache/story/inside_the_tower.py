"""The chapters of the transformer: its parameters, how close it is to transformers, its answer after each layer."""

from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from labkit.figures import BLUE, GREY, INK, ORANGE, PURPLE, new_figure
from labkit.lab import Lab
from labkit.models import load_reference
from phase1_tokens_embeddings.tokens import BPETokenizer
from phase2_attention_kvcache.model import NoCache, Transformer


def tell_parameters(lab: Lab, model: Transformer) -> None:
    c = model.config
    lab.say(f"""A token enters as a vector of {c.d_model} numbers. {c.num_layers} layers add to it, one after
        the other. The last vector is compared with all {c.vocab_size:,} rows of the token table: the
        best match is the most probable next token.""")

    lab.title("Where the parameters are")
    parts = c.parameters_by_part()
    total = sum(parts.values())
    lab.table(
        f"{lab.args.model}: {total:,} parameters", ["part", "parameters", "share %"],
        [[name, n, 100 * n / total] for name, n in parts.items()],
        note=f"Each token costs about 2 x {total / 1e6:.1f}M operations: one multiplication and one addition "
             "per parameter.",
    )  # fmt: skip


def encode_prompt(lab: Lab, model: Transformer, tok: BPETokenizer) -> Tensor:
    """The ids of --prompt, [N]. A ValueError if they do not fit the model's context."""
    ids = torch.tensor(tok.encode(lab.args.prompt) or [tok.eos_token_id or 0], device=lab.device)
    if len(ids) > model.config.max_context:
        raise ValueError(
            f"the prompt has {len(ids)} tokens, this model's context is {model.config.max_context}: shorten it"
        )
    return ids


def tell_agreement(lab: Lab, model: Transformer, folder: Path, ids: Tensor) -> None:
    lab.title("The same numbers as Hugging Face's implementation")
    ours = model if model.dtype == torch.float32 else Transformer.from_pretrained(folder, device=model.device)
    with torch.inference_mode():
        hidden = ours(ids, torch.arange(len(ids), device=ours.device), NoCache(ours.config))
        expected = load_reference(folder)(ids.cpu()[None]).logits[0]
        difference = float((ours.logits(hidden).cpu() - expected).abs().max())
        largest = float(expected.abs().max())
    lab.predict(
        "logits-equal-transformers",
        "our logits and transformers' agree in float32, to a hundred-thousandth of the largest",
        predicted=True,
        measured=difference < 1e-5 * largest,
        note=f"Largest difference over {len(ids)} tokens x {model.config.vocab_size:,} scores: {difference:.1e}. "
        f"Largest score: {largest:.1f}.",
    )
    lab.record(largest_logit_difference=difference)


def tell_layers(lab: Lab, model: Transformer, tok: BPETokenizer, ids: Tensor) -> None:
    lab.title("How the answer forms, layer by layer")
    layers = guesses_by_layer(model, ids)
    best = layers[-1].topk(5)
    names = [repr(tok.decode([i])) for i in best.indices.tolist()]
    lab.table(
        f"The model's five best next tokens after {lab.args.prompt!r}", ["token", "probability %"],
        [[name, 100 * p] for name, p in zip(names, best.values.tolist())],
    )  # fmt: skip
    lab.figure(draw_layers(layers[1:, best.indices].cpu(), names, lab.args.prompt), "answer_by_layer")


@torch.inference_mode()
def guesses_by_layer(model: Transformer, token_ids: Tensor) -> Tensor:
    """The next-token probabilities if the model ended after each layer ("logit lens").

    Returns:
        [num_layers + 1, vocab_size] probabilities for the next token; row 0 is before the first layer.
    """
    streams: list[Tensor] = []

    def listen(_, args) -> None:
        streams.append(args[0][-1])

    hooks = [part.register_forward_pre_hook(listen) for part in (*model.blocks, model.final_norm)]
    model(token_ids, torch.arange(len(token_ids), device=model.device), NoCache(model.config))
    for hook in hooks:
        hook.remove()
    return model.logits(model.final_norm(torch.stack(streams))).float().softmax(-1)


def draw_layers(probabilities: Tensor, names: list[str], prompt: str) -> Figure:
    """Probability of the model's most probable tokens after each layer. probabilities: [num_layers, names]."""
    layers = range(1, len(probabilities) + 1)
    leads = [bool((probabilities[i:].argmax(-1) == 0).all()) for i in range(len(probabilities))]
    decided = leads.index(True) + 1
    where = "in the last layer" if decided == len(probabilities) else f"from layer {decided} on"
    fig, (ax,) = new_figure(
        f"{names[0]} leads " + (f"its rivals only {where}" if decided > 1 else "from the first layer on"),
        f"If the model ended early: its five most probable tokens after {prompt!r}",
        size=(7.2, 4.6),
    )
    marks = zip("os^Dv", (BLUE, ORANGE, PURPLE, GREY, INK), strict=True)
    for i, (name, (marker, color)) in enumerate(zip(names, marks, strict=True)):
        width = 2.6 if i == 0 else 1.6
        ax.plot(layers, 100 * probabilities[:, i], marker=marker, color=color, label=name, linewidth=width)
    ax.set(xlabel="after layer", ylabel="probability, %", ylim=(0, None), xticks=list(layers))
    ax.legend(title="next token", loc="upper left", bbox_to_anchor=(1.01, 1))
    return fig
