"""Quantized checkpoints as vLLM's users have them: compressed-tensors, W4A16 and W8A8. It attaches as a row of
`CHECKPOINT_FORMATS`.

A folder in the Hugging Face layout whose config.json holds a `quantization_config`. In place of a matrix `x.weight` there
are:

    W4A16 ("pack-quantized")   x.weight_packed      int32 [out, in / 8]: eight codes of 4 bits, the first in the lowest
                               x.weight_scale       [out, in / group]
                               x.weight_zero_point  int32 [out / 8, in / group], if not symmetric: packed along `out`
                               x.weight_shape       [out, in]
    W8A8 ("int-quantized")     x.weight             int8 [out, in]
                               x.weight_scale       [out, 1]

Codes here go from 0 to 15, as in "int4" (see `quantized_formats.py`). A scale for 128 weights is stored four times, for
32 each. The activations of W8A8, which vLLM quantizes too, are not quantized here.

Source: compressed_tensors/compressors/pack_quantized/helpers.py, version 0.17.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from labkit.foreign import quoted, read_json, visible
from phase1_tokens_embeddings.weights.config_settings import MAX_CONFIG_BYTES
from phase1_tokens_embeddings.weights.ggml_blocks import pack_nibbles
from phase1_tokens_embeddings.weights.safetensors_file import TensorEntry
from phase2_attention_kvcache.model.checkpoint import (
    STORED_DTYPES,
    assemble,
    check_memory,
    finish_loading,
    fit_model,
    parse_dtype,
    read_headers,
    read_tensors,
)
from phase2_attention_kvcache.model.config import read_config
from phase2_attention_kvcache.quantization.quantized_formats import GROUP
from phase2_attention_kvcache.quantization.quantized_linear import QuantizedLinear, QuantizedWeight

Model = TypeVar("Model", bound=nn.Module)

CODE_DTYPES = ("I8", "I32", "I64")  # codes, packed codes, shapes
PARTS = (".weight_packed", ".weight_scale", ".weight_zero_point", ".weight_shape")
SHIFTS = 4 * torch.arange(8, dtype=torch.int32)  # how far up each of the codes in an int32 lies


def read_settings(folder: Path) -> dict[str, Any]:
    """config.json without its `quantization_config`, which is checked.

    Raises:
        ValueError: weights are stored in a way that is not read here.
    """
    settings = dict(read_json(folder / "config.json", MAX_CONFIG_BYTES))
    check_scheme(settings.pop("quantization_config"))
    return settings


def load(kind: type[Model], folder: Path, dtype: str | torch.dtype, device: str) -> Model:
    """See `Transformer.from_pretrained`."""
    config, target = read_config(folder), parse_dtype(dtype)
    stored = read_headers(folder, STORED_DTYPES + CODE_DTYPES)
    check_memory(folder, (s.entry for s in stored.values()), target, device)
    try:
        full = entries_in_full({name: s.entry for name, s in stored.items()})
    except ValueError as error:
        raise ValueError(f"{visible(folder)} does not fit its config.json: {error}") from None
    model, parts = fit_model(kind, config, folder, full)
    tensors = read_tensors(stored)
    state: dict[str, Tensor] = {}
    quantized: dict[str, list[QuantizedWeight]] = {}  # by the name of the layer
    for ours, theirs in parts.items():
        if any(full[name].dtype in ("I4", "I8") for name in theirs):
            weights = [read_quantized(name, lambda part: tensors.pop(part, None)) for name in theirs]
            quantized[ours.removesuffix(".weight")] = [weight.to(device) for weight in weights]
        else:
            state[ours] = assemble(config, ours, [tensors.pop(name) for name in theirs], target, device)
    model.load_state_dict(state, strict=False, assign=True)
    for ours, weights in quantized.items():
        model.set_submodule(ours, QuantizedLinear(weights, state.get(f"{ours}.bias")))
    return finish_loading(model)


def check_scheme(raw: Any) -> None:
    """
    Args:
        raw: the `quantization_config` of a config.json.

    Raises:
        ValueError: weights are stored in a way that is not read here.
    """
    try:
        (group,) = raw["config_groups"].values()
        weights, kind = group["weights"], raw["format"]
        bits, size = weights["num_bits"], weights.get("group_size")
        found = f"{quoted(kind)} with {quoted(bits)} bits"
        good = raw["quant_method"] == "compressed-tensors" and weights["type"] == "int"
        good &= (kind, bits) in (("pack-quantized", 4), ("int-quantized", 8))
        good &= (size is not None and size % GROUP == 0) if bits == 4 else weights["strategy"] == "channel"
    except (KeyError, TypeError, AttributeError, ValueError):
        found, good = quoted(raw.get("quant_method") if isinstance(raw, dict) else raw), False
    if not good:
        raise ValueError(
            f"its quantization_config is of a kind that is not read here ({found}): read are compressed-tensors W4A16 in "
            "groups of a multiple of 32, W8A8 with a scale per row, and GGUF files"
        )


def entries_in_full(entries: Mapping[str, TensorEntry]) -> dict[str, TensorEntry]:
    """Names and shapes of the tensors in the headers, as if the matrices were not quantized."""
    full = {}
    for name, entry in entries.items():
        if name.endswith(".weight_packed"):
            if len(entry.shape) != 2:
                raise ValueError(f"{visible(name)} is no matrix: its shape is {quoted(list(entry.shape))}")
            rows, columns = entry.shape
            full[name.removesuffix("_packed")] = TensorEntry("I4", (rows, 8 * columns), entry.offsets)
        elif name.endswith("embed_tokens.weight") and entry.dtype == "I8":
            raise ValueError(f"its token table ({name}) is quantized: only linear layers may be")
        elif not name.endswith(PARTS):
            full[name] = entry
    return full


def read_quantized(name: str, read: Callable[[str], Tensor | None]) -> QuantizedWeight:
    """A matrix as it is stored.

    Args:
        name: such as "layers.0.mlp.down_proj.weight". read: gives a tensor of the checkpoint; None if it is not there.

    Raises:
        ValueError: parts that are missing or do not fit together, or scales that are no scales.
    """
    packed, scales = read(f"{name}_packed"), read(f"{name}_scale")
    codes = read(name) if packed is None else unpack(packed)
    if scales is None or codes.ndim != 2 or scales.shape[:-1] != codes.shape[:-1] or not scales.numel():
        raise ValueError(f"{visible(name)}: its scales are missing, or not in rows as its codes are")
    scales = scales.float()
    if not scales.isfinite().all() or not scales.any():
        raise ValueError(f"{visible(name)}: its scales are NaN, infinite or all zero: the file is damaged")
    group, rest = divmod(codes.shape[1], scales.shape[1])
    if rest or (scales.shape[1] > 1 if packed is None else group % GROUP):
        wanted = "one is" if packed is None else f"one for a multiple of {GROUP} weights is"
        found = f"{codes.shape[1]} weights have {scales.shape[1]} scales"
        raise ValueError(f"{visible(name)}: a row's {found}; {wanted} needed")
    if packed is None:
        return QuantizedWeight("int8", {"codes": codes, "scales": scales})
    repeat = group // GROUP
    zeros = read(f"{name}_zero_point")
    zeros = torch.full_like(scales, 8) if zeros is None else unpack(zeros.t()).t()
    if zeros.shape != scales.shape:
        raise ValueError(f"{visible(name)}: {list(zeros.shape)} zero points, and {list(scales.shape)} scales")
    planes = {
        "codes": pack_nibbles(codes),
        "scales": scales.half().repeat_interleave(repeat, 1),
        "zeros": zeros.to(torch.uint8).repeat_interleave(repeat, 1),
    }
    return QuantizedWeight("int4", planes)


def unpack(packed: Tensor) -> Tensor:
    """Eight codes from each number: int32 [rows, n] -> uint8 [rows, 8 n].

    >>> unpack(torch.tensor([[0x21]], dtype=torch.int32))
    tensor([[1, 2, 0, 0, 0, 0, 0, 0]], dtype=torch.uint8)
    """
    return ((packed[..., None] >> SHIFTS) & 15).flatten(1).to(torch.uint8)
