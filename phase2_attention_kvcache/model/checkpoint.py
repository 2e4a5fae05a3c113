"""A model's weights: from a folder in the Hugging Face layout, or random.

Every family names its tensors in its own way (`weight_names.py`), and GPT-2 stores its matrices as [in, out].
"""

from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from labkit.foreign import quoted, visible
from labkit.machine import memory_bytes
from phase1_tokens_embeddings.weights.safetensors_file import (
    TensorEntry,
    checkpoint_files,
    open_tensors,
    read_safetensors_header,
)
from phase2_attention_kvcache.model.config import ModelConfig, read_config
from phase2_attention_kvcache.model.positions import rotary_amplitude, rotary_frequencies, rotary_tables
from phase2_attention_kvcache.model.weight_names import WEIGHT_NAMES

Model = TypeVar("Model", bound=nn.Module)

# Old checkpoints also store masks and frequencies, which are computed here.
IGNORED_ENDINGS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")
DTYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")}
STORED_DTYPES = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")
SMALL_TABLES = 64 * 2**20  # bytes that a small file may ask for: rotary tables are computed, not stored


class Stored(NamedTuple):
    """A tensor as the header of its file describes it."""

    file: Path
    name: str
    entry: TensorEntry


def parse_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """ "bfloat16" -> torch.bfloat16. Raises ValueError for a dtype that the course does not compute in."""
    if dtype not in (*DTYPES, *DTYPES.values()):
        raise ValueError(f"unknown dtype {dtype!r}: use {', '.join(DTYPES)}")
    return DTYPES.get(dtype, dtype)


def load_checkpoint(kind: type[Model], folder: Path, dtype: str | torch.dtype, device: str) -> Model:
    """See `Transformer.from_pretrained`."""
    config, target = read_config(folder), parse_dtype(dtype)
    # config.json and the headers may say anything: they are checked against each other before any large allocation.
    stored = read_headers(folder)
    entries = {name: s.entry for name, s in stored.items()}
    check_memory(folder, entries.values(), target, device)
    model, parts = fit_model(kind, config, folder, entries)
    tensors = read_tensors(stored)
    state = {
        ours: assemble(config, ours, [tensors.pop(name) for name in theirs], target, device)
        for ours, theirs in parts.items()
    }
    model.load_state_dict(state, assign=True)
    return finish_loading(model)


