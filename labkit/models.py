"""Finds the files of a model by name: embedded, a path, or downloaded from the hub."""

import os
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labkit.foreign import read_json, visible
from labkit.paths import EMBEDDED_MODELS

WHISPER = "whisper"
MODEL_FILES = ["*.json", "*.safetensors", "*.txt", "*.jinja"]  # those of a hub repository that a model needs
OTHER_FILES = ["*/*", "consolidated*"]  # subfolders; Mistral's second form of the same weights


def embedded_models() -> list[str]:
    """List the models that come with the course."""
    return sorted(config.parent.name for config in EMBEDDED_MODELS.glob("*/config.json"))


def find_model(name: str | Path) -> Path:
    """Find the folder of a model in the Hugging Face layout, or its single file (.gguf).

    Args:
        name: an embedded model ("tales"), a folder, a .gguf file, or a name on the Hugging Face hub ("gpt2",
            "org/model"). Only a hub name may use the network, and only if the model is not cached yet.

    Raises:
        LabError: no model has that name, the folder has no config.json, or the hub cannot be reached.
    """
    text = str(name)
    if text in embedded_models():
        return EMBEDDED_MODELS / text
    folder = Path(text).expanduser()
    if text and folder.is_dir():
        if not (folder / "config.json").is_file():
            raise LabError(
                f"{visible(folder)} holds no config.json: give a model folder in the Hugging Face layout"
            )
        return folder
    if folder.suffix == ".gguf":
        if not folder.is_file():
            raise LabError(f"no file at {visible(folder)}: check the path, or use the model tales")
        return folder
    looks_like_path = text.startswith((".", "/", "~")) or text.count("/") > 1 or os.sep in text[:1]
    if looks_like_path or not text:
        raise LabError(f"no model folder at {text!r}: check the path, or use the model tales")
    return in_hub_cache(text) or from_hub(text)


def in_hub_cache(name: str) -> Path | None:
    """Return the folder of a model that Hugging Face's own programs have downloaded; None if there is none.

    Raises:
        LabError: the name cannot be that of a model.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        cached = Path(snapshot_download(name, allow_patterns=MODEL_FILES, local_files_only=True))
    except HFValidationError:
        embedded = ", ".join(embedded_models())
        raise LabError(f"unknown model {name!r}: use {embedded}, a folder, or a hub name") from None
    except LocalEntryNotFoundError:
        return None
    # Another program may have downloaded only the tokenizer, or have been stopped between two files.
    index = cached / "model.safetensors.index.json"
    try:
        shards = read_json(index, 2**25)["weight_map"].values() if index.is_file() else ["model.safetensors"]
        is_whole = all((cached / name).is_file() for name in ("config.json", *shards))
    except (ValueError, KeyError, TypeError, AttributeError):  # a damaged index
        return None
    return cached if is_whole else None


def from_hub(name: str, **options: Any) -> Any:
    """Download a model with Hugging Face's client, and return its folder; `options` are those of `snapshot_download`.

    Raises:
        LabError: the model is unknown, its licence was not accepted, or the hub cannot be reached.
    """
    from huggingface_hub import snapshot_download

    options = {"allow_patterns": MODEL_FILES, "ignore_patterns": OTHER_FILES} | options
    with hub_errors(name):
        found = snapshot_download(name, endpoint=os.environ.get("HF_ENDPOINT"), **options)
    return Path(found) if isinstance(found, str) else found


@contextmanager
def hub_errors(name: str) -> Iterator[None]:
    """Turn errors of the hub's client into one line with the remedy.

    Raises:
        LabError: instead of the client's errors.
    """
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    try:
        yield
    except GatedRepoError:
        raise LabError(
            f"{name!r} asks for a licence: accept it on huggingface.co, then `hf auth login`"
        ) from None
    except (HFValidationError, RepositoryNotFoundError):
        raise LabError(f"unknown model {name!r}: `lab fetch` lists some that the hub has") from None
    except Exception as error:  # every kind of network trouble, from DNS to a broken proxy
        raise LabError(
            f"model {name!r} is not on this machine and the hub cannot be reached ({type(error).__name__}): "
            f"go online and run `lab fetch {name}` once, or use the model tales"
        ) from None


def load_reference(name: str | Path, **options: Any) -> Any:
    """Load Hugging Face's own model of a name or folder, in float32 for comparison, without progress bars."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    if (path := find_model(name)).is_file():
        raise LabError(f"{visible(path)} is a single file: transformers is asked about model folders only")
    logging.disable_progress_bar()
    options.setdefault("dtype", torch.float32)
    return AutoModelForCausalLM.from_pretrained(path, **options).eval()


def register_gpt2_vocabulary() -> None:
    """Register GPT-2's vocabulary with tiktoken, from OpenAI's package `openai-whisper`, so that tiktoken downloads nothing.

    The file has a line for each token: its bytes in base 64 and its id.
    """
    whisper = find_spec(WHISPER)
    file = Path(whisper.origin or "").parent / "assets" / "gpt2.tiktoken" if whisper else None
    if file is None or not file.is_file():
        return
    from tiktoken import Encoding
    from tiktoken.registry import ENCODINGS
    from tiktoken_ext.openai_public import ENDOFTEXT, r50k_pat_str

    lines = (line.split() for line in file.read_bytes().splitlines())
    ids = {b64decode(token): int(number) for token, number in lines}
    special = {ENDOFTEXT: len(ids)}
    ENCODINGS.setdefault(
        "gpt2", Encoding("gpt2", pat_str=r50k_pat_str, mergeable_ranks=ids, special_tokens=special)
    )
