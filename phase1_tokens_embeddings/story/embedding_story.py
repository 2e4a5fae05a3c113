"""The chapters of the embedding explorer."""

from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.transforms import Bbox
from torch import Tensor

from labkit.figures import COLORS, new_figure
from labkit.lab import Lab
from phase1_tokens_embeddings.weights import SHAPES, kv_per_token
from phase1_tokens_embeddings.weights.embeddings import Embeddings, cosine, pca_2d, same_rows

GROUPS: dict[str, list[str]] = {
    "animals": ["dog", "cat", "horse", "fox", "wolf", "bird", "fish", "mouse", "lion"],
    "family": ["mother", "father", "brother", "sister", "son", "daughter", "wife", "uncle"],
    "numbers": ["two", "three", "four", "five", "six", "seven", "ten", "twelve"],
    "colours": ["red", "green", "blue", "black", "white", "yellow", "brown"],
    "speech": ["said", "asked", "cried", "answered", "replied", "whispered"],
    "places": ["house", "castle", "garden", "forest", "kitchen", "village", "river"],
}
ARTICLE_PAIRS = [("king", "queen"), ("man", "woman"), ("dog", "cat"), ("king", "banana")]
ARTICLE_COSINES = [0.81, 0.64, 0.55, 0.26]


def pair_cosine(e: Embeddings, a: str, b: str) -> float | None:
    """Cosine of two words, or None if one of them is not a single token."""
    if e.token_of(a) is None or e.token_of(b) is None:
        return None
    va, vb = e.vectors([a, b])
    return float(cosine(va, vb))


def known_groups(e: Embeddings) -> dict[str, list[str]]:
    """The groups without the words that this vocabulary splits."""
    groups = {group: [w for w in words if e.token_of(w) is not None] for group, words in GROUPS.items()}
    return {group: words for group, words in groups.items() if len(words) > 1}


def within_and_across(similarity: Tensor, labels: list[str]) -> tuple[float, float]:
    """Mean cosine of two words of one group, and of two words of different groups."""
    same = torch.tensor([[a == b for b in labels] for a in labels])
    within = same & ~torch.eye(len(labels), dtype=torch.bool)
    return float(similarity[within].mean()), float(similarity[~same].mean())


def tell_tables(lab: Lab, e: Embeddings, name: str) -> None:
    from transformers import GPT2Config, GPT2Model

    lab.title("Two tables")
    gpt2 = SHAPES["gpt2"]
    with torch.device("meta"):  # shapes without memory
        model = GPT2Model(GPT2Config(n_layer=1))
    lab.predict(
        "wte-shape",
        "shape (rows / columns) of GPT-2's token table; its vectors have 768 numbers",
        predicted=[gpt2.vocab_size, gpt2.d_model],
        measured=list(model.wte.weight.shape),
        note="Measured on the GPT-2 of transformers. wte stands for word token embedding.",
    )
    lab.predict(
        "wpe-shape",
        "shape (rows / columns) of GPT-2's position table, from its context of 1,024 tokens",
        predicted=[gpt2.max_context, gpt2.d_model],
        measured=list(model.wpe.weight.shape),
    )
    tables = [(which, table) for which, table in (("wte", e.wte), ("wpe", e.wpe)) if table is not None]
    rows = [[which, str(list(t.shape)), t.numel(), float(t.norm(dim=1).mean())] for which, t in tables]
    lab.table(f"The tables of {name}", ["table", "shape", "numbers", "mean length of a row"], rows)
    if e.wpe is None:
        lab.say("""This model has no position table. It turns its queries and keys by an angle that grows with the
            position (rotary positions), inside attention: that is for phase 2.""")


def tell_neighbours(lab: Lab, e: Embeddings) -> None:
    lab.title("Neighbours")
    lab.say("""The cosine of the angle between two vectors is 1 for the same direction, 0 for unrelated directions. Training
        gave words that are used in similar contexts similar vectors.""")
    words = lab.args.word
    if not words:
        ours = ("king", "three", "said", "red", "mother", "castle", "ran")
        words = [w for w in ours if e.token_of(w) is not None][: 3 if lab.quick else None]
    rows = [
        [w, e.token_of(w), ", ".join(f"{n.strip() or repr(n)} {c:.2f}" for n, c in e.neighbours(w, 5))]
        for w in words
    ]
    if rows:
        lab.table("The five nearest of the whole vocabulary", ["word", "token id", "neighbours, cosine"], rows,
                  note="Words with a space before them, as inside a text; the word without the space is another token.")  # fmt: skip


