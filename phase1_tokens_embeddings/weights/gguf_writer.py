"""Turn a GPT-2 folder into one GGUF file. The package `gguf` writes it; what goes in is said here.

Matrices go in as F16. What is small and delicate (norms, biases, positions) stays F32.

Source: `convert_hf_to_gguf.py` of llama.cpp.
"""

from pathlib import Path

import gguf
import numpy as np

from labkit.foreign import quoted, read_json, visible
from phase1_tokens_embeddings.tokens import BPETokenizer
from phase1_tokens_embeddings.tokens.tokenizer_files import printable
from phase1_tokens_embeddings.weights.model_shapes import MAX_CONFIG_BYTES, number, read_shape
from phase1_tokens_embeddings.weights.safetensors_file import (
    SafetensorsHeader,
    checkpoint_files,
    read_safetensors_header,
)


def gpt2_to_gguf(folder: str | Path, path: str | Path) -> None:
    """Put a GPT-2 model folder (config, tokenizer, weights) into one GGUF file.

    Raises:
        FileNotFoundError: the folder lacks a file.
        ValueError: not a GPT-2, or a broken file.
    """
    folder = Path(folder)
    shape = read_shape(folder / "config.json", folder.name)
    if shape.family != "gpt2":
        raise ValueError(f"{visible(folder)} holds no GPT-2: this small writer knows no other architecture")
    config = read_json(folder / "config.json", MAX_CONFIG_BYTES)
    tokenizer = BPETokenizer.from_file(folder / "tokenizer.json")
    special = set(tokenizer.special_tokens.values())
    spelled = [b.decode() if i in special else printable(b) for i, b in enumerate(tokenizer.token_bytes)]
    kinds = (gguf.TokenType.NORMAL, gguf.TokenType.CONTROL)

    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_name(folder.name)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_block_count(shape.num_layers)
    writer.add_context_length(shape.max_context)
    writer.add_embedding_length(shape.d_model)
    writer.add_feed_forward_length(shape.d_ff)
    writer.add_head_count(shape.num_heads)
    writer.add_layer_norm_eps(number(config, "layer_norm_epsilon", 1e-5))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(spelled)
    writer.add_token_types([kinds[i in special] for i in range(len(spelled))])
    writer.add_token_merges([f"{spelled[a]} {spelled[b]}" for a, b in tokenizer.merges])
    if tokenizer.eos_token_id is not None:
        writer.add_bos_token_id(tokenizer.eos_token_id)
        writer.add_eos_token_id(tokenizer.eos_token_id)

    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT2, shape.num_layers)
    for file in checkpoint_files(folder):
        header = read_safetensors_header(file)
        for name in header.tensors:
            full = f"transformer.{name.removeprefix('transformer.')}"
            new_name = names.get_name(full, (".weight", ".bias")) or names.get_name(name, (".weight",))
            if new_name is None:
                continue  # no weight: old checkpoints also store the attention mask
            array = read_tensor(file, header, name)
            if array.ndim == 2 and new_name != "position_embd.weight":
                # GPT-2's checkpoint keeps matrices as [in, out], GGUF wants [out, in].
                array = (array.T if new_name.startswith("blk.") else array).astype("f2")
            writer.add_tensor(new_name, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_tensor(path: str | Path, header: SafetensorsHeader, name: str) -> np.ndarray:
    """One tensor of a safetensors file as float32, by hand.

    Raises:
        ValueError: it holds no F32, F16 or BF16 numbers.
    """
    entry = header.tensors[name]
    types = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
    if entry.dtype not in types:
        raise ValueError(f"tensor {quoted(name)} holds {entry.dtype}: F32, F16 and BF16 can be converted")
    with Path(path).open("rb") as file:
        file.seek(header.data_start + entry.offsets[0])
        numbers = np.frombuffer(file.read(entry.nbytes), types[entry.dtype]).reshape(entry.shape)
    if entry.dtype == "BF16":  # BF16 is the upper half of an FP32: put 16 zeros behind it
        return (numbers.astype("u4") << 16).view("f4")
    return numbers.astype("f4")
