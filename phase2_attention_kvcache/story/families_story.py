"""The chapters of the story of families: what changed since GPT-2, and its effect on memory."""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from matplotlib.figure import Figure

from labkit.figures import BLUE, GREY, ORANGE, PURPLE, new_figure, plain_numbers
from labkit.lab import Lab
from phase1_tokens_embeddings.weights import SHAPES, ModelShape, kv_bytes_per_token, kv_of_text
from phase1_tokens_embeddings.weights.families import FAMILIES
from phase2_attention_kvcache.model import ContiguousKVCache, ModelConfig, Transformer
from phase2_attention_kvcache.model.layers import Experts
from phase2_attention_kvcache.story.small_families import write_small_model

CHANGES = [  # what, GPT-2, Qwen3-0.6B, what it is good for
    ("positions", "a learned table", "rotation of q and k", "distance counts, no last row"),
    ("norm", "LayerNorm", "RMSNorm", "no mean, no bias: less work"),
    ("biases", "in every matrix", "none", "no loss without them"),
    ("MLP", "GELU, 2 matrices", "SwiGLU, 3 matrices", "better at equal size"),
    ("key/value heads", "12, one per query head", "8 for 16 query heads", "half the KV cache"),
    ("width of a head", "width / heads = 64", "128, free to choose", "more attention in a thin model"),
    ("q and k", "as they are", "normed, head by head", "scores stay small: stable training"),
    ("speed of rotation", "-", "theta 1,000,000, not 10,000", "far positions stay apart"),
    ("longest context", "1,024", "40,960 (yarn: 131,072)", "whole books"),
    ("vocabulary", "50,257", "151,936", "fewer tokens per text, in any language"),
    ("layers", "12 of width 768", "28 of width 1,024", "depth before width"),
    ("experts", "one MLP", "128 in the large ones, 8 per token", "more weights, as much computing"),
]
RELEASED = {  # the month of each release
    "gpt2-xl": "2019-11", "llama-2-7b": "2023-07", "mistral-7b-v0.1": "2023-09", "mixtral-8x7b": "2023-12",
    "llama-3-8b": "2024-04", "llama-3-70b": "2024-04", "phi-3-mini": "2024-04", "gemma-2-2b": "2024-07", "qwen2.5-7b": "2024-09",
    "gemma-3-1b": "2025-03", "qwen3-8b": "2025-04", "qwen3-30b-a3b": "2025-04", "smollm3-3b": "2025-07",
}  # fmt: skip
TEXT = 8192  # tokens
DEEPSEEK_V3_KIB = 61 * (512 + 64) * 2 / 1024
"""KiB per token of its latents in 16 bits: layers x (latent + rotated part) x bytes. Source: arXiv 2412.19437, 2505.09343."""
MARKERS = {
    "one KV head per query head": ("s", GREY), "grouped heads": ("o", BLUE), "windows": ("^", ORANGE),
    "latent (MLA)": ("D", PURPLE),
}  # fmt: skip
LABELS = {  # offset and alignment of labels that do not go to the right of their point
    "llama-3-8b": (9, -11, "left"), "qwen3-8b": (9, 4, "left"), "mistral-7b-v0.1": (9, 1, "left"), "qwen2.5-7b": (9, -9, "left"),
    "smollm3-3b": (-9, -9, "right"), "gemma-2-2b": (-9, 4, "right"), "phi-3-mini": (-9, 4, "right"), "DeepSeek-V3": (0, -16, "center"),
    "qwen3-30b-a3b": (9, -9, "left"),
}  # fmt: skip


def tell_changes(lab: Lab) -> None:
    lab.title("From GPT-2 to Qwen3 in twelve changes")
    lab.table(
        "GPT-2 small (2019) and Qwen3-0.6B (2025)",
        ["part", "2019", "2025", "what for"],
        CHANGES,
        note="YaRN slows the slow pairs of the rotation for longer texts, as Llama 3.1 does (positions_lab.py).",
    )


def tell_agreement(lab: Lab) -> None:
    lab.title("The same numbers as Hugging Face's implementation")
    names = ["gpt2", "qwen3", "gemma2", "mixtral"] if lab.quick else list(FAMILIES)
    names = lab.progress(names, "small models of each family")
    differences = {name: largest_difference(name) for name in names}
    lab.predict(
        "families-agree",
        "families, of those below, whose logits differ from transformers' by more than 0.0001",
        predicted=0,
        measured=sum(difference > 1e-4 for difference in differences.values()),
        note="Small random models in float32, 40 tokens each: more than their windows hold. Largest difference: "
        f"{max(differences.values()):.0e}.",
    )


@torch.inference_mode()
def largest_difference(family: str) -> float:
    """Of the logits of a small random model, here and in transformers."""
    with TemporaryDirectory() as folder:
        theirs = write_small_model(family, Path(folder))
        ours = Transformer.from_pretrained(folder)
    ids = 1 + torch.arange(40) * 7 % (ours.config.vocab_size - 1)  # 0 is padding
    logits = ours.logits(ours(ids, torch.arange(len(ids)), ContiguousKVCache(ours.config)))
    return float((logits - theirs(ids[None]).logits[0]).abs().max())


