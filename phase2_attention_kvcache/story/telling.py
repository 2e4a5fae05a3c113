"""Text as it appears, wrapped at the width of the terminal."""

from collections.abc import Callable


class WordWrap:
    """Prints pieces of text as they come, and breaks lines between words."""

    def __init__(self, write: Callable[[str], None], width: int) -> None:
        self._write, self._width, self._column = write, width, 0

    def __call__(self, piece: str) -> None:
        for part in piece.splitlines(keepends=True):
            if self._column + len(part.rstrip()) > self._width and part.startswith(" "):
                self._write("\n")
                part, self._column = part.lstrip(" "), 0
            self._write(part)
            self._column = 0 if part.endswith("\n") else self._column + len(part)
