"""The chapters of quantization, and its figure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.figure import Figure

from labkit.errors import LabError
from labkit.figures import BLUE, GREEN, INK, ORANGE, new_figure
from labkit.lab import Lab
from labkit.machine import time_calls
from labkit.models import find_model
from labkit.paths import ROOT
from phase1_tokens_embeddings.tokens import END_OF_TEXT, BPETokenizer
from phase1_tokens_embeddings.weights import CARDS, SHAPES, users_that_fit, weight_bytes
from phase1_tokens_embeddings.weights.gguf_model import load_tokenizer
from phase2_attention_kvcache.measuring.evaluation import bits_per_byte
from phase2_attention_kvcache.measuring.roofline import measure_ceilings
from phase2_attention_kvcache.model import GPT2_124M, ContiguousKVCache, Transformer, generate_cached
from phase2_attention_kvcache.quantization.gptq import quantize_model_gptq
from phase2_attention_kvcache.quantization.kv_formats import KV_CACHE_DTYPES, RoundingCache, kv_bytes_of_token
from phase2_attention_kvcache.quantization.quantized_formats import METHODS
from phase2_attention_kvcache.quantization.quantized_linear import (
    QuantizedWeight,
    is_quantized,
    quantize_model,
    weight_bytes_of,
)
from phase2_attention_kvcache.quantization.torch_linear import with_torch_linears

VALIDATION = ROOT / "phase2_attention_kvcache" / "texts" / "valid.txt"
CALIBRATION = ROOT / "phase1_tokens_embeddings" / "texts" / "tales.txt"
NAMES = {"int8": "int8, a scale per row", "fp8": "fp8 (E4M3), a scale per row", "q8_0": "Q8_0, groups of 32",
         "q4_0": "Q4_0, groups of 32", "int4": "int4, groups of 32, zero points"}  # fmt: skip
TOY_CARD = 64 * 2**20  # bytes: tales is small, so a small card makes the differences visible
USER = 1024  # tokens of a user on it
EXACT, MIXED, GPTQ = "16 bits", "int4, table in int8", "int4, table in int8, GPTQ"
FAST = (EXACT, "int8", "int4")  # formats for which torch has an operator that unpacks on the way


class Texts(NamedTuple):
    """A text to measure on, `num_bytes` long, and windows of another one to calibrate with."""

    valid: list[int]
    num_bytes: int
    calibration: list[list[int]]


@dataclass
class Result:
    """A model in one format. `nbytes`: of all weights; those not quantized count 16 bits."""

    name: str
    nbytes: int
    bits_a_weight: float
    bits_per_byte: float
    tokens_per_second: float


Results = dict[str, Result]  # first EXACT, then the methods, MIXED, GPTQ


def lost(results: Results, name: str) -> float:
    """Percent of bits per byte more than the exact model."""
    return 100 * (results[name].bits_per_byte / results[EXACT].bits_per_byte - 1)


def load_plain(lab: Lab) -> Transformer:
    model = Transformer.from_pretrained(lab.args.model)
    if is_quantized(model):
        raise LabError(f"{lab.args.model} is quantized already: give a model in full, such as tales")
    return model


def tell_formats(lab: Lab) -> None:
    lab.title("One matrix in five formats")
    model = load_plain(lab)
    weight = model.blocks[0].mlp.down.weight
    lab.say(f"""weight = (code - zero point) x scale. Here is the second matrix of the first MLP of
        {lab.args.model}, {weight.shape[0]} x {weight.shape[1]} weights. The error is the length of what rounding changed, as a
        share of the matrix. Each further bit halves the step between codes, and with it the error.""")
    rows, errors = [], {}
    for method in METHODS:
        stored = QuantizedWeight.of(weight, method)
        errors[method] = ((stored.rows(slice(None)) - weight).norm() / weight.norm()).item()
        rows.append([NAMES[method], 8 * stored.nbytes / weight.numel(), 100 * errors[method]])
    lab.table("What is stored, scales included", ["format", "bits per weight", "error, %"], rows)
    lab.predict(
        "a-bit-halves-the-error",
        "Q4_0 and Q8_0 share scales alike and differ by 4 bits: how many times as large is the error of Q4_0",
        predicted=16.0,
        measured=errors["q4_0"] / errors["q8_0"],
        tolerance=0.25,
        note="2 x 2 x 2 x 2, and a little more: Q8_0 uses 255 of its 256 codes, Q4_0 reaches further down than up.",
    )


def load_texts(lab: Lab) -> Texts:
    tok = load_tokenizer(find_model(lab.args.model))
    valid, num_bytes = tokens_of(VALIDATION, tok, 8_000 if lab.quick else None)
    context = load_plain(lab).config.max_context
    calibration, _ = tokens_of(CALIBRATION, tok, 12_000 if lab.quick else None)
    windows = [calibration[i : i + context] for i in range(0, len(calibration), context)]
    return Texts(valid, num_bytes, windows)


def tokens_of(path: Path, tok: BPETokenizer, limit: int | None) -> tuple[list[int], int]:
    """The documents of a text with an end of text before and behind each, and their bytes. `limit`: characters."""
    documents = [d.strip() for d in path.read_text(encoding="utf-8")[:limit].split(END_OF_TEXT)]
    mark = [] if tok.eos_token_id is None else [tok.eos_token_id]
    ids = mark + [i for d in documents if d for i in tok.encode(d) + mark]
    return ids, sum(len(d.encode()) for d in documents)


def measure(model: Transformer, name: str, texts: Texts) -> Result:
    first = texts.valid[:8]
    generate_cached(model, first, 2)
    seconds = min(generate_cached(model, first, 12).itl for _ in range(2))
    count, nbytes = model.config.num_parameters, weight_bytes_of(model)
    plain = sum(p.nbytes for p in model.parameters() if p.dtype == torch.float32)
    plain += sum(m.bias.nbytes for m in model.modules() if getattr(m, "parts", None) and m.bias is not None)
    nbytes -= plain // 2  # they are computed in 32 bits here, and stored in 16
    bits = bits_per_byte(model, texts.valid, texts.num_bytes)
    return Result(name, nbytes, 8 * nbytes / count, bits, 1 / seconds)


def tell_quality(lab: Lab, texts: Texts) -> Results:
    lab.title("The whole model: bits per byte")
    lab.say(f"""Bits per byte is the average number of bits that the model needs to encode one byte of a text. This one has
        {texts.num_bytes:,} bytes. Errors from rounding cost bits.""")
    ways = {EXACT: lambda model: model}
    ways |= {method: partial(quantize_model, method=method) for method in METHODS}
    ways[MIXED] = partial(quantize_model, method="int4", table_method="int8")
    ways[GPTQ] = partial(quantize_model_gptq, texts=texts.calibration)
    results: Results = {}
    for name in lab.progress(ways, "measuring formats"):
        results[name] = measure(ways[name](load_plain(lab)), NAMES.get(name, name), texts)
    cache = kv_bytes_of_token(load_plain(lab).config, "auto", torch.bfloat16)
    rows = [
        [r.name, r.nbytes / 1e6, r.bits_a_weight, f"{r.bits_per_byte:.4f}", f"{lost(results, name):+.3f}", r.tokens_per_second,
         int((TOY_CARD - r.nbytes) // (USER * cache))]
        for name, r in results.items()
    ]  # fmt: skip
    lab.table(
        f"{lab.args.model} in each format",
        ["format", "MB", "bits per weight", "bits per byte", "lost, %", "tokens/s", "requests that fit"],
        rows,
        note=f"Users of {USER:,} tokens with a 16-bit cache, beside the weights in 64 MiB. Tokens/s: one user, float32 "
        "activations, plain operators that unpack every weight each step: right, and slow.",
    )
    lab.predict(
        "int8-minimal",
        "INT8: how many percent more bits per byte (0 within half a percent?)",
        predicted=True,
        measured=abs(lost(results, "int8")) < 0.5,
        note=f"{lost(results, 'int8'):+.3f}%: noise. Random rounding errors may even help slightly.",
    )
    lab.record(results=[vars(r) for r in results.values()])
    return results


def tell_gptq(lab: Lab, results: Results) -> None:
    lab.title("GPTQ: rounding with compensation")
    lab.say("""GPTQ runs text through the model to see which inputs of a layer occur together. Weights that are not rounded yet then
        compensate the error of each rounded one. Size and speed stay the same.""")
    rounded, better = lost(results, MIXED), lost(results, GPTQ)
    lab.predict(
        "gptq-wins-back",
        "does GPTQ recover at least 30% of the loss from rounding the layers to int4?",
        predicted=True,
        measured=better < 0.7 * rounded,
        kind="timing" if lab.quick or lab.args.model != "tales" else "structure",
        note=f"Rounded: {rounded:+.3f}%. With GPTQ: {better:+.3f}%. Recovered: {1 - better / rounded:.0%}."
        + (" Little text in --quick: the figure is rough." if lab.quick else ""),
    )


def tell_cache(lab: Lab, texts: Texts, results: Results) -> None:
    lab.title("Keys and values in 8 bits")
    model = load_plain(lab)
    rows, more = [], {}
    for kind in lab.progress(KV_CACHE_DTYPES, "measuring caches"):
        bits = results[EXACT].bits_per_byte
        if kind != "auto":
            cache = partial(RoundingCache, kind, model.config)
            bits = bits_per_byte(model, texts.valid, texts.num_bytes, make_cache=cache)
        nbytes = kv_bytes_of_token(model.config, kind, torch.bfloat16)
        more[kind] = 100 * (bits / results[EXACT].bits_per_byte - 1)
        users = int((TOY_CARD - results[EXACT].nbytes) // (USER * nbytes))
        rows.append([kind, nbytes, f"{bits:.4f}", f"{more[kind]:+.3f}", users])
    lab.table(
        "kv_cache_dtype",
        ["stored as", "bytes per token", "bits per byte", "lost, %", "requests that fit"],
        rows,
    )
    lab.predict(
        "int8-cache",
        "a cache in int8: users of 16 bits x how much",
        predicted=2.0,
        measured=rows[0][1] / rows[KV_CACHE_DTYPES.index("int8_per_token_head")][1],
        tolerance=0.05,
        note=f"Not quite 2: each head of a token has a scale besides. The bits per byte change by {more['int8_per_token_head']:+.3f}%; "
        f"fp8 without a scale is exactly 2 and changes them by {more['fp8']:+.3f}%.",
    )


def tell_memory(lab: Lab, results: Results) -> None:
    lab.title("Room for users")
    shape, card, context = SHAPES["llama-3-8b"], CARDS["a100-80"], 4096
    fp16 = users_that_fit(shape, card, context, "FP16")
    weights_only = users_that_fit(shape, card, context, "FP8")
    both = users_that_fit(shape, card, context, "FP8", bytes_per_value=1)
    lab.predict(
        "fp8-halves",
        "Llama 3 8B in FP8: how many times smaller are its weights",
        predicted=2.0,
        measured=weight_bytes(shape, "FP16") / weight_bytes(shape, "FP8"),
        source_says=2.0,
        note=f"{card.title}, users of {context:,} tokens: {fp16} in FP16, {weights_only} with weights in FP8, {both} with the "
        "cache in FP8 too. On a large card it is the cache that decides: halving the weights alone gives little. With weights in fp8 "
        f"{lab.args.model} loses {lost(results, 'fp8'):+.3f}% bits per byte. Its tokens/s are not measured: no "
        "compiled matrix multiplication of this course reads fp8.",
    )


def tell_speed(lab: Lab, results: Results) -> None:
    lab.title("Only the part that reads weights gets faster")
    bandwidth = measure_ceilings("cpu", "bfloat16", quick=True).bandwidth
    times = time_steps(lab, {name: fast_model(lab, name) for name in FAST})
    full = times[EXACT]
    rows = []
    for name, (one, many) in times.items():
        gains = [100 * (1 - mine / theirs) for mine, theirs in zip((one, many), full)]
        rows.append(
            [name, f"{lost(results, name):+.3f}", 1 / one, f"{gains[0]:.0f}%", 64 / many, f"{gains[1]:.0f}%"]
        )
    lab.table(
        "A step of GPT-2's shape, operators of torch that unpack on the way",
        ["format", f"bits per byte lost by {lab.args.model}, %", "1 user, tokens/s", "TPOT shorter by", "64 users, tokens/s",
         "TPOT shorter by"],
        rows,
        note="Below 0%: longer. Random weights: they take as long as others. Attention sees one short sequence here; an engine has more to do besides.",
    )  # fmt: skip
    speeds = ", ".join(f"{name} {1 / one:,.0f} and {64 / many:,.0f}" for name, (one, many) in times.items())
    read = 2 * GPT2_124M.num_parameters / bandwidth
    gain, of_many = (100 * (1 - mine / theirs) for mine, theirs in zip(times["int4"], full))
    lab.predict(
        "int4-tpot",
        "TPOT of one user, GPT-2's shape: how many percent shorter does int4 make it",
        predicted=(40, 80),
        between=True,
        measured=gain,
        source_says=(20, 40),
        tolerance=0.1,
        unit="%",
        kind="timing",
        note=f"Bytes fall by {16 / 4.75:.1f}, which would be 70% if reading were all. Here a step of one token takes {1e3 * full[0]:.1f} ms in "
        f"16 bits. At {bandwidth / 1e9:.0f} GB/s its weights need {1e3 * read:.1f} of them; only that part shrinks, and unpacking "
        f"is added to it. 64 users share one reading and multiply 64 times as much: there int4's TPOT is {abs(of_many):.0f}% "
        f"{'shorter' if of_many > 0 else 'longer'}. Tokens/s of 1 and of 64 users: {speeds}.",
    )
    more = lost(results, "int4")
    lab.predict(
        "free-lunch",
        "INT4: does it cost quality (more bits per byte)?",
        predicted=True,
        measured=more > 0.01,
        source_says=False,
        kind="structure" if lab.args.model == "tales" and not lab.quick else "timing",
        note=f"int8 has no visible cost here. int4 costs {more:.2f}% bits per byte, and its speed needs "
        "fused kernels: unpacked by plain operators it is slower than 16 bits (the table of the whole model). Tokens/s of 1 and of 64 "
        f"users with operators that unpack on the way: {speeds}.",
    )
    lab.record(step_s=times, read_s=read, int4_gain_percent=gain)


def fast_model(lab: Lab, name: str) -> Transformer:
    """GPT-2's shape in a format, with torch's own operators for quantized weights."""
    model = Transformer.random(GPT2_124M, "bfloat16", seed=lab.seed)
    return with_torch_linears(quantize_model(model, name)) if name in METHODS else model


def time_steps(lab: Lab, models: dict[str, Transformer]) -> dict[str, tuple[float, float]]:
    """Seconds of a step of 1 token and of 64, by format: the shortest of several rounds, in which formats take turns."""

    @torch.inference_mode()
    def step(model: Transformer, tokens: int) -> None:
        ids = torch.arange(tokens)
        model.logits(model(ids, ids, ContiguousKVCache(model.config)))  # each user wants a next token

    rounds = [
        {
            (name, n): min(time_calls(lambda m=m, n=n: step(m, n), "cpu", 4, warmup=1))
            for name, m in models.items()
            for n in (1, 64)
        }
        for _ in lab.progress(range(2 if lab.quick else 5), "timing steps of GPT-2's shape")
    ]
    return {name: tuple(min(times[name, n] for times in rounds) for n in (1, 64)) for name in models}


def draw_quality(model: str, results: Results) -> Figure:
    fig, (ax,) = new_figure(
        f"4-bit weights cost {lost(results, 'int4'):.1f}% more bits per byte, 8-bit weights almost none",
        f"{model}: lower is better, left is smaller; the dashed line is the model in 16 bits",
        size=(7.2, 4.8),
    )
    ax.axhline(results[EXACT].bits_per_byte, color=INK, linestyle="--", linewidth=1.2)
    ax.margins(y=0.12)  # room for a label below the line
    for name, result in results.items():
        colour = {EXACT: INK, GPTQ: GREEN}.get(name, BLUE)
        x, y = result.nbytes / 1e6, result.bits_per_byte
        ax.plot(x, y, "o", color=colour, markersize=9)
        # Three may lie on the dashed line: one name stands below it, one beside its dot, one above.
        right, up = {"int8": (-9, -14), GPTQ: (9, 18), "q4_0": (9, -12)}.get(name, (9, 5))
        ax.annotate(result.name, (x, y), xytext=(right, up), ha="right" if right < 0 else "left",
                    textcoords="offset points", fontsize=9, color=colour)  # fmt: skip
    start, end = results[MIXED], results[GPTQ]
    ax.annotate("", (end.nbytes / 1e6, end.bits_per_byte), (start.nbytes / 1e6, start.bits_per_byte),
                arrowprops=dict(arrowstyle="->", color=ORANGE))  # fmt: skip
    ax.set(xlabel="weights, MB", ylabel="bits per byte", xlim=(0, 1.25 * results[EXACT].nbytes / 1e6))
    return fig
