"""A whole model out of one GGUF file: its settings in the words of a config.json, its tokenizer, its tensors.

A GGUF file says the same as a folder in the Hugging Face layout, in other words. Three things differ:

- Settings have names of their own: "gpt2.embedding_length" is `n_embd`. They are turned into a config.json here, so
  that the code for a config.json needs no second format.
- Matrices are [out, in] in every family. (GPT-2's own checkpoint keeps them as [in, out].)
- A Llama's queries and keys lie in the order of the paper on rotary positions, where neighbours are rotated together.
  Hugging Face's files, and the code of this course, rotate the first half of a head with the second. So rows are reordered.

Source: `convert_hf_to_gguf.py` of llama.cpp, for the names and for the order of rows (`permute`).
"""

from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labkit.foreign import quoted, visible
from phase1_tokens_embeddings.chat import ChatTemplate, chat_settings_of_folder, chat_settings_of_gguf
from phase1_tokens_embeddings.other_tokenizers import from_gguf_vocabulary, read_tokenizer
from phase1_tokens_embeddings.tokens import Tokenizer
from phase1_tokens_embeddings.weights.ggml_blocks import PLAIN, READABLE, scales_of_blocks
from phase1_tokens_embeddings.weights.gguf_file import GGUFHeader, read_gguf_header

# ours -> theirs, without the architecture in front
GPT2_KEYS = {
    "n_layer": "block_count", "n_positions": "context_length", "n_embd": "embedding_length",
    "n_inner": "feed_forward_length", "n_head": "attention.head_count",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
}  # fmt: skip
LLAMA_KEYS = {
    "num_hidden_layers": "block_count", "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length", "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length", "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
}  # fmt: skip
ROPE_FACTORS = "rope_freqs.weight"  # by which a long-context Llama slows its pairs: Llama 3.1 and later


def is_gguf(path: str | Path) -> bool:
    return Path(path).suffix == ".gguf"


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a model folder or a GGUF file.

    Raises:
        FileNotFoundError: a folder without one. ValueError: one that cannot be used, or a GGUF file without one.
    """
    if is_gguf(path):
        header = read_gguf_header(path)
        try:
            return from_gguf_vocabulary(header.metadata)
        except ValueError as error:
            raise ValueError(f"{visible(path)}: {error}") from None
    return read_tokenizer(path / "tokenizer.json")


def load_first_tokens(path: Path) -> list[int]:
    """The tokens before a prompt that is a text, such as Llama's <|begin_of_text|>. Most models have none.

    Raises:
        ValueError: a tokenizer.json that the library `tokenizers` cannot read.
    """
    if is_gguf(path):
        metadata = read_gguf_header(path).metadata
        # llama.cpp: without the setting, of the kinds read here only this one begins with a token.
        adds = metadata.get("tokenizer.ggml.add_bos_token", metadata.get("tokenizer.ggml.pre") == "llama-bpe")
        return [first] if adds and type(first := metadata.get("tokenizer.ggml.bos_token_id")) is int else []
    from tokenizers import Tokenizer as HubTokenizer

    try:
        hub = HubTokenizer.from_file(str(path / "tokenizer.json"))
        hub.no_padding()
        found = hub.encode("a")  # special tokens may also follow a text
        return [i for i, _ in takewhile(lambda pair: pair[1], zip(found.ids, found.special_tokens_mask))]
    except Exception as error:  # whatever the library finds wrong
        raise ValueError(f"{visible(path)}: {visible(str(error), 120)}") from None


def load_chat_template(path: Path) -> ChatTemplate | None:
    """The chat template of a model folder or a GGUF file; None if the model has none.

    Raises:
        ValueError: a file that cannot be used, or no template in Jinja.
    """
    if is_gguf(path):
        settings = chat_settings_of_gguf(read_gguf_header(path).metadata)
    else:
        settings = chat_settings_of_folder(path)
    source = settings.pop("chat_template", None)
    if source is None:
        return None
    try:
        return ChatTemplate(source, settings)
    except ValueError as error:
        raise ValueError(f"{visible(path)}: {error}") from None


def config_from_gguf(header: GGUFHeader) -> dict[str, Any]:
    """The settings of a GGUF file, in the words of a config.json.

    Raises:
        ValueError: an unknown architecture, or settings that no config.json can express.
    """
    metadata = header.metadata
    arch = metadata.get("general.architecture")
    if arch not in ("gpt2", "llama"):
        raise ValueError(f"its architecture is {quoted(arch)}; this course runs 'gpt2' and 'llama'")
    if "token_embd.weight" not in header.tensors or len(header.tensors["token_embd.weight"].dims) != 2:
        raise ValueError("it holds no table of tokens (token_embd.weight): it is no whole model")
    keys = GPT2_KEYS if arch == "gpt2" else LLAMA_KEYS
    config = {ours: metadata[key] for ours, theirs in keys.items() if (key := f"{arch}.{theirs}") in metadata}
    config |= {
        "model_type": arch,
        "vocab_size": header.tensors["token_embd.weight"].dims[1],
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
    }
    ends = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    config["eos_token_id"] = [i for i in ends if i is not None]
    if "num_attention_heads" in config and "head_dim" not in config:
        config["head_dim"] = metadata.get("llama.rope.dimension_count")
    scaling = metadata.get(f"{arch}.rope.scaling.type", "none")
    if scaling == "linear":
        config["rope_scaling"] = {
            "rope_type": "linear",
            "factor": metadata.get(f"{arch}.rope.scaling.factor"),
        }
    elif scaling != "none":
        raise ValueError(f"its rotary scaling is {quoted(scaling)}: only 'linear' is read here")
    return config


def read_blocks(path: Path, header: GGUFHeader, name: str) -> Tensor:
    """The bytes of one tensor: uint8 [rows, bytes of a row]; a vector is one row.

    Raises:
        ValueError: a type that is not read here, or scales that are no numbers, or all zero.
    """
    tensor = header.tensors[name]
    if tensor.type not in READABLE:
        raise ValueError(
            f"{visible(path)}: tensor {quoted(name)} is {tensor.type}; read here are {', '.join(READABLE)}: "
            "convert the model again, to one of these types"
        )
    with path.open("rb") as file:
        file.seek(header.data_start + tensor.offset)
        data = np.fromfile(file, np.uint8, tensor.nbytes)
    rows = torch.from_numpy(data).view(tensor.dims[1] if len(tensor.dims) == 2 else 1, -1)
    if tensor.type not in PLAIN:
        scales = scales_of_blocks(tensor.type, rows)
        fault = "NaN or infinite" if not scales.isfinite().all() else "all zero" if not scales.any() else None
        if fault:
            raise ValueError(
                f"{visible(path)}: the scales of tensor {quoted(name)} are {fault}: the file is damaged, or was "
                "written wrongly; convert the model again"
            )
    return rows


def to_interleaved(rows: Tensor, num_heads: int) -> Tensor:
    """Rows of queries or keys from the order of Hugging Face's files to that of GGUF: 0, 1, ... -> 0, half, 1, ..."""
    return rows.unflatten(0, (num_heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def from_interleaved(rows: Tensor, num_heads: int) -> Tensor:
    """The reverse of `to_interleaved`."""
    return rows.unflatten(0, (num_heads, -1, 2)).transpose(1, 2).flatten(0, 2)
