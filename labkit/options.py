"""The options that all scripts share, from one parser."""

import argparse
import inspect
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def a_seed(text: str) -> int:
    """A seed that every generator takes."""
    seed = int(text)
    if not 0 <= seed < 2**63:
        raise argparse.ArgumentTypeError(f"{text} is out of range: 0 to 2^63 - 1")
    return seed


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
        default="float32",
        choices=["float32", "bfloat16", "float16"],
        help="number format of the weights (float32)",
    ),
    "seed": dict(
        type=a_seed, default=0, help="for everything random; the same seed gives the same output (0)"
    ),
    "quick": dict(action="store_true", help="smaller sizes, fewer repeats: a look in seconds"),
}


def build_parser(script: Path, doc: str, options: Sequence[str]) -> argparse.ArgumentParser:
    """The shared options. `options` names those of OPTIONS that this script honours.

    Under `lab run` (which sets INFERENCE_LAB_RUN) the other shared ones are taken as well and ignored, so
    that one command line serves all scripts. A misspelt option is an error either way.
    """
    parser = argparse.ArgumentParser(
        prog=f"python {script.parent.name}/{script.name}",
        description=inspect.cleandoc(doc),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        conflict_handler="resolve",  # a script may have a --model of its own
        allow_abbrev=False,
    )
    for name, settings in OPTIONS.items():
        if name in options:
            parser.add_argument(f"--{name}", **settings)
        elif os.environ.get("INFERENCE_LAB_RUN"):
            parser.add_argument(f"--{name}", **(settings | {"help": argparse.SUPPRESS}))
    parser.add_argument(
        "--predict", action="store_true", help="asks for your own guess before each result, and scores it"
    )
    parser.add_argument(
        "--json", metavar="FILE", help="also write the report (environment, predictions, results) here"
    )
    parser.add_argument("--figures", metavar="DIR", help="save figures here (default: outputs/)")
    return parser
