"""The chapters of sampling: one model under different settings, and the figure."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from matplotlib.figure import Figure

from labkit.errors import LabError
from labkit.figures import BLUE, GREY, new_figure
from labkit.lab import Lab
from labkit.models import find_model
from phase1_tokens_embeddings.weights.gguf_model import load_tokenizer
from phase2_attention_kvcache.model import NoCache, Sampler, SamplingParams, Transformer, generate_cached
from phase2_attention_kvcache.model.generation import sampled
from phase2_attention_kvcache.model.sampling import draw

SETTINGS = {
    "greedy": SamplingParams(temperature=0),
    "temperature 0.5": SamplingParams(temperature=0.5),
    "temperature 1": SamplingParams(),
    "temperature 1.5": SamplingParams(temperature=1.5),
    "top_k 5": SamplingParams(top_k=5),
    "top_p 0.8": SamplingParams(top_p=0.8),
    "min_p 0.1": SamplingParams(min_p=0.1),
}
"""Sampling parameters by the names shown in tables."""


class Writer:
    """A model that has read a prompt and goes on, once for each setting.

    Raises:
        LabError: an empty prompt, or one that leaves no room in the context.
    """

    def __init__(self, model: str, prompt: str, device: str = "cpu") -> None:
        folder = find_model(model)
        self.tokenizer = load_tokenizer(folder)
        self.model = Transformer.from_pretrained(folder, device=device)
        self.config = self.model.config
        self.prompt_ids = self.tokenizer.encode(prompt)
        room = self.config.max_context - 64  # for the continuations
        if not 1 <= len(self.prompt_ids) <= room:
            raise LabError(f"--prompt has {len(self.prompt_ids)} tokens: use 1 to {room}")

    def name(self, token: int) -> str:
        """A token for people, with its spaces visible. Some models have more logits than tokens: "#50300"."""
        return repr(self.tokenizer.decode([token])) if token < self.tokenizer.vocab_size else f"#{token}"

    def text(self, ids: Sequence[int]) -> str:
        return " ".join(self.tokenizer.decode(i for i in ids if i < self.tokenizer.vocab_size).split())

    def next_logits(self) -> torch.Tensor:
        """Logits [vocab] of the next token after the prompt."""
        ids = torch.tensor(self.prompt_ids, device=self.model.device)
        model, positions = self.model, torch.arange(len(ids), device=self.model.device)
        hidden = model(ids, positions, NoCache(model.config))
        return self.model.logits(hidden[-1:])[0]

    def go_on(self, params: SamplingParams, num_tokens: int) -> list[int]:
        """Up to `num_tokens` new tokens; an end-of-text token is the last one."""
        ends = self.config.eos_token_ids
        choose = sampled(params, self.prompt_ids, ends)
        return generate_cached(self.model, self.prompt_ids, num_tokens, choose, ends).token_ids


def tell_knobs(lab: Lab, writer: Writer, sampler: Sampler, logits: torch.Tensor) -> None:
    raw = logits.softmax(-1)
    order = raw.argsort(descending=True).tolist()
    vocab = len(order)
    lab.say(f"""The model has read: "{lab.args.prompt}" It gives a logit to each of its {vocab:,} tokens.
        The most probable next tokens:""")
    lab.show("   ".join(f"{writer.name(i)} {raw[i]:.1%}" for i in order[:6]))

    lab.title("What each parameter does to these logits")
    batch = logits.expand(len(SETTINGS), -1)
    probs = dict(zip(SETTINGS, sampler.probabilities(batch, list(SETTINGS.values()))))
    predict_knobs(lab, raw, probs, writer)
    rows = []
    for name, p in probs.items():
        entropy = -(p[p > 0] * p[p > 0].log()).sum().item()
        rows.append([name, int((p > 0).sum()), f"{p.max():.1%}", math.exp(entropy)])
    lab.table(
        "One distribution under each setting",
        ["setting", "tokens left", "most probable", "as uncertain as ... equal choices"],
        rows,
        note="The last column is e to the power of the entropy: the number of equally probable tokens with the same uncertainty.",
    )
    lab.figure(draw_distributions(raw, probs, order[:10], writer), "sampling_knobs")


def tell_continuations(lab: Lab, writer: Writer) -> None:
    lab.title("What the model writes with each setting")
    num_tokens = 12 if lab.quick else 28
    answers = [writer.go_on(replace(p, seed=lab.seed), num_tokens) for p in SETTINGS.values()]
    lab.table(
        "Continuations, one setting after the other, all from the same seed",
        ["setting", "the text goes on", "different tokens"],
        [[n, writer.text(a), f"{len(set(a))} of {len(a)}"] for n, a in zip(SETTINGS, answers, strict=True)],
    )
    context = writer.config.max_context
    lab.say(f"""What it costs: a token has the same price however it is chosen, but the parameters decide how
        many there are. n = 4 writes, and bills, four answers. Without max_tokens a request may write on to
        the end of the context, here {context:,} tokens: {context // 16} times the default of 16.""")


def draw_distributions(
    raw: torch.Tensor, probs: dict[str, torch.Tensor], tokens: Sequence[int], writer: Writer
) -> Figure:
    """Probabilities of a few tokens before (grey) and after (blue) each setting."""
    shown = {name: p for name, p in probs.items() if name not in ("greedy", "temperature 1")}
    likeliest = [p[tokens[0]].item() for p in shown.values()]
    before, least, most = raw[tokens[0]].item(), min(likeliest), max(likeliest)
    fig, axes = new_figure(
        f"The most probable token has {before:.0%}; the settings give it {least:.0%} to {most:.0%}",
        f'The {len(tokens)} most probable of {len(raw):,} tokens after "... {writer.text(writer.prompt_ids[-6:])}". '
        "Grey: the model's probabilities. Blue: with the setting.",
        panels=len(shown),
        size=(9.6, 4.4),
        beside=True,
    )
    rows, names = range(len(tokens)), [writer.name(i) for i in tokens]
    for axis, (name, p) in zip(axes, shown.items(), strict=True):
        axis.barh(rows, [100 * raw[i].item() for i in tokens], color=GREY, alpha=0.55, height=0.8)
        axis.barh(rows, [100 * p[i].item() for i in tokens], color=BLUE, height=0.4)
        rest = 100 * (1 - p[list(tokens)].sum().item())
        axis.set_title(f"{name}\n(others: {max(rest, 0):.0f}%)", fontsize=11)
        axis.set_yticks(rows, names if axis is axes[0] else [""] * len(names))
        axis.set(xlim=(0, 105 * most), xlabel="probability, %")
        axis.invert_yaxis()
        axis.grid(axis="y", visible=False)
    return fig


def predict_knobs(lab: Lab, raw: torch.Tensor, probs: dict[str, torch.Tensor], writer: Writer) -> None:
    """Each parameter, compared with a calculation in plain Python."""
    plain = sorted(raw.tolist(), reverse=True)
    lab.predict(
        "sampling",
        "greedy: the token it picks",
        predicted=writer.name(raw.tolist().index(plain[0])),
        measured=writer.name(int(probs["greedy"].argmax())),
    )
    cold = probs["temperature 0.5"].topk(2).values.tolist()
    lab.predict(
        "sampling",
        f"temperature 0.5: odds of the two most probable tokens, which were {plain[0] / plain[1]:.2f} to 1",
        predicted=(plain[0] / plain[1]) ** 2,
        measured=cold[0] / cold[1],
        tolerance=1e-3,
        note="Dividing logits by T raises odds to the power 1/T: 2 at T = 0.5, that is, squared.",
    )
    reached, count = 0.0, 0
    while reached < 0.8:
        reached, count = reached + plain[count], count + 1
    enough = sum(p >= 0.1 * plain[0] for p in plain)
    for setting, predicted in (("top_k 5", 5), ("top_p 0.8", count), ("min_p 0.1", enough)):
        left = int((probs[setting] > 0).sum())
        lab.predict("sampling", f"{setting}: tokens left of {len(plain):,}", predicted, left)


def tell_chance(lab: Lab, sampler: Sampler, logits: torch.Tensor) -> None:
    """Show that draws follow the probabilities, and that a seed decides them in any batch."""
    lab.title("Random, but reproducible")
    five = SamplingParams(top_k=5, seed=lab.seed)
    p = sampler.probabilities(logits[None], [five])[0]
    kept = p[p > 0]
    throws = draw(kept.expand(10_000, -1), [None] * 10_000).tolist()
    lab.predict(
        "sampling",
        "10,000 draws with top_k 5: share of the most probable token",
        predicted=kept.max().item(),
        measured=throws.count(int(kept.argmax())) / len(throws),
        tolerance=0.1,
    )

    def twelve(num_others: int) -> list[int]:
        """Twelve draws of one request with a seed, in a batch with others that have none."""
        params = [SamplingParams(temperature=1.3)] * num_others + [five]
        generators = [p.make_generator() for p in params]
        no_ids: list[list[int]] = [[]] * len(params)
        batch = logits.expand(len(params), -1)
        return [sampler.sample(batch, params, no_ids, no_ids, generators).token_ids[-1] for _ in range(12)]

    lab.predict(
        "sampling",
        "a request with a seed gets the same 12 tokens alone and in a batch with 7 others",
        predicted=True,
        measured=twelve(0) == twelve(7),
        note="Each request has its own generator, and takes one number from it for each token.",
    )