def read_headers(folder: Path, dtypes: tuple[str, ...] = STORED_DTYPES) -> dict[str, Stored]:
    """The tensors that the headers of a model's files list, by name without the usual prefixes. No weight is read.

    Args:
        dtypes: types that a tensor may have.

    Raises:
        ValueError: a damaged file, a name that occurs twice, or a tensor of another type.
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
                said = f"{visible(name)} is {entry.dtype}, but weights are {', '.join(dtypes)}"
                raise ValueError(f"{visible(file)}: {said}")
            found[short] = Stored(file, name, entry)
    return found


def read_tensors(stored: Mapping[str, Stored]) -> dict[str, Tensor]:
    """The tensors themselves, by the names of `read_headers`."""
    tensors: dict[str, Tensor] = {}
    for file in {s.file for s in stored.values()}:
        with open_tensors(file) as numbers:
            tensors |= {short: numbers.get_tensor(s.name) for short, s in stored.items() if s.file == file}
    return tensors


def fit_model(
    kind: type[Model],
    config: ModelConfig,
    path: Path,
    entries: Mapping[str, TensorEntry],
    names: Mapping[str, list[str]] | None = None,
) -> tuple[Model, dict[str, list[str]]]:
    """A model without memory for its weights, and the stored tensors that make up each of its parameters.

    Args:
        entries: the stored tensors, by name.
        names: names for another kind of file, where every matrix is [out, in]. By default those of the family, see `is_turned`.

    Raises:
        ValueError: the settings and the stored tensors do not fit together.
    """
    try:
        check_sizes(config, entries)
        with torch.device("meta"):
            model = kind(config)
        shapes = {ours: list(t.shape) for ours, t in model.state_dict().items()}
        parts = {ours: names_for(config, ours, names) for ours in shapes}
        check_names(config, [name for theirs in parts.values() for name in theirs], entries)
        for ours, theirs in parts.items():
            pieces = {name: entries[name] for name in theirs}
            check_shapes(config, ours, shapes[ours], pieces, names is None and is_turned(config, ours))
    except ValueError as error:
        where = "config.json" if path.is_dir() else "own settings"
        raise ValueError(f"{visible(path)} does not fit its {where}: {error}") from None
    return model, parts


def names_for(config: ModelConfig, ours: str, table: Mapping[str, list[str]] | None = None) -> list[str]:
    """The stored tensors that make up one parameter of the model. `table`: by default that of the family."""
    table = table or WEIGHT_NAMES[config.family]
    *path, kind = ours.split(".")
    numbers = [part for part in path if part.isdigit()]  # of the layer, of the expert
    generic = ".".join("{}" if part.isdigit() else part for part in path)
    return [theirs.format(*numbers, kind) for theirs in table[f"{generic}.{{}}"]]


def is_turned(config: ModelConfig, ours: str) -> bool:
    """GPT-2 stores the matrices of its blocks as [in, out]."""
    return config.family == "gpt2" and ours.startswith("blocks")


def assemble(config: ModelConfig, ours: str, pieces: list[Tensor], dtype: torch.dtype, device: str) -> Tensor:
    """One parameter of the model, from the stored tensors that make it up."""
    pieces = [piece.to(device, dtype) for piece in pieces]
    if is_turned(config, ours):
        pieces = [piece.t() for piece in pieces]
    return (torch.cat(pieces) if len(pieces) > 1 else pieces[0]).contiguous()


def check_sizes(config: ModelConfig, entries: Mapping[str, TensorEntry]) -> None:
    """Refuse settings whose model would take far more time or memory to build than its stored weights justify."""
    if config.num_layers > len(entries):
        raise ValueError(f"it asks for {config.num_layers} layers, and {len(entries)} tensors are there")
    weights = sum(entry.nbytes for entry in entries.values())
    num_tables = (config.choices.positions == "rotary") + (config.local_rope_theta is not None)
    tables = 4 * config.max_context * config.head_dim * num_tables  # float32, cosines and sines
    if tables > weights + SMALL_TABLES:
        raise ValueError(
            f"{config.max_context:,} positions x head_dim {config.head_dim:,} make rotary tables of "
            f"{tables / 1e9:.1f} GB, more than all weights"
        )


def check_memory(path: Path, entries: Iterable[TensorEntry], dtype: torch.dtype, device: str) -> None:
    """Refuse a model that is too large, before reading it for minutes. Plain weights become `dtype`, other types stay."""
    needed = sum(prod(e.shape) * dtype.itemsize if e.dtype in STORED_DTYPES else e.nbytes for e in entries)
    there = memory_bytes(device)
    if needed > there:
        smaller = ", or with dtype bfloat16" if dtype.itemsize > 2 else ""
        raise ValueError(
            f"{visible(path)}: its weights take {needed / 1e9:.1f} GB in {str(dtype).removeprefix('torch.')}, and this "
            f"{'machine' if device == 'cpu' else 'GPU'} has {there / 1e9:.1f} GB: take a smaller model{smaller}"
        )


def check_names(config: ModelConfig, needed: list[str], entries: Mapping[str, TensorEntry]) -> None:
    """Every tensor that the model needs must be there, and no other."""
    known = {*needed, *(["lm_head.weight"] if config.tied else [])}  # a second copy of the token table
    missing, unexpected = [n for n in needed if n not in entries], [n for n in entries if n not in known]
    complaints = [
        f"{what} {', '.join(map(visible, names[:3]))}" + f" and {len(names) - 3} more" * (len(names) > 3)
        for what, names in (("missing", missing), ("unexpected", unexpected))
        if names
    ]
    if complaints:
        raise ValueError("; ".join(complaints))


def check_shapes(
    config: ModelConfig, ours: str, shape: list[int], pieces: Mapping[str, TensorEntry], turned: bool
) -> None:
    """Stacked, the pieces must have the shape of the model's parameter. `turned`: they are stored as [in, out]."""
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
    model = finish_loading(model.to(parse_dtype(dtype)).to_empty(device=device))
    generator = torch.Generator(device).manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            parameter.normal_(0.0, 0.02, generator=generator)
        else:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)
    return model


def finish_loading(model: Model) -> Model:
    """Compute the tables that no checkpoint holds, and switch off gradients and dropout."""
    config, scaling = model.config, model.config.rope_scaling

    def tables(theta: float, scaling: dict | None) -> list[Tensor]:
        # In float32 whatever the model's dtype: at position 100,000 a bfloat16 angle is off by turns.
        frequencies = rotary_frequencies(config.head_dim, theta, scaling)
        pair = rotary_tables(config.max_context, frequencies, torch.float32, rotary_amplitude(scaling))
        return [table.to(model.device) for table in pair]

    if config.choices.positions == "rotary":
        model.cos, model.sin = tables(config.rope_theta, scaling)
    if config.local_rope_theta is not None:
        model.local_cos, model.local_sin = tables(config.local_rope_theta, None)
    if config.choices.scaled_embedding:  # rounded as the vectors are that it multiplies
        model.embedding_scale = torch.tensor(config.d_model**0.5, dtype=model.dtype, device=model.device)
    return model.requires_grad_(False).eval()
