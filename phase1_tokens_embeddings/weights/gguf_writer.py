"""Turn a model folder (GPT-2 or Llama) into one GGUF file, optionally quantized.

The package `gguf` writes the container; this module makes its contents. Matrices get the requested type. Norms, biases
and positions are small and sensitive, and stay F32.

Source: `convert_hf_to_gguf.py` of llama.cpp.
"""

import contextlib
import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from torch import Tensor

from labkit.foreign import quoted, read_json, visible
from phase1_tokens_embeddings.chat import chat_settings_of_folder
from phase1_tokens_embeddings.other_tokenizers import to_gguf_vocabulary
from phase1_tokens_embeddings.tokens import BPETokenizer
from phase1_tokens_embeddings.weights.config_settings import MAX_CONFIG_BYTES, end_tokens, number
from phase1_tokens_embeddings.weights.ggml_blocks import WRITABLE, quantize_blocks
from phase1_tokens_embeddings.weights.gguf_model import ROPE_FACTORS, load_first_tokens, to_interleaved
from phase1_tokens_embeddings.weights.model_shapes import ModelShape, read_shape
from phase1_tokens_embeddings.weights.safetensors_file import (
    checkpoint_files,
    open_tensors,
    read_safetensors_header,
)

FILE_TYPES = {  # the type named in the file's header; each tensor has its own type as well
    kind: gguf.LlamaFileType[f"{'ALL' if kind == 'F32' else 'MOSTLY'}_{kind}"] for kind in WRITABLE
}


def write_gguf(
    folder: str | Path, path: str | Path, file_type: str = "F16", rope_factors: Tensor | None = None
) -> None:
    """Put a model folder (config, tokenizer, weights) into one GGUF file.

    Args:
        file_type: of the matrices, one of WRITABLE.
        rope_factors: [head_dim / 2], by which pairs of a Llama turn slower than its rope_theta says.

    Raises:
        FileNotFoundError: the folder lacks a file.
        OSError: the file cannot be written, as on a full disk; there is none then, or the old one.
        ValueError: an unknown type, rows that do not divide into its blocks, another kind of model, a broken file.
    """
    folder = Path(folder)
    if file_type not in WRITABLE:
        raise ValueError(f"unknown type {quoted(file_type)}: {', '.join(WRITABLE)} can be written")
    config = read_json(folder / "config.json", MAX_CONFIG_BYTES)
    shape = read_shape(folder / "config.json", folder.name)
    config["eos_token_id"] = [*end_tokens(folder, config, shape.vocab_size)]
    if config["model_type"] not in ("gpt2", "llama"):
        raise ValueError(
            f"{visible(folder)} is of kind {quoted(config['model_type'])}: gpt2 and llama can be written"
        )
    if config.get("quantization_config") is not None:
        raise ValueError(f"{visible(folder)} is in few bits already: give the model in full")
    tokenizer = BPETokenizer.from_file(folder / "tokenizer.json")
    vocabulary = to_gguf_vocabulary(tokenizer, shape.vocab_size)
    chat = chat_settings_of_folder(folder)
    # Before the file is begun: a wrong model leaves none.
    tensors = converted_tensors(folder, shape, file_type)

    beside = Path(f"{path}.{os.getpid()}.tmp")  # whole before it has its name
    writer = gguf.GGUFWriter(beside, shape.family)
    writer.add_name(folder.resolve().name)
    writer.add_file_type(FILE_TYPES[file_type])
    add_settings(writer, shape, config)
    add_vocabulary(writer, vocabulary)
    writer.add_add_bos_token(bool(load_first_tokens(folder)))
    add_special_tokens(writer, tokenizer, config, chat)
    if "chat_template" in chat:
        writer.add_chat_template(chat["chat_template"])
    for name, (kind, array) in tensors.items():
        writer.add_tensor(name, array, raw_dtype=gguf.GGMLQuantizationType[kind])
    if rope_factors is not None:
        writer.add_tensor(ROPE_FACTORS, rope_factors.float().numpy())
    try:
        write_out(writer)
        os.replace(beside, path)
    finally:
        with contextlib.suppress(OSError):
            writer.close()
        beside.unlink(missing_ok=True)