def tell_king_and_queen(lab: Lab, e: Embeddings) -> None:
    question = "real GPT-2: cosines of king/queen, man/woman, dog/cat, king/banana"
    if lab.args.model not in ("gpt2", "openai-community/gpt2"):
        lab.cannot_measure("king-queen", question, needs="download",
                           remedy="real GPT-2 weights: run with --model gpt2 where the hub can be reached")  # fmt: skip
        return
    with_space = [pair_cosine(e, a, b) for a, b in ARTICLE_PAIRS]
    first = ((e.wte[e.tokenizer.encode(w)[0]] for w in pair) for pair in ARTICLE_PAIRS)
    without = [float(cosine(a, b)) for a, b in first]

    def error(cosines: list[float | None]) -> float:
        return max(abs((c or 0.0) - s) for c, s in zip(cosines, ARTICLE_COSINES, strict=True))

    # The source does not say whether its words had a space before them: take the version that fits better.
    measured, other = sorted((with_space, without), key=error)
    lab.predict("king-queen", question, predicted=ARTICLE_COSINES, measured=measured, tolerance=0.03, kind="timing",
                note=f"Words {'with' if measured is with_space else 'without'} a space before them; the other way: "
                f"{', '.join(f'{c:.2f}' if c is not None else '-' for c in other)}.")  # fmt: skip


def tell_input(lab: Lab, e: Embeddings, folder: Path, name: str) -> None:
    from transformers import AutoModel, GPT2Config, GPT2Model
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()  # it would warn of the output head, which is not needed here
    lab.title("The matrix that enters the first layer")
    lab.say("""For each token: look up its row of wte, look up the row of wpe for its position, add. The
        script compares the sum with the input of the first layer in the transformers library.""")

    # GPT-2's own shape with random weights: lookup and sum work the same on any numbers.
    with torch.device("meta"):
        model = GPT2Model(GPT2Config(n_layer=1)).eval()
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        torch.nn.init.uniform_(parameter, -1, 1)
    random = Embeddings(model.wte.weight.detach(), model.wpe.weight.detach(), e.tokenizer)
    prompt = [12050, 502, 2128, 4451]  # "Make me sound smart" in GPT-2's vocabulary
    ours, theirs = random.input_matrix(prompt), first_hidden_state(model, prompt)
    lab.predict(
        "input-matrix",
        "GPT-2's shape, 4 tokens: rows, columns, numbers, largest difference to transformers",
        predicted=[4, 768, 4 * 768, 0.0],
        measured=[*ours.shape, ours.numel(), float((ours - theirs).abs().max())],
        note="Random weights, the real shape. Zero means bit for bit.",
    )
    ids = e.tokenizer.encode("Once upon a time")
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    ours, theirs = e.input_matrix(ids), first_hidden_state(model, ids)
    lab.predict(
        "input-matrix-checkpoint",
        f"{name}, 'Once upon a time' ({len(ids)} tokens): the same, with the trained weights",
        predicted=[len(ids), e.wte.shape[1], len(ids) * e.wte.shape[1], 0.0],
        measured=[*ours.shape, ours.numel(), float((ours - theirs).abs().max())],
    )
    lab.show("\n".join(
        f"{e.tokenizer.decode([i])!r:>9} id {i:>6}  [{', '.join(f'{v:6.3f}' for v in row[:6].tolist())}, ...]"
        for i, row in zip(ids, ours, strict=True)
    ))  # fmt: skip


def first_hidden_state(model: torch.nn.Module, ids: list[int]) -> Tensor:
    """The input of the first layer in transformers: [len(ids), d_model]."""
    with torch.inference_mode():
        return model(torch.tensor([ids]), output_hidden_states=True).hidden_states[0][0]