def tell_kv(lab: Lab) -> None:
    lab.title("KV cache per token")
    lab.say("""Keys and values fill the GPU's memory, so families save here. Three ways: query
        heads share a KV head; most layers attend within a window and free older tokens; or the model is small.""")
    gemma, tokens = SHAPES["gemma-3-1b"], 32768
    local = sum(window is not None for window in gemma.windows)
    lab.predict(
        "families-gemma-window",
        f"Gemma 3 1B: {local} of {gemma.num_layers} layers attend to 512 tokens. Of the KV cache of a text of "
        f"{tokens:,} tokens it needs this share",
        predicted=(local * 512 + (gemma.num_layers - local) * tokens) / (gemma.num_layers * tokens),
        measured=kv_of_text(gemma, tokens) / (tokens * kv_of_text(gemma, 1)),
        tolerance=1e-9,
        note="In this course a block of memory holds all layers, so the engine keeps all tokens (phase 3, chapter on windows).",
    )
    shapes = [SHAPES[name] for name in RELEASED]
    now, all_heads = ({s.name: kib_a_token(s, saving) for s in shapes} for saving in (True, False))
    lab.table(
        f"KV cache in 16 bits, KiB per token of a text of {TEXT:,} tokens",
        ["model", "released", "KiB per token", "without savings", "ratio"],
        [[n, RELEASED[n], now[n], all_heads[n], all_heads[n] / now[n]] for n in RELEASED],
        note="Without savings: a KV head per query head, and full attention in every layer. "
        "GPT-2's and Phi-3's longest texts are shorter: 1,024 and 4,096 tokens.",
    )
    saved = now["llama-2-7b"] / now["qwen3-8b"]
    lab.say(f"""Qwen3 8B holds {saved:.1f} times as many tokens in the same memory as Llama-2 7B of two
        years before, so that many times more requests share the price of one GPU.""")
    lab.figure(draw_kv(now), "families_kv")


def kib_a_token(shape: ModelShape, saving: bool) -> float:
    """KiB of keys and values for each token of a text, in 16 bits; without `saving` as if no head and no window saved any."""
    tokens = min(TEXT, shape.max_context)
    if saving:
        return kv_of_text(shape, tokens) / tokens / 1024
    return kv_bytes_per_token(shape.num_layers, shape.num_heads, shape.head_dim) / 1024


def draw_kv(now: dict[str, float]) -> Figure:
    """For each model its KV cache per token against its parameters, marked by what makes the cache smaller."""
    fig, (axis,) = new_figure(
        "KV cache per token does not grow with the parameters",
        f"16 bits, averaged over {TEXT:,} tokens (phi-3-mini: 4,096). Year of release in brackets.",
        size=(7.0, 5.6),
    )
    sizes = {name: SHAPES[name].num_parameters / 1e9 for name in now}
    kinds = {name: kind_of_cache(SHAPES[name]) for name in now}
    points = now | {"DeepSeek-V3": DEEPSEEK_V3_KIB}
    sizes["DeepSeek-V3"], kinds["DeepSeek-V3"] = 671, "latent (MLA)"
    for kind, (marker, color) in MARKERS.items():
        x, y = zip(*[(sizes[name], points[name]) for name in points if kinds[name] == kind])
        axis.scatter(x, y, marker=marker, color=color, s=60, label=kind, zorder=3)
    for name, kib in points.items():
        x, y, align = LABELS.get(name, (9, -3, "left"))
        year = RELEASED.get(name, "2024")[:4]
        axis.annotate(
            f"{name} ({year})", (sizes[name], kib), (x, y), textcoords="offset points", ha=align, fontsize=8.5
        )
    axis.set(xscale="log", xlim=(0.3, 3000), xlabel="billions of parameters")
    axis.set(yscale="log", ylim=(4, 1000), ylabel="KiB per token")
    plain_numbers(axis)
    axis.legend(loc="lower right", fontsize=9)
    return fig


def kind_of_cache(shape: ModelShape) -> str:
    if any(shape.windows):
        return "windows"
    return "grouped heads" if shape.num_kv_heads < shape.num_heads else "one KV head per query head"


def tell_mixtures(lab: Lab) -> None:
    lab.title("A mixture of experts")
    shape = SHAPES["qwen3-30b-a3b"]
    lab.say(f"""In a mixture each layer has many MLPs, the experts, and a router, one small matrix, that picks a few of them
        for each token. Qwen3-30B-A3B has {shape.num_parameters / 1e9:.1f} billion parameters, in {shape.num_experts} experts per
        layer of which a token meets {shape.experts_per_token}: {shape.active_parameters / 1e9:.2f} billion. (Its model card rounds to 3.3, its name A3B to 3.)""")
    counts = [1, 4, 16, 64]
    hit = experts_hit(counts, lab.seed)
    lab.predict(
        "families-experts-hit",
        "share of 128 experts that 1, 4, 16, 64 tokens need together, 8 each, if tokens choose at random",
        predicted=[1 - (1 - 8 / 128) ** n for n in counts],
        measured=hit,
        tolerance=0.15,
        note="Measured with a router of random weights. A trained router prefers some experts, so somewhat fewer are read.",
    )
    lab.say("""A mixture is cheap for one request, and for thousands, whose tokens fill every expert. In between, each step
        reads nearly all experts for a few tokens each.""")


def experts_hit(counts: list[int], seed: int) -> list[float]:
    """The share of 128 random experts that some expert's token reaches, 8 of them a token; for each number of tokens."""
    config = ModelConfig(
        "tiny", "mixtral", 8, 32, 1, 1, 1, 32, 4, 8, True, num_experts=128, experts_per_token=8
    )
    random = torch.Generator().manual_seed(seed)
    experts = Experts(config)
    with torch.no_grad():
        experts.router.weight.normal_(generator=random)
    rounds, shares = 20, []
    for tokens in counts:
        x = torch.randn(rounds, tokens, config.d_model, generator=random)
        chosen = experts.router(x).topk(config.experts_per_token).indices
        shares.append(sum(len(c.unique()) for c in chosen) / rounds / config.num_experts)
    return shares
