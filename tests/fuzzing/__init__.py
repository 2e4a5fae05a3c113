"""Attackers of the engine, of files and of programs. Each makes a case from random numbers and returns what did not hold.

test_attacks.py is their list. They know only public names. What they find is mended, and becomes a test with fixed values.
"""

import os


def count(what: str, number: int = 1) -> None:
    """Note what has been tried. `make fuzz` adds it up over its processes and prints it."""
    if path := os.environ.get("FUZZ_COUNTS"):
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{number} {what}\n")
