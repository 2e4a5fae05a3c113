"""Small open models, and whether they fit on this machine."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from labkit.machine import memory_bytes

AS_OF = "August 2025"
"""The date of the model cards. Sizes and licences change: `lab fetch` asks the hub for the true size before it downloads."""

ROOM = 0.7  # share of the memory for weights; the rest is for the KV cache and other data


@dataclass(frozen=True)
class OpenModel:
    """The facts on a model's card.

    Attributes:
        gigabytes: size of the published weights, in 16 bit (GPT-2: 32).
        context: in tokens. gated: True if the licence must be accepted on huggingface.co first.
    """

    name: str
    gigabytes: float
    context: int
    licence: str
    gated: bool = False


OPEN_MODELS = (
    OpenModel("gpt2", 0.55, 1024, "MIT; tells stories, no chat"),
    OpenModel("HuggingFaceTB/SmolLM2-135M-Instruct", 0.27, 8192, "Apache 2.0"),
    OpenModel("google/gemma-3-270m-it", 0.54, 32768, "Gemma", gated=True),
    OpenModel("HuggingFaceTB/SmolLM2-360M-Instruct", 0.72, 8192, "Apache 2.0"),
    OpenModel("Qwen/Qwen2.5-0.5B-Instruct", 0.99, 32768, "Apache 2.0"),
    OpenModel("Qwen/Qwen3-0.6B", 1.5, 40960, "Apache 2.0"),
    OpenModel("google/gemma-3-1b-it", 2.0, 32768, "Gemma", gated=True),
    OpenModel("TinyLlama/TinyLlama-1.1B-Chat-v1.0", 2.2, 2048, "Apache 2.0"),
    OpenModel("meta-llama/Llama-3.2-1B-Instruct", 2.5, 131072, "Llama 3.2 Community", gated=True),
    OpenModel("allenai/OLMo-2-0425-1B-Instruct", 3.0, 4096, "Apache 2.0"),
    OpenModel("Qwen/Qwen3-1.7B", 4.1, 40960, "Apache 2.0"),
    OpenModel("HuggingFaceTB/SmolLM3-3B", 6.2, 65536, "Apache 2.0"),
    OpenModel("microsoft/Phi-3-mini-4k-instruct", 7.6, 4096, "MIT"),
    OpenModel("mistralai/Mistral-7B-Instruct-v0.3", 14.5, 32768, "Apache 2.0"),
)


class Fit(NamedTuple):
    """The result of `fits`: True or False, and the reason."""

    ok: bool
    why: str


def fits(weight_bytes: float, folder: Path, still_to_load: float | None = None) -> Fit:
    """Check whether a model fits into the memory and on the disk.

    Args:
        weight_bytes: size of the weights in 16 bit. folder: its place on the disk (the parents need not exist yet).
        still_to_load: bytes that are not on the disk yet; by default the weights.
    """
    there = next(p for p in [folder, *folder.absolute().parents] if p.exists())
    memory, free = memory_bytes(), shutil.disk_usage(there).free
    if weight_bytes > memory:
        return Fit(False, f"too large for the memory, {memory / 1e9:.1f} GB")
    if (weight_bytes if still_to_load is None else still_to_load) > free:
        return Fit(False, f"too large for the disk, {free / 1e9:.1f} GB free")
    if weight_bytes > ROOM * memory:
        return Fit(True, "tight: hardly any memory for the KV cache")
    return Fit(True, "fits")
