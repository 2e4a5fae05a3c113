"""Small open models that talk, and whether this machine can hold them."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from labkit.machine import memory_bytes

AS_OF = "August 2025"
"""When the model cards said so. Sizes and licences change: `lab fetch` asks the hub for the true size before it loads."""

ROOM = 0.7  # of the memory for weights; the rest is for the KV cache and everything else


@dataclass(frozen=True)
class OpenModel:
    """What a model's card says.

    Attributes:
        parameters: their number, in billions. gigabytes: of its weights as they are published, in 16 bit (GPT-2: 32).
        context: tokens. gated: whether its makers want their licence accepted on huggingface.co first.
    """

    name: str
    parameters: float
    gigabytes: float
    context: int
    licence: str
    gated: bool = False


OPEN_MODELS = (
    OpenModel("openai-community/gpt2", 0.124, 0.55, 1024, "MIT; tells stories, no chat"),
    OpenModel("HuggingFaceTB/SmolLM2-135M-Instruct", 0.135, 0.27, 8192, "Apache 2.0"),
    OpenModel("google/gemma-3-270m-it", 0.27, 0.54, 32768, "Gemma", gated=True),
    OpenModel("HuggingFaceTB/SmolLM2-360M-Instruct", 0.36, 0.72, 8192, "Apache 2.0"),
    OpenModel("Qwen/Qwen2.5-0.5B-Instruct", 0.49, 0.99, 32768, "Apache 2.0"),
    OpenModel("Qwen/Qwen3-0.6B", 0.6, 1.5, 40960, "Apache 2.0"),
    OpenModel("google/gemma-3-1b-it", 1.0, 2.0, 32768, "Gemma", gated=True),
    OpenModel("TinyLlama/TinyLlama-1.1B-Chat-v1.0", 1.1, 2.2, 2048, "Apache 2.0"),
    OpenModel("meta-llama/Llama-3.2-1B-Instruct", 1.24, 2.5, 131072, "Llama 3.2 Community", gated=True),
    OpenModel("allenai/OLMo-2-0425-1B-Instruct", 1.5, 3.0, 4096, "Apache 2.0"),
    OpenModel("Qwen/Qwen3-1.7B", 1.7, 4.1, 40960, "Apache 2.0"),
    OpenModel("HuggingFaceTB/SmolLM3-3B", 3.1, 6.2, 65536, "Apache 2.0"),
    OpenModel("microsoft/Phi-3-mini-4k-instruct", 3.8, 7.6, 4096, "MIT"),
    OpenModel("mistralai/Mistral-7B-Instruct-v0.3", 7.2, 14.5, 32768, "Apache 2.0"),
)


@dataclass(frozen=True)
class Fit:
    """Whether a model can be stored and run here, and why not."""

    ok: bool
    why: str


def fits(weight_bytes: float, folder: Path, still_to_load: float | None = None) -> Fit:
    """
    Args:
        weight_bytes: of the weights, in 16 bit. folder: where it would be stored (its parents need not be there yet).
        still_to_load: bytes that are not on the disk yet; the weights, if not given.
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
