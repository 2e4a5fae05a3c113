"""Text to token ids and back: byte-pair encoding with a vocabulary from a tokenizer.json.

"the goat" -> words "the", " goat" -> bytes -> pairs are merged, the one learned first before all others -> ids
"""

import json
from math import inf
from pathlib import Path

import regex

from exercises.capstone.parts import course_part

# GPT-2's rule: endings ('s, 'll), letters, digits, other signs, each with one space before it; then white space.
WORDS = regex.compile(r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")

count_pairs, merge = course_part("p1e1_pairs")
Streamer = course_part("p1e3_streaming")


class Tokenizer:
    """A byte-level BPE tokenizer. `ranks`: pair of ids -> (place in the order of learning, id of the merged token)."""

    def __init__(self, path: Path) -> None:
        document = json.loads(path.read_text(encoding="utf-8"))
        ids: dict[str, int] = document["model"]["vocab"]
        special = {token["id"] for token in document["added_tokens"]}
        byte_of = {char: byte for byte, char in enumerate(printable_bytes())}
        # The bytes of token i at place i; none for a special token, which is never shown.
        self.token_bytes = [b""] * (max(*ids.values(), *special) + 1)
        for name, i in ids.items():
            if i not in special:
                self.token_bytes[i] = bytes(byte_of[char] for char in name)
        self.id_of_byte = [ids[char] for char in printable_bytes()]
        self.ranks: dict[tuple[int, int], tuple[int, int]] = {}
        for rank, pair in enumerate(document["model"]["merges"]):
            left, right = pair.split(" ") if isinstance(pair, str) else pair
            self.ranks[ids[left], ids[right]] = rank, ids[left + right]
        self.known: dict[str, list[int]] = {}  # words that came before

    def encode(self, text: str) -> list[int]:
        return [token for word in WORDS.findall(text) for token in self.encode_word(word)]

    def encode_word(self, word: str) -> list[int]:
        if word not in self.known:
            tokens = [self.id_of_byte[byte] for byte in word.encode()]
            while len(tokens) > 1:
                pair = min(count_pairs(tokens), key=lambda pair: self.ranks.get(pair, (inf, 0)))
                if pair not in self.ranks:
                    break
                tokens = merge(tokens, pair, self.ranks[pair][1])
            self.known[word] = tokens
        return self.known[word]


def printable_bytes() -> list[str]:
    """The character that stands for each byte in a tokenizer.json: itself if it is visible, else one above 255."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte if byte in visible else next(others)) for byte in range(256)]
