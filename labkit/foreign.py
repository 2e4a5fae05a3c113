"""Reads files that other people wrote, and prepares their content for output.

Such a file may have any size, and its texts may hold control codes. A control code can clear the terminal, and text
behind it can then imitate a message of the course.
"""

import json
import reprlib
from pathlib import Path
from typing import Any

from labkit.errors import LabError

# Control codes (Unicode's class Cc), and codes that reverse the direction of writing and so disguise a text.
_CODES = [*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_SPELT_OUT = {code: ascii(chr(code))[1:-1] for code in _CODES if chr(code) not in "\t\n"}
TEXT_SUFFIXES = (".txt", ".md", ".py")

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = 60
_repr.maxlist = _repr.maxtuple = 8
_repr.maxlevel = 2


def harmless(text: str) -> str:
    """Return a whole text, such as a model's story, with control codes spelt out.

    >>> harmless("a\\x1b[2J\\nb")
    'a\\\\x1b[2J\\nb'
    """
    return text.translate(_SPELT_OUT)


def visible(text: object, limit: int = 60) -> str:
    """Return a name from a file for a table or a message, shortened to one line. A path is not shortened.

    >>> visible("wte" * 100, limit=12)
    'wtewtewte...'
    """
    limit = 10_000 if isinstance(text, Path) else limit
    spelt = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text)[: limit + 1])
    return spelt if len(spelt) <= limit else spelt[: limit - 3] + "..."


def quoted(value: object) -> str:
    """Return a value from a file for a message, as Python writes it, shortened to one line.

    >>> quoted(list(range(1000)))
    '[0, 1, 2, 3, 4, 5, 6, 7, ...]'
    """
    try:
        return visible(_repr.repr(value), limit=90)
    except ValueError:  # Python refuses to write a whole number of more than 4,300 digits
        return f"a number of {value.bit_length():,} bits"


def read_json(path: Path, at_most: int) -> Any:
    """Read a JSON file. NaN and Infinity are refused: Python accepts them, the JSON standard does not.

    Args:
        at_most: the largest size, in bytes. Python's objects take up to 40 times that size in memory.

    Raises:
        ValueError: the file is missing, too large, unreadable, not JSON in UTF-8, or nested too deeply.
    """
    if not path.is_file():
        raise ValueError("there is no such file")
    try:
        with path.open("rb") as file:
            raw = file.read(at_most + 1)
    except OSError as error:
        raise ValueError(f"it cannot be read ({error.strerror}): check its permissions") from None
    if len(raw) > at_most:
        raise ValueError(f"it is larger than {at_most:,} bytes, more than such a file needs")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 text (byte {error.start}): fetch or write it again") from None
    try:
        return json.loads(text, parse_constant=_no_constants)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"it is not JSON: {error.msg} at character {error.pos}; fetch or write it again"
        ) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _no_constants(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")


def read_texts(path: str | Path) -> list[str]:
    """Read a text file, or all files in TEXT_SUFFIXES below a folder.

    Raises:
        LabError: a file is missing or not UTF-8 text, or there is no text.
    """
    path = Path(path).expanduser()
    files, texts = [path], []
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.suffix in TEXT_SUFFIXES and p.is_file())
    for file in files:
        try:
            texts.append(file.read_text(encoding="utf-8-sig"))
        except (OSError, UnicodeDecodeError) as error:
            raise LabError(f"{file} cannot be read as UTF-8 text ({error}): give another") from None
        if "\0" in texts[-1]:
            raise LabError(f"{file} is a binary file: give a text file")
    if not any(text.strip() for text in texts):
        raise LabError(
            f"{path} holds no text: give a {' or '.join(TEXT_SUFFIXES)} file with a few words in it"
        )
    return texts
