"""Where a model's weights come from: a folder in the Hugging Face layout, or chance. (`gguf_checkpoint.py`: one file.)

Every family names its tensors in its own way (`weight_names.py`), and GPT-2 stores its matrices turned by 90 degrees.
"""

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from labkit.foreign import quoted, visible
from labkit.machine import memory_bytes
from phase1_tokens_embeddings.weights.gguf_model import read_raw_config
from phase1_tokens_embeddings.weights.safetensors_file import (
    TensorEntry,
    checkpoint_files,
    open_tensors,
    read_safetensors_header,
)
from phase2_attention_kvcache.model.compressed_tensors import check_scheme, entries_in_full, read_quantized
from phase2_attention_kvcache.model.config import ModelConfig, read_config
from phase2_attention_kvcache.model.positions import rotary_amplitude, rotary_frequencies, rotary_tables
from phase2_attention_kvcache.model.quantized_linear import QuantizedLinear, QuantizedWeight
from phase2_attention_kvcache.model.weight_names import WEIGHT_NAMES

Model = TypeVar("Model", bound=nn.Module)

# Old checkpoints also store masks and frequencies, which are computed here.
IGNORED_ENDINGS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")
DTYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")}
STORED_DTYPES = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")
CODE_DTYPES = ("I8", "I32", "I64")  # codes, packed codes, shapes: only where config.json announces few bits
# A Llama's rotary tables are computed, not stored, so a small file could ask for large ones. This much it may, in bytes.
SMALL_TABLES = 64 * 2**20


class Stored(NamedTuple):
    """A tensor as its file announces it."""

    file: Path
    name: str
    entry: TensorEntry


def parse_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """ "bfloat16" -> torch.bfloat16. Raises ValueError for what the course does not compute in."""
    if dtype in DTYPES.values():
        return dtype
    if dtype not in DTYPES:
        raise ValueError(f"unknown dtype {dtype!r}: use {', '.join(DTYPES)}")
    return DTYPES[dtype]


def read_headers(folder: Path, dtypes: tuple[str, ...] = STORED_DTYPES) -> dict[str, Stored]:
    """What the files of a model announce, by names without the prefix that some put before them. No weight is read.

    Args:
        dtypes: what their numbers may be.

    Raises:
        ValueError: a damaged file, a name that is there twice, or numbers that are no weights.
    """
    found: dict[str, Stored] = {}
    for file in checkpoint_files(folder):
        for name, entry in read_safetensors_header(file).tensors.items():
            short = name.removeprefix("transformer.").removeprefix("model.")
            if short.endswith(IGNORED_ENDINGS):
                continue
            if short in found:
                twice = f"{visible(found[short].name)} and {visible(name)}"
                raise ValueError(f"{visible(folder)} holds the same weights twice: {twice}")
            if entry.dtype not in dtypes:
                kinds = ", ".join(dtypes)
                raise ValueError(
                    f"{visible(file)}: {visible(name)} is {entry.dtype}, but weights are {kinds}"
                )
            found[short] = Stored(file, name, entry)
    return found


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """The weights of a model, by the names of `read_headers`."""
    stored = read_headers(folder, STORED_DTYPES + CODE_DTYPES)
    tensors: dict[str, Tensor] = {}
    for file in {s.file for s in stored.values()}:
        with open_tensors(file) as numbers:
            tensors |= {short: numbers.get_tensor(s.name) for short, s in stored.items() if s.file == file}
    return tensors


def names_for(config: ModelConfig, ours: str, table: Mapping[str, list[str]] | None = None) -> list[str]:
    """The tensors of the checkpoint that make up one of our parameters. `table`: the family's own, if not given."""
    table = table or WEIGHT_NAMES[config.family]
    *path, kind = ours.split(".")
    numbers = [part for part in path if part.isdigit()]  # of the layer, of the expert
    generic = ".".join("{}" if part.isdigit() else part for part in path)
    return [theirs.format(*numbers, kind) for theirs in table[f"{generic}.{{}}"]]


def load_checkpoint(kind: type[Model], folder: Path, dtype: str | torch.dtype, device: str) -> Model:
    """See `Transformer.from_pretrained`."""
    config, target = read_config(folder), parse_dtype(dtype)
    scheme = read_raw_config(folder).get("quantization_config")
    if scheme is not None:
        check_scheme(folder, scheme)
    # config.json and the headers may say anything: they are held against each other before anything large is made.
    stored = read_headers(folder, STORED_DTYPES if scheme is None else STORED_DTYPES + CODE_DTYPES)
    check_memory(folder, stored, target, device)
    try:
        check_sizes(config, stored)
        with torch.device("meta"):  # shapes without memory: the weights are put in as they are read
            model = kind(config)
        full = entries_in_full({name: s.entry for name, s in stored.items()})
        parts = {ours: names_for(config, ours) for ours in model.state_dict()}
        check_names(config, [name for names in parts.values() for name in names], full)
        for ours, shaped in model.state_dict().items():
            entries = {name: full[name] for name in parts[ours]}
            check_shapes(config, ours, list(shaped.shape), entries, is_turned(config, ours))
    except ValueError as error:
        raise ValueError(f"{visible(folder)} does not fit its config.json: {error}") from None

    tensors = read_tensors(folder)
    state: dict[str, Tensor] = {}
    quantized: dict[str, list[QuantizedWeight]] = {}  # by the name of the layer
    for ours, theirs in parts.items():
        if any(full[name].dtype in ("I4", "I8") for name in theirs):
            weights = [read_quantized(name, lambda part: tensors.pop(part, None)) for name in theirs]
            quantized[ours.removesuffix(".weight")] = [weight.to(device) for weight in weights]
            continue
        pieces = [tensors.pop(name).to(device, target) for name in theirs]
        if is_turned(config, ours):
            pieces = [p.t() for p in pieces]
        state[ours] = (torch.cat(pieces) if len(pieces) > 1 else pieces[0]).contiguous()
    model.load_state_dict(state, strict=not quantized, assign=True)
    for ours, weights in quantized.items():
        model.set_submodule(ours, QuantizedLinear(weights, state.get(f"{ours}.bias")))
    return finish_loading(model)


