"""The model: GPT-2 and Llama from one set of blocks, reading real checkpoints.

A language model is a tower of equal blocks. Each block does two things to every token:

    x = x + attention(norm(x))    look at earlier tokens, and take something from them
    x = x + mlp(norm(x))          think about it alone

GPT-2 (2019) and Llama (2023) differ in four small parts of that block, no more:

                 GPT-2                        Llama
    norm         LayerNorm                    RMSNorm: no mean, no bias
    positions    a learned table, added once  rotation of q and k in each layer
    MLP          GELU, 2 matrices             SwiGLU, 3 matrices
    attention    every head has its own K, V  groups may share K, V (from Llama 2 70B on)

This script runs the embedded model, shows the shape of its tower, and checks every number it
computes against Hugging Face's implementation.

Tokens are flat: a call takes N tokens, whoever they belong to, and there is no batch dimension. The
model does not know where its keys and values live; it hands them to `kv.attend`, and a cache object
answers. Each phase of the course brings another such object.

Sources: Radford et al. 2019 (GPT-2), section 2.3; Touvron et al. 2023 (Llama), section 2.2.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.lab import Lab, run_lab
from labkit.models import find_model, load_reference
from phase1_tokens_embeddings.model_shapes import SHAPES
from phase1_tokens_embeddings.tokenizer import BPETokenizer
from phase2_attention_kvcache.blocks import Block, KVCache, ModelConfig, make_norm
from phase2_attention_kvcache.caches import NoCache
from phase2_attention_kvcache.positions import rotary_frequencies, rotary_tables

GPT2_124M = ModelConfig(**vars(SHAPES["gpt2"]))
"""The shape of GPT-2 "small". With random weights it is as fast as the real one, and needs no download."""


class Transformer(nn.Module):
    """The whole model: token ids in, one vector a token out; `logits` turns vectors into scores.

    >>> model = Transformer.from_pretrained("tales")
    >>> hidden = model(torch.tensor([412, 77]), torch.tensor([0, 1]), NoCache())   # [2, d_model]
    >>> scores = model.logits(hidden[-1:])                                         # [1, vocab_size]
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.token_table = make_table(config.vocab_size, config.d_model)
        if config.family == "gpt2":
            self.position_table = make_table(config.max_context, config.d_model)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.final_norm = make_norm(config)
        # A tied model has no head of its own: its token table serves a second time.
        self.head = None if config.tied else nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.register_buffer("cos", None, persistent=False)
        self.register_buffer("sin", None, persistent=False)

    @classmethod
    def from_pretrained(
        cls, path_or_hub_name: str | Path, dtype: str | torch.dtype = "float32", device: str = "cpu"
    ) -> Transformer:
        """Load an embedded model, a folder in the Hugging Face layout, or a model from the hub.

        Raises:
            LabError: no such model. ValueError: a folder that does not hold what it should; the
            message names what is missing, unexpected or of the wrong shape.
        """
        from phase2_attention_kvcache.checkpoint import load_checkpoint

        return load_checkpoint(path_or_hub_name, dtype, device)

    @classmethod
    def random(
        cls, config: ModelConfig, dtype: str | torch.dtype = "float32", device: str = "cpu", seed: int = 0
    ) -> Transformer:
        """A model with random weights. Its text is noise; its speed is that of a real model."""
        from phase2_attention_kvcache.checkpoint import parse_dtype

        with torch.device("meta"):
            model = cls(config)
        model = model.to(parse_dtype(dtype)).to_empty(device=device)
        generator = torch.Generator(device).manual_seed(seed)
        for name, parameter in model.named_parameters():
            with torch.no_grad():
                if parameter.ndim == 2:
                    parameter.normal_(0.0, 0.02, generator=generator)
                else:
                    parameter.fill_(0.0 if name.endswith("bias") else 1.0)
        return model.finish_loading()

    def finish_loading(self) -> Transformer:
        """Work out the tables that no checkpoint holds, and switch off what only training needs."""
        if self.config.family == "llama":
            frequencies = rotary_frequencies(
                self.config.head_dim, self.config.rope_theta, self.config.rope_scaling
            )
            # In float32 whatever the model's dtype: at position 100,000 a bfloat16 angle is off by turns.
            self.cos, self.sin = (
                t.to(self.device) for t in rotary_tables(self.config.max_context, frequencies, torch.float32)
            )
        return self.requires_grad_(False).eval()

    @property
    def device(self) -> torch.device:
        return self.token_table.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.token_table.weight.dtype

    @property
    def num_parameters(self) -> int:
        return sum(p.numel() for p in self.parameters())

    def forward(self, token_ids: Tensor, positions: Tensor, kv: KVCache) -> Tensor:
        """Run all blocks.

        Args:
            token_ids: [N] integers. positions: [N], each token's place in its own sequence.
            kv: stores keys and values and attends.

        Returns:
            hidden [N, d_model], after the last norm.

        Raises:
            ValueError: ids or positions out of range. (On a GPU this would mean waiting for it, so
            there the caller checks, with `check_tokens`, before the ids leave Python.)
        """
        if token_ids.device.type == "cpu":
            self.check_tokens(token_ids, positions)
        x = F.embedding(token_ids, self.token_table.weight)
        rotary = None
        if self.config.family == "gpt2":
            x = x + F.embedding(positions, self.position_table.weight)
        else:
            rotary = self.cos[positions], self.sin[positions]
        for layer, block in enumerate(self.blocks):
            x = block(x, layer, rotary, kv)
        return self.final_norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores for the next token: hidden [N, d_model] -> [N, vocab_size]."""
        return F.linear(hidden, self.token_table.weight) if self.head is None else self.head(hidden)

    def check_tokens(self, token_ids: Tensor, positions: Tensor) -> None:
        """Raise a ValueError that names the first id or position out of range."""
        if token_ids.ndim != 1 or token_ids.shape != positions.shape:
            raise ValueError(
                f"token_ids and positions must be two rows of equal length, not "
                f"{list(token_ids.shape)} and {list(positions.shape)}"
            )
        for name, values, limit in (
            ("token id", token_ids, self.config.vocab_size),
            ("position", positions, self.config.max_context),
        ):
            if values.numel() and not (int(values.min()) >= 0 and int(values.max()) < limit):
                wrong = next(i for i in values.tolist() if not 0 <= i < limit)
                raise ValueError(f"{name} {wrong} is out of range: this model takes 0 to {limit - 1}")


def make_table(rows: int, width: int) -> nn.Embedding:
    """A table of vectors, not filled yet: the weights are read from a file or drawn afterwards.

    (Left to itself `nn.Embedding` draws them. On the "meta" device, where shapes are made without memory, that
    makes torch load its compiler, and costs every script a second.)
    """
    return nn.Embedding(rows, width, _weight=torch.empty(rows, width))


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


def story(lab: Lab) -> None:
    folder = find_model(lab.args.model)
    tok = BPETokenizer.from_file(folder / "tokenizer.json")
    model = Transformer.from_pretrained(folder, lab.args.dtype, lab.device)
    c = model.config
    lab.say(f"""A token enters as a vector of {c.d_model} numbers. {c.num_layers} blocks change it, one after
        the other. The last vector is compared with all {c.vocab_size:,} rows of the token table: the
        best match is the next token.""")

    lab.title("Where the parameters are")
    parts = parts_of(model)
    rule = 12 * c.num_layers * c.d_model**2
    in_blocks = sum(n for name, n in parts if "all layers" in name)
    if c.family == "gpt2":
        lab.predict(
            claim="parameters-of-blocks",
            question="parameters in the blocks, by the rule 12 x layers x width^2",
            predicted=rule,
            measured=in_blocks,
            tolerance=0.02,
            note="Per block: 4 squares in attention (q, k, v, out), 8 in the MLP (up to 4 widths and back).",
        )
    total = model.num_parameters
    lab.table(
        f"{lab.args.model}: {total:,} parameters", ["part", "parameters", "share %"],
        [[name, n, 100 * n / total] for name, n in parts],
        note=f"Each token costs about 2 x {total / 1e6:.1f}M operations: one multiplication and one addition "
             "per parameter.",
    )  # fmt: skip

    lab.title("The same numbers as Hugging Face's implementation")
    ids = torch.tensor(tok.encode(lab.args.prompt) or [tok.eos_token_id or 0], device=lab.device)
    if len(ids) > c.max_context:
        raise ValueError(
            f"the prompt has {len(ids)} tokens, this model's context is {c.max_context}: shorten it"
        )
    difference, largest = largest_difference(model, folder, ids)
    lab.predict(
        claim="logits-equal-transformers",
        question="our logits and transformers' agree in float32, to a hundred-thousandth of the largest",
        predicted=True,
        measured=difference < 1e-5 * largest,
        note=f"Largest difference over {len(ids)} tokens x {c.vocab_size:,} scores: {difference:.1e}. "
        f"Largest score: {largest:.1f}.",
    )

    lab.title("How the answer forms, layer by layer")
    layers = guesses_by_layer(model, ids)
    best = layers[-1].topk(5)
    names = [repr(tok.decode([i])) for i in best.indices.tolist()]
    lab.table(
        f"The model's five best next tokens after {lab.args.prompt!r}", ["token", "probability %"],
        [[name, 100 * p] for name, p in zip(names, best.values.tolist())],
    )  # fmt: skip
    lab.record(
        parameters=total,
        largest_logit_difference=difference,
        next_tokens=dict(zip(names, best.values.tolist())),
    )
    lab.figure(draw_layers(layers[1:, best.indices].cpu(), names, lab.args.prompt), "answer_by_layer")


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


def main(argv: list[str] | None = None) -> int:
    return run_lab(
        story,
        __doc__,
        options=("model", "device", "dtype"),
        add_arguments=lambda parser: parser.add_argument(
            "--prompt", default="Once upon a time there was a king who had three", help="text to continue"
        ),
        argv=argv,
    )


if __name__ == "__main__":
    raise SystemExit(main())
