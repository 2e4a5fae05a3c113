"""The options that all scripts share, from one parser."""

import argparse
import inspect
import os
import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO, TypeVar

from labkit.foreign import quoted, visible

N = TypeVar("N", int, float)
UNCUT: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}


class Help(argparse.RawDescriptionHelpFormatter):
    """argparse's help. Paragraphs of a description are wrapped, its indented lines stay lines, and no command is cut at a hyphen."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, **UNCUT)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = [
            part if re.search("^ ", part, re.M) else " ".join(part.split())
            for part in text.strip().split("\n\n")
        ]
        lines = "\n\n".join(parts).split("\n")
        return "\n".join(
            textwrap.fill(line, width, subsequent_indent=" " * 8 * line.startswith(" "), **UNCUT)
            for line in lines
        )


class Parser(argparse.ArgumentParser):
    """argparse's parser, but its messages shorten a user's words and spell out control codes."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=Help, **settings)

    def error(self, message: str) -> NoReturn:
        super().error(visible(message, 1000))

    def print_help(self, file: TextIO | None = None) -> None:
        """Print the help with `print`, which reports a closed pipe; argparse ignores it."""
        print(self.format_help(), end="", file=file)


def whole(low: int, high: int) -> Callable[[str], int]:
    """The type of an option: a whole number from `low` to `high`."""
    return _number(int, "a whole number", low, high, f"{low:,} to {high:,}")


def between(low: float, high: float) -> Callable[[str], float]:
    """The type of an option: a number from `low` to `high`. NaN is refused."""
    return _number(float, "a number", low, high, f"{low:,.9g} to {high:,.9g}")


def _number(kind: Callable[[str], N], name: str, low: N, high: N, bounds: str) -> Callable[[str], N]:
    def parse(text: str) -> N:
        try:
            number = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{quoted(text)} is not {name}: {bounds}") from None
        if not low <= number <= high:
            raise argparse.ArgumentTypeError(f"{visible(text)} is out of range: {bounds}")
        return number

    return parse


OPTIONS: dict[str, dict[str, Any]] = {
    "model": dict(
        default="tales",
        metavar="NAME",
        help="tales (comes with the course, the default), gpt2 (fetched from the hub), or a model folder",
    ),
    "device": dict(
        default="auto", choices=["auto", "cpu", "cuda"], help="where to compute (auto: a GPU if there is one)"
    ),
    "dtype": dict(
        default="float32", choices=["float32", "bfloat16", "float16"], help="dtype of the weights (float32)"
    ),
    "seed": dict(
        type=whole(0, 2**32 - 1),
        default=0,
        help="seed of all random numbers; the same seed gives the same output (0)",
    ),
    "quick": dict(action="store_true", help="smaller sizes, fewer repeats: a look in seconds"),
}

SHARED_BY_ALL = ("--help", "--predict", "--json", "--figures")


def build_parser(script: Path, doc: str, options: Sequence[str]) -> argparse.ArgumentParser:
    """Build the parser of the shared options. `options` names those of OPTIONS that this script honours.

    Under `lab run` (which sets INFERENCE_LAB_RUN) the parser accepts and ignores the other shared options, so
    that one command line serves all scripts. It always accepts `--quick`, because a short script needs no shorter
    form. A misspelt option is always an error.
    """
    parser = Parser(
        prog=f"python {script.parent.name}/{script.name}",
        description=inspect.cleandoc(doc),
        conflict_handler="resolve",  # a script may define its own --model
        allow_abbrev=False,
    )
    for name, settings in OPTIONS.items():
        if name in options:
            parser.add_argument(f"--{name}", **settings)
        elif name == "quick" or os.environ.get("INFERENCE_LAB_RUN"):
            parser.add_argument(f"--{name}", **(settings | {"help": argparse.SUPPRESS}))
    parser.add_argument(
        "--predict", action="store_true", help="asks for your own guess before each result, and scores it"
    )
    parser.add_argument(
        "--json", metavar="FILE", help="also write the report (environment, predictions, results) here"
    )
    parser.add_argument("--figures", metavar="DIR", help="save figures here (default: outputs/)")
    return parser
