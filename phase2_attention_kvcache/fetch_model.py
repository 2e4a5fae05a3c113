"""Download a model from the Hugging Face hub once, to use it offline later.

    lab fetch                        small open models, and which of them fit here
    lab fetch Qwen/Qwen3-0.6B

A model that does not fit this machine is refused before the download. A model that this course cannot run is refused once
its small files, config.json and tokenizer.json, are here. The weights come last.
"""

import argparse
import os
from functools import partial
from pathlib import Path

import labkit  # noqa: F401 - first: it says so where the environment is missing

# isort: split
from rich.console import Console

from labkit.errors import LabError
from labkit.foreign import visible
from labkit.models import OTHER_FILES, embedded_models, from_hub, hub_errors, in_hub_cache
from labkit.open_models import AS_OF, OPEN_MODELS, fits
from labkit.options import Parser
from labkit.terminal import Page, run, titled


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="lab fetch", description=__doc__)
    parser.add_argument("name", nargs="?", help="gpt2, or a name on the Hugging Face hub")
    return parser


def main(argv: list[str] | None = None) -> int:
    return run(lambda: _obey(build_parser().parse_args(argv)))


def _obey(a: argparse.Namespace) -> int:
    return list_open_models(Page()) if a.name is None else fetch(Page(), a.name)


def fetch(console: Console, name: str) -> int:
    say = partial(console.print, highlight=False, soft_wrap=True)
    # "fetch" asks for the network, whatever the shell was set to.
    os.environ.pop("HF_HUB_OFFLINE", None)
    if name in embedded_models():
        say(f"{name} comes with the course")
        return 0
    if (folder := in_hub_cache(name)) is not None:
        say(f"{name} is in {folder}")
        return 0
    from huggingface_hub import HfApi, constants
    from huggingface_hub.utils import disable_progress_bars, enable_progress_bars

    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    with hub_errors(name):
        card = api.model_info(name).card_data or {}
        api.auth_check(name)
    disable_progress_bars()  # the small files take no time
    files = from_hub(name, dry_run=True)
    names = [f.filename for f in files]
    weights = [f for f in files if f.filename.endswith(".safetensors")]
    if "config.json" not in names or not weights:
        raise LabError(
            f"{name} holds no config.json with .safetensors files: choose a model in that form (`lab fetch` lists some)"
        )
    to_load = sum(f.file_size for f in files if f.will_download)
    fit = fits(sum(f.file_size for f in weights), Path(constants.HF_HUB_CACHE), to_load)
    say(
        f"{name}, licence {visible(card.get('license') or 'unknown')}: {len(files)} files, {to_load / 1e9:.2f} GB to load. "
        f"This machine: {fit.why}."
    )
    if not fit.ok:
        raise LabError(f"{name} is {fit.why}: choose a smaller one (`lab fetch` lists some)")
    check_small_files(from_hub(name, ignore_patterns=[*OTHER_FILES, "*.safetensors"]))
    enable_progress_bars()
    say(f"{name} is in {from_hub(name)}")
    return 0


def check_small_files(folder: Path) -> None:
    """Whether this course runs such a model, as far as its settings and its tokenizer tell.

    Raises:
        LabError: it does not.
    """
    # They bring torch, which takes seconds. The list of models does not need it.
    from phase1_tokens_embeddings.weights.gguf_model import load_tokenizer
    from phase2_attention_kvcache.model.config import read_config

    try:
        read_config(folder)
        load_tokenizer(folder)
    except (ValueError, FileNotFoundError) as error:
        raise LabError(f"{error}. Its weights were not loaded") from None


def list_open_models(console: Console) -> int:
    """Small open models, and which of them this machine can hold."""
    from huggingface_hub import constants

    table = titled(f"Small open models, as their cards said in {AS_OF}", width=console.width)
    table.add_column("lab fetch NAME", overflow="fold", min_width=36 if console.width >= 80 else 18)
    for column in ("GB", "context", "licence", "here"):
        table.add_column(column, justify="right" if column in ("GB", "context") else "left")
    cache = Path(constants.HF_HUB_CACHE)
    for m in OPEN_MODELS:
        fit = fits(m.gigabytes * 1e9, cache)
        colour = "green" if fit.why == "fits" else "yellow"
        licence = m.licence + " *" * m.gated
        table.add_row(m.name, f"{m.gigabytes:g}", f"{m.context:,}", licence, f"[{colour}]{fit.why}[/]")
    console.print(table)
    console.print("[dim]* to be accepted on huggingface.co first, then `hf auth login`[/]")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