def tell_order(lab: Lab, e: Embeddings) -> None:
    lab.title("Order")
    # With a space in front, "dog" is the same token at both ends. Without it, the first word would be another
    # token than in the middle of a text, and the two sentences would differ for a reason that is not order.
    one, two = (e.tokenizer.encode(s) for s in (" dog bites man", " man bites dog"))
    bare = [sorted(e.tokenizer.encode(s)) for s in ("dog bites man", "man bites dog")]
    note = f"Tokens {one} and {two}."
    if bare[0] != bare[1]:
        note += " Without the leading space they still differ: 'dog' and ' dog' are not the same token."
    questions = ["without positions, do 'dog bites man' and 'man bites dog' have the same vectors?"]
    predicted, measured = [True], [same_rows(e.wte[one], e.wte[two])]
    if e.wpe is not None:
        questions.append("and with positions?")
        predicted.append(False)
        measured.append(same_rows(e.input_matrix(one), e.input_matrix(two)))
    else:
        note += " This model's positions come in later, by rotation."
    lab.predict("order-matters", " ".join(questions), predicted=predicted, measured=measured, note=note)
    llama = SHAPES["llama-3-8b"]
    table = llama.vocab_size * llama.d_model * 2
    tokens = 2 * table // kv_per_token(llama)
    lab.say(f"""What it costs: a lookup is nearly free, the table is not. Llama-3 8B has {llama.vocab_size:,} rows of
        {llama.d_model:,} numbers: {table / 1e9:.2f} GB in 16 bits, and as much again for its output. Together
        that is the KV cache of {tokens:,} tokens, or of {tokens // 2000} users with 2,000 tokens each.""")


def draw(lab: Lab, e: Embeddings, name: str) -> None:
    groups = known_groups(e)
    words = [w for group in groups.values() for w in group]
    labels = [group for group, members in groups.items() for _ in members]
    if len(groups) < 2:
        lab.say("This vocabulary splits nearly all of our example words: no map.")
        return
    vectors = torch.nn.functional.normalize(e.vectors(words), dim=1)
    similarity = vectors @ vectors.T
    within, across = within_and_across(similarity, labels)
    points, kept = pca_2d(vectors)
    finding = (
        "Words of a kind lie together" if within > across + 0.02 else "Words of a kind do not lie together"
    )
    fig, (left, right) = new_figure(
        f"{finding}: cosine {within:.2f} within a group, {across:.2f} across ({name})",
        f"{len(words)} words on the plane that keeps more of their spread ({kept:.0%}) than any other; below: their cosines",
        panels=2, size=(7.2, 12), height_ratios=(1.1, 1),
    )  # fmt: skip
    colors = dict(zip(groups, COLORS))
    for group, color in colors.items():
        member = [i for i, label in enumerate(labels) if label == group]
        left.scatter(*points[member].T.tolist(), s=26, color=color, label=group, zorder=3)
    left.set(xlabel="first principal component", ylabel="second principal component")
    left.margins(0.09)
    left.legend(loc="lower left", handletextpad=0.1)
    image = right.imshow(similarity, vmin=0, vmax=1, cmap="Blues")
    middles = [sum(i for i, label in enumerate(labels) if label == g) / labels.count(g) for g in groups]
    right.set_xticks(middles, groups)
    right.set_yticks(middles, groups)
    right.grid(visible=False)
    fig.colorbar(image, ax=right, shrink=0.8, label="cosine")
    # Labels last: only now does every axis have its final size, and a label its place in pixels.
    fig.canvas.draw()
    fig.set_layout_engine("none")
    place_labels(left, points.tolist(), words, [colors[label] for label in labels])
    lab.figure(fig, "embedding_explorer")


def place_labels(ax: Axes, points: list[list[float]], texts: list[str], colors: list[str]) -> None:
    """Write a label near each point, at the nearest place where it covers nothing; a line leads to one that is far."""
    to_data = ax.transData.inverted().transform
    pixels = ax.transData.transform(points)
    taken = [Bbox([at - 4, at + 4]) for at in pixels]
    angles = np.arange(16) * np.pi / 8
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    paper = dict(facecolor="white", edgecolor="none", pad=0)
    for point, at, text, color in zip(points, pixels, texts, colors, strict=True):
        label = ax.text(*point, text, fontsize=9.5, color=color, ha="center", va="center", bbox=paper)
        half = label.get_window_extent().size / 2 + 1
        boxes = [
            (far, Bbox([at + (half + far) * d - half, at + (half + far) * d + half]))
            for far in (7, 16, 28, 42, 58)
            for d in directions
        ]
        far, box = min(boxes, key=lambda place: place[0] + 100 * place[1].count_overlaps(taken))
        taken.append(box)
        middle = to_data((box.p0 + box.p1) / 2)
        label.set_position(middle)
        if far > 7:
            ax.plot(*zip(point, middle), color=color, linewidth=0.7, zorder=2)
