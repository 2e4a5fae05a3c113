"""Where a model's weights come from: a folder in the Hugging Face layout, or chance.

Every family names its tensors in its own way, and GPT-2 stores its matrices turned by 90 degrees. The
table of names below is all there is to "supporting a model".
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import safe_open
from torch import Tensor, nn

from labkit.models import find_model
from phase1_tokens_embeddings.weights.safetensors_file import checkpoint_files, read_safetensors_header
from phase2_attention_kvcache.model.config import ModelConfig, read_config
from phase2_attention_kvcache.model.positions import rotary_frequencies, rotary_tables

Model = TypeVar("Model", bound=nn.Module)

# ours -> theirs; {} stands for the layer, the last one for weight or bias. Several names on the right are joined
# along the output dimension.
GPT2_NAMES = {
    "token_table.{}": ["wte.{}"],
    "position_table.{}": ["wpe.{}"],
    "final_norm.{}": ["ln_f.{}"],
    "blocks.{}.attention_norm.{}": ["h.{}.ln_1.{}"],
    "blocks.{}.attention.qkv.{}": ["h.{}.attn.c_attn.{}"],
    "blocks.{}.attention.out.{}": ["h.{}.attn.c_proj.{}"],
    "blocks.{}.mlp_norm.{}": ["h.{}.ln_2.{}"],
    "blocks.{}.mlp.up.{}": ["h.{}.mlp.c_fc.{}"],
    "blocks.{}.mlp.down.{}": ["h.{}.mlp.c_proj.{}"],
    "head.{}": ["lm_head.{}"],
}
LLAMA_NAMES = {
    "token_table.{}": ["embed_tokens.{}"],
    "final_norm.{}": ["norm.{}"],
    "blocks.{}.attention_norm.{}": ["layers.{}.input_layernorm.{}"],
    "blocks.{}.attention.qkv.{}": [f"layers.{{}}.self_attn.{p}_proj.{{}}" for p in "qkv"],
    "blocks.{}.attention.out.{}": ["layers.{}.self_attn.o_proj.{}"],
    "blocks.{}.mlp_norm.{}": ["layers.{}.post_attention_layernorm.{}"],
    "blocks.{}.mlp.gate_up.{}": [f"layers.{{}}.mlp.{p}_proj.{{}}" for p in ("gate", "up")],
    "blocks.{}.mlp.down.{}": ["layers.{}.mlp.down_proj.{}"],
    "head.{}": ["lm_head.{}"],
}
# Old checkpoints also store masks and frequencies, which are computed here.
IGNORED_ENDINGS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def parse_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """ "bfloat16" -> torch.bfloat16. Raises ValueError for what the course does not compute in."""
    if dtype in DTYPES.values():
        return dtype
    if dtype not in DTYPES:
        raise ValueError(f"unknown dtype {dtype!r}: use {', '.join(DTYPES)}")
    return DTYPES[dtype]


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a model by their own names, without the prefix that some files put before them.

    The header of each file is checked first (phase 1), so that a damaged file is named as such.
    """
    tensors: dict[str, Tensor] = {}
    for file in checkpoint_files(folder):
        read_safetensors_header(file)
        with safe_open(file, framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118
                short = name.removeprefix("transformer.").removeprefix("model.")
                if not short.endswith(IGNORED_ENDINGS):
                    tensors[short] = stored.get_tensor(name)
    return tensors


def names_for(config: ModelConfig, ours: str) -> list[str]:
    """The tensors of the checkpoint that make up one of our parameters."""
    table = GPT2_NAMES if config.family == "gpt2" else LLAMA_NAMES
    *path, kind = ours.split(".")
    layer = path[1:2] if path[0] == "blocks" else []
    generic = ".".join([path[0], "{}", *path[2:]] if layer else path)
    return [theirs.format(*layer, kind) for theirs in table[f"{generic}.{{}}"]]


def load_checkpoint(kind: type[Model], name: str | Path, dtype: str | torch.dtype, device: str) -> Model:
    """See `Transformer.from_pretrained`."""
    folder = find_model(name)
    config, target = read_config(folder), parse_dtype(dtype)
    tensors = read_tensors(folder)
    with torch.device("meta"):  # shapes without memory: the weights are put in as they are read
        model = kind(config)

    state: dict[str, Tensor] = {}
    missing: list[str] = []
    for ours, shaped in model.state_dict().items():
        theirs = names_for(config, ours)
        if absent := [t for t in theirs if t not in tensors]:
            missing += absent
            continue
        pieces = [tensors.pop(t) for t in theirs]
        if config.family == "gpt2" and shaped.ndim == 2 and ours.startswith("blocks"):
            pieces = [p.T if p.ndim == 2 else p for p in pieces]  # GPT-2 stores [in, out]
        rows = sum(len(p) if p.ndim else 0 for p in pieces)
        if rows != len(shaped) or any(p.shape[1:] != shaped.shape[1:] for p in pieces):
            raise ValueError(
                f"{folder}: {' + '.join(theirs)} has the wrong shape: "
                f"{' + '.join(str(list(p.shape)) for p in pieces)} found, "
                f"config.json asks for {list(shaped.shape)} (rows, columns)"
            )
        joined = torch.cat(pieces) if len(pieces) > 1 else pieces[0]
        state[ours] = joined.to(device, target).contiguous()
    if config.tied:
        tensors.pop("lm_head.weight", None)  # a second copy of the token table
    if missing or tensors:
        raise ValueError(
            f"{folder} does not fit its config.json: " + "; ".join(_complaints(missing, tensors))
        )
    model.load_state_dict(state, assign=True)
    return finish_loading(model)


def _complaints(missing: list[str], unexpected: dict[str, Tensor]) -> Iterator[str]:
    for what, names in (("missing", missing), ("unexpected", list(unexpected))):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            yield f"{what} {', '.join(names[:3])}{more}"


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


def finish_loading(model: Model) -> Model:
    """Work out the tables that no checkpoint holds, and switch off what only training needs."""
    config = model.config
    if config.family == "llama":
        frequencies = rotary_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        # In float32 whatever the model's dtype: at position 100,000 a bfloat16 angle is off by turns.
        tables = rotary_tables(config.max_context, frequencies, torch.float32)
        model.cos, model.sin = (t.to(model.device) for t in tables)
    return model.requires_grad_(False).eval()
