"""Download a model from the Hugging Face hub once, to use it offline later.

    lab fetch                        small open models, and which of them fit here
    lab fetch Qwen/Qwen3-0.6B

What does not fit this machine is said before anything is loaded, and what this course cannot run once the small files are
there: config.json and tokenizer.json tell. The weights come last.
"""

import argparse
import os
from functools import partial
from pathlib import Path

import labkit  # noqa: F401 - first: it says so where the environment is missing

# isort: split
from rich import box
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from labkit.errors import LabError
from labkit.fetching import damaged_files, fetch_files, fetched_model, make_plan, models_folder
from labkit.foreign import visible
from labkit.models import embedded_models, has_gpt2_vocabulary, in_hub_cache
from labkit.open_models import AS_OF, OPEN_MODELS, fits
from labkit.options import Parser
from labkit.terminal import Page, run


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="lab fetch", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?", help="gpt2, or a name on the Hugging Face hub")
    parser.add_argument(
        "--anyway",
        action="store_true",
        help="also what is too large for this machine, or of a kind that this course does not run",
    )
    return parser


def main(argv: list[str] | None = None) -> int:
    return run(lambda: _obey(build_parser().parse_args(argv)))


def _obey(a: argparse.Namespace) -> int:
    return list_open_models(Page()) if a.name is None else fetch(Page(), a.name, a.anyway)


def fetch(console: Console, name: str, anyway: bool) -> int:
    say = partial(console.print, highlight=False, soft_wrap=True)
    # "fetch" asks for the network, whatever the shell was set to.
    os.environ.pop("HF_HUB_OFFLINE", None)
    if name in embedded_models():
        say(f"{name} comes with the course")
        return 0
    if name == "gpt2":
        fetch_gpt2_vocabulary()
    try:
        folder = fetched_model(name)
    except LabError:  # a half
        folder = None
    if folder is not None:
        if not (damaged := damaged_files(folder)):
            say(f"{name} is in {folder}, and every byte is as it was fetched")
            return 0
        say(f"{len(damaged)} files have changed since, such as {visible(damaged[0])}")
    elif (folder := in_hub_cache(name)) is not None:
        say(f"{name} is in {folder}")
        return 0
    plan = make_plan(name)
    fit = fits(plan.weight_bytes, plan.folder, plan.missing_bytes)
    say(
        f"{name}, licence {visible(plan.licence)}: {len(plan.files)} files, {plan.missing_bytes / 1e9:.2f} GB to load. "
        f"This machine: {fit.why}."
    )
    if not fit.ok and not anyway:
        raise LabError(f"{name} is {fit.why}: choose a smaller one (`lab fetch` lists some), or add --anyway")
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(name, total=sum(f.size for f in plan.files))
        look_at = (lambda folder: None) if anyway else check_small_files
        folder = fetch_files(plan, lambda count: progress.advance(task, count), look_at)
    say(f"{name} is in {folder}, all hashes agree")
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
        raise LabError(f"{error}. Its weights were not loaded (--anyway loads them)") from None


def list_open_models(console: Console) -> int:
    """Small open models, and which of them this machine can hold."""
    table = Table(
        title=f"Small open models, as their cards said in {AS_OF}",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        width=console.width,
    )
    table.add_column("lab fetch NAME", overflow="fold", min_width=36 if console.width > 80 else 18)
    for column in ("GB", "context", "licence", "here"):
        table.add_column(column, justify="right" if column in ("GB", "context") else "left")
    for m in OPEN_MODELS:
        fit = fits(m.gigabytes * 1e9, models_folder() / m.name)
        colour = "green" if fit.why == "fits" else "yellow"
        licence = m.licence + " *" * m.gated
        table.add_row(m.name, f"{m.gigabytes:g}", f"{m.context:,}", licence, f"[{colour}]{fit.why}[/]")
    console.print(table)
    console.print("[dim]* to be accepted on huggingface.co first, then `hf auth login`[/]")
    return 0


def fetch_gpt2_vocabulary() -> None:
    if has_gpt2_vocabulary():
        return
    import tiktoken

    try:
        tiktoken.get_encoding("gpt2")
    except Exception as error:  # every kind of network trouble
        raise LabError(
            f"GPT-2's vocabulary cannot be fetched ({type(error).__name__}): go online, try again, "
            "or pip install -r requirements.txt"
        ) from None


if __name__ == "__main__":
    raise SystemExit(main())