def write_out(writer: gguf.GGUFWriter) -> None:
    """Write a file whose contents are complete."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_settings(writer: gguf.GGUFWriter, shape: ModelShape, config: dict[str, Any]) -> None:
    """The hyperparameters, under GGUF's names."""
    writer.add_block_count(shape.num_layers)
    writer.add_context_length(shape.max_context)
    writer.add_embedding_length(shape.d_model)
    writer.add_feed_forward_length(shape.d_ff)
    writer.add_head_count(shape.num_heads)
    if shape.family == "gpt2":
        writer.add_layer_norm_eps(number(config, "layer_norm_epsilon", 1e-5))
        return
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    writer.add_head_count_kv(shape.num_kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_layer_norm_rms_eps(number(config, "rms_norm_eps", 1e-6))
    writer.add_rope_freq_base(number(config | rope, "rope_theta", 10000.0))
    if rope.get("rope_type", rope.get("type")) == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(number(rope, "factor", 1.0))


def add_vocabulary(writer: gguf.GGUFWriter, vocabulary: dict[str, Any]) -> None:
    writer.add_tokenizer_model(vocabulary["model"])
    writer.add_tokenizer_pre(vocabulary["pre"])
    writer.add_token_list(vocabulary["tokens"])
    writer.add_token_types(vocabulary["token_type"])
    writer.add_token_merges(vocabulary["merges"])


def add_special_tokens(
    writer: gguf.GGUFWriter, tokenizer: BPETokenizer, config: dict[str, Any], chat: dict[str, str]
) -> None:
    """Which tokens begin and end a text: as the chat settings name them, else as config.json numbers them.

    A model may have several tokens that end an answer. A GGUF file holds three: eos, eot (of a turn), eom (of a
    message).
    """

    def ids_of(name: str) -> list[int]:
        numbered = config.get(f"{name}_token_id")
        named = tokenizer.special_tokens.get(chat.get(f"{name}_token", ""))
        ids = [named, *(numbered if isinstance(numbered, list) else [numbered])]
        return list(dict.fromkeys(i for i in ids if isinstance(i, int) and 0 <= i < tokenizer.vocab_size))

    if first := ids_of("bos"):
        writer.add_bos_token_id(first[0])
    ends = (writer.add_eos_token_id, writer.add_eot_token_id, writer.add_eom_token_id)
    for add, token in zip(ends, ids_of("eos")):
        add(token)


def converted_tensors(folder: Path, shape: ModelShape, file_type: str) -> dict[str, tuple[str, np.ndarray]]:
    """GGUF's name of each tensor -> its type, and its numbers or packed bytes [rows, bytes of a row]."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[shape.family.upper()], shape.num_layers)
    tensors: dict[str, tuple[str, np.ndarray]] = {}
    for file in checkpoint_files(folder):
        stored = read_safetensors_header(file).tensors
        with open_tensors(file) as numbers:
            for name, entry in stored.items():
                new_name = gguf_name(names, name)
                if new_name is None or (new_name == "output.weight" and shape.tied):
                    continue  # no weight (old checkpoints also store masks and frequencies), or the table a second time
                if entry.dtype not in ("F32", "F16", "BF16"):
                    raise ValueError(
                        f"tensor {quoted(name)} holds {entry.dtype}: F32, F16 and BF16 can be converted"
                    )
                weight = numbers.get_tensor(name).float()
                if shape.family == "gpt2" and weight.ndim == 2 and new_name.startswith("blk."):
                    weight = weight.T  # GPT-2's checkpoint keeps matrices as [in, out], GGUF wants [out, in]
                if shape.family == "llama" and ".attn_q." in new_name:
                    weight = to_interleaved(weight, shape.num_heads)
                elif shape.family == "llama" and ".attn_k." in new_name:
                    weight = to_interleaved(weight, shape.num_kv_heads)
                kind = file_type if weight.ndim == 2 and new_name != "position_embd.weight" else "F32"
                try:
                    packed = quantize_blocks(kind, weight).numpy()
                except ValueError as error:
                    raise ValueError(f"{visible(file)}: {quoted(name)} cannot be {kind}: {error}") from None
                plain = {"F32": "<f4", "F16": "<f2"}.get(kind)  # the package wants numbers as numbers
                tensors[new_name] = (kind, packed.view(plain) if plain else packed)
    return tensors


def gguf_name(names: Any, name: str) -> str | None:
    """The package's name for a tensor of a checkpoint; checkpoints have different prefixes."""
    for full in (name, f"transformer.{name}", f"model.{name}"):
        if found := names.get_name(full, (".weight", ".bias")):
            return found
    return None