def is_turned(config: ModelConfig, ours: str) -> bool:
    """GPT-2 stores the matrices of its blocks as [in, out]."""
    return config.family == "gpt2" and ours.startswith("blocks")


def check_sizes(config: ModelConfig, stored: Mapping[str, Stored]) -> None:
    """Refuse what would take long or much memory to build, for the few weights that are there."""
    if config.num_layers > len(stored):
        raise ValueError(f"it asks for {config.num_layers} layers, and {len(stored)} tensors are there")
    weights = sum(s.entry.nbytes for s in stored.values())
    num_tables = (config.choices.positions == "rotary") + (config.local_rope_theta is not None)
    tables = 4 * config.max_context * config.head_dim * num_tables  # float32, cosines and sines
    if tables > weights + SMALL_TABLES:
        raise ValueError(
            f"{config.max_context:,} positions x head_dim {config.head_dim:,} make rotary tables of "
            f"{tables / 1e9:.1f} GB, more than all weights"
        )


def check_memory(folder: Path, stored: Mapping[str, Stored], dtype: torch.dtype, device: str) -> None:
    """Say that a model is too large before minutes go into reading it. Codes stay as they are, other weights become `dtype`."""
    sizes = (
        prod(s.entry.shape) * dtype.itemsize if s.entry.dtype in STORED_DTYPES else s.entry.nbytes
        for s in stored.values()
    )
    needed, there = sum(sizes), memory_bytes(device)
    if there is not None and needed > there:
        narrower = ", or with dtype bfloat16" if dtype.itemsize > 2 else ""
        raise ValueError(
            f"{visible(folder)}: its weights take {needed / 1e9:.1f} GB in {str(dtype).removeprefix('torch.')}, and this "
            f"{'machine' if device == 'cpu' else 'GPU'} has {there / 1e9:.1f} GB: take a smaller model{narrower}"
        )


def check_names(config: ModelConfig, needed: list[str], stored: Mapping[str, Any]) -> None:
    """Every tensor that the model needs must be there, and no other."""
    known = {*needed, *(["lm_head.weight"] if config.tied else [])}  # a second copy of the token table
    missing, unexpected = [n for n in needed if n not in stored], [n for n in stored if n not in known]
    complaints = []
    for what, names in (("missing", missing), ("unexpected", unexpected)):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            complaints.append(f"{what} {', '.join(map(visible, names[:3]))}{more}")
    if complaints:
        raise ValueError("; ".join(complaints))


def check_shapes(
    config: ModelConfig, ours: str, shape: list[int], pieces: Mapping[str, TensorEntry], turned: bool
) -> None:
    """One below the other, the pieces must make up a tensor of ours. `turned`: they are stored as [in, out]."""
    rows = [shape[0] // len(pieces)] * len(pieces)
    if len(pieces) == 3:  # queries, keys and values
        heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        rows = [n * config.head_dim for n in heads]
    turn = -1 if turned else 1
    for (name, entry), n in zip(pieces.items(), rows, strict=True):
        if list(entry.shape)[::turn] != [n, *shape[1:]]:
            wanted = [n, *shape[1:]][::turn]
            raise ValueError(
                f"{name} has the wrong shape: {quoted(list(entry.shape))} found, {wanted} needed"
            )


def random_model(
    kind: type[Model], config: ModelConfig, dtype: str | torch.dtype, device: str, seed: int
) -> Model:
    """See `Transformer.random`."""
    with torch.device("meta"):
        model = kind(config)
    model = model.to(parse_dtype(dtype)).to_empty(device=device)
    generator = torch.Generator(device).manual_seed(seed)
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            if parameter.ndim == 2:
                parameter.normal_(0.0, 0.02, generator=generator)
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
    return finish_loading(model)


def finish_loading(model: Model, rope_factors: Tensor | None = None) -> Model:
    """Work out the tables that no checkpoint holds, and switch off what only training needs.

    Args:
        rope_factors: [head_dim / 2], by which pairs turn slower (GGUF holds them in place of the rule).
    """
    config = model.config
    if config.choices.positions == "rotary":
        frequencies = rotary_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        if rope_factors is not None:
            frequencies = frequencies / rope_factors
        # In float32 whatever the model's dtype: at position 100,000 a bfloat16 angle is off by turns.
        amplitude = rotary_amplitude(config.rope_scaling)
        tables = rotary_tables(config.max_context, frequencies, torch.float32, amplitude)
        model.cos, model.sin = (t.to(model.device) for t in tables)
    if config.local_rope_theta is not None:
        frequencies = rotary_frequencies(config.head_dim, config.local_rope_theta)
        tables = rotary_tables(config.max_context, frequencies, torch.float32)
        model.local_cos, model.local_sin = (t.to(model.device) for t in tables)
    if config.choices.scaled_embedding:  # rounded as the vectors are that it multiplies
        model.embedding_scale = torch.tensor(config.d_model**0.5, dtype=model.dtype, device=model.device)
    return model.requires_grad_(False).eval()
