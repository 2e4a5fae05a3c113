"""The chat settings in a model's files: the template, and the special tokens that it may name.

A folder has them in chat_template.jinja and tokenizer_config.json, a GGUF file in its metadata. Both are read into one
form: {"chat_template": "...", "bos_token": "...", ...}. Settings that the files lack are left out.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labkit.foreign import read_json, visible

SPECIAL_TOKENS = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
"""tokenizer_config.json's name -> GGUF's"""


def chat_settings_of_folder(folder: Path) -> dict[str, str]:
    """
    Raises:
        ValueError: a tokenizer_config.json that holds no settings.
    """
    raw: Any = {}
    if (file := folder / "tokenizer_config.json").is_file():
        raw = read_json(file, at_most=2**22)
        if not isinstance(raw, dict):
            raise ValueError(f"{visible(file)} holds no settings")
    settings = {"chat_template": raw.get("chat_template")}
    if isinstance(settings["chat_template"], list):  # several by name: for tools, for documents
        named = {t.get("name"): t.get("template") for t in raw["chat_template"] if isinstance(t, dict)}
        settings["chat_template"] = named.get("default")
    if (file := folder / "chat_template.jinja").is_file():
        settings["chat_template"] = file.read_text(encoding="utf-8")
    for name in SPECIAL_TOKENS:
        token = raw.get(name)
        settings[name] = token.get("content") if isinstance(token, dict) else token
    return {name: text for name, text in settings.items() if isinstance(text, str)}


def chat_settings_of_gguf(metadata: Mapping[str, Any]) -> dict[str, str]:
    settings = {"chat_template": metadata.get("tokenizer.chat_template")}
    tokens = metadata.get("tokenizer.ggml.tokens", ())
    for name, theirs in SPECIAL_TOKENS.items():
        token = metadata.get(f"tokenizer.ggml.{theirs}_token_id")
        if isinstance(token, int) and 0 <= token < len(tokens):
            settings[name] = tokens[token]
    return {name: text for name, text in settings.items() if isinstance(text, str)}
