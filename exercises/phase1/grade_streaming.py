"""Grader of the streaming decoder: what it has shown after each token."""

import codecs
import random
from collections.abc import Callable, Sequence
from itertools import pairwise

from exercises.judging.judge import Exercise, When

Turns = list[tuple[int, bytes]]  # whose stream gets which token

STREAMS = {
    "é! in tokens of one byte": [b"\xc3", b"\xa9", b"!"],
    "café crème": [b"caf", b"\xc3\xa9 ", b"cr", b"\xc3", b"\xa8me"],
    "a goat in three tokens": [b"\xf0", b"\x9f\x90", b"\x90", b" goat"],
    "two euros, the second beginning where the first ends": [b"\xe2\x82", b"\xac5 \xe2", b"\x82\xac6"],
    "plain words, and an empty token": [b"plain ", b"", b"words"],
}
ODD_STREAMS = {
    "FF, which is no character, in the middle": [b"a\xff", b"b", b"cdefghij"],
    "half a goat, then an x": [b"\xf0\x9f", b"x"],
    "half a goat, then an x and a long story": [b"\xf0\x9f", b"x", b" and", b" a long story"],
    "a third of a euro, then a bracket and more": [b"\xe2", b"(", b"more", b" behind", b" it"],
    "ends with half a euro": [b"ok", b"\xe2\x82"],
    "two bytes that never begin a character": [b"\x90\x90", b"end"],
    "half a euro, then é": [b"\xe2", b"\x82", b"\xc3", b"\xa9"],
    "FF, two letters, then a euro in three bytes": [b"\xff", b"A", b"B", b"\xe2", b"\x82", b"\xac"],
}
STRAY = (
    b"\xff\xc0\xc3\xe0\xe2\xed\xf0\xf4\x80\x90\xa0\xbf"  # beginnings without an end, and the other way round
)


def shown(streamer_class: Callable, name: str, turns: Turns) -> list[str]:
    """What each token shows, then the rest of each stream."""
    streamers = [streamer_class() for _ in {who for who, _ in turns}]
    return [*(streamers[who].push(token) for who, token in turns), *(s.finish() for s in streamers)]


def shown_in_time(streamer_class: Callable, name: str, turns: Turns) -> list[str]:
    """All the text together, then whether some of it came late: when a � appears is left open, but text may wait one token."""
    *texts, rest = shown(streamer_class, name, turns)
    decoder, certain, so_far, late = codecs.getincrementaldecoder("utf-8")("replace"), "", "", False
    for (_, token), text in zip(turns, texts, strict=True):
        so_far += text
        late |= len(so_far) < len(certain.rstrip("\ufffd"))  # what was certain a token ago
        certain += decoder.decode(token)
    return [so_far + rest, "late" if late else "in time"]


def _swallowed(got: Sequence[str], want: Sequence[str], *_: object) -> bool:
    """Only characters of several bytes are missing, and there are � in their place."""
    left = iter(got[0].replace("\ufffd", ""))
    here, missing = next(left, None), []
    for character in want[0].replace("\ufffd", ""):
        if character == here:
            here = next(left, None)
        else:
            missing.append(character)
    more = got[0].count("\ufffd") > want[0].count("\ufffd")
    return here is None and more and bool(missing) and not any(c.isascii() for c in missing)


def _half_characters(got: Sequence[str], want: Sequence[str], name: str, *_: object) -> bool:
    return name not in ODD_STREAMS and "\ufffd" in "".join(got)


PUSH = "def push(self, token: bytes) -> str:"
BEGINNING, ODD = 'data, text = self.waiting + token, ""', 'text += "\\ufffd"'
REST, WAITS = 'rest.decode("utf-8", errors="replace")', 'error.reason == "unexpected end of data"'
EXERCISE = Exercise(
    "p1e3_streaming",
    Streamer={
        "stream-waits-for-ever": ({WAITS: "True"}, {WAITS: 'error.reason != "invalid start byte"'}),
        "stream-users-share": {"self.waiting": "Streamer.waiting"},
        "stream-loses-characters": {BEGINNING: 'return token.decode("utf-8", errors="ignore")'},
        "stream-shows-again": {
            BEGINNING: 'self.waiting += token\n        return self.waiting.decode("utf-8", errors="ignore")',
            REST: '""',
        },
        "stream-a-token-late": {
            PUSH: f"""{PUSH}
        self.held, held = self._push(token), getattr(self, "held", "")
        return held

    {PUSH.replace("push", "_push")}""",
            REST: f'getattr(self, "held", "") + {REST}',
        },
        "stream-all-or-nothing": {
            'text += data[: error.start].decode("utf-8")': 'self.waiting = data\n                return ""'
        },
        "stream-end-forgotten": {REST: '""'},
        "stream-drops-odd-bytes": {ODD: "pass", '"replace"': '"ignore"'},
        "stream-no-text": {"return text": "return text or None"},
        "stream-half-characters": When(_half_characters),
        "stream-swallows-after-odd-bytes": When(_swallowed),
        "stream-odd-bytes": When(
            lambda got, want, *_: len(got) == 2 and got[0] != want[0] and not _swallowed(got, want)
        ),
    },
)


def _of_one(streams: dict[str, list[bytes]]) -> list[tuple[str, Turns]]:
    return [(name, [(0, token) for token in tokens]) for name, tokens in streams.items()]


@EXERCISE.grader
def grade_streaming(streamer_class: Callable) -> None:
    rng = random.Random(3)
    streams, odd = dict(STREAMS), dict(ODD_STREAMS)
    for n in range(15):
        data = "".join(rng.choice("aé€🐐ñ한 ") for _ in range(12)).encode()
        cuts = [0, *sorted(rng.sample(range(1, len(data)), 6)), len(data)]
        streams[f"random text {n}"] = [data[a:b] for a, b in pairwise(cuts)]
    for n in range(20):
        pieces = [
            rng.choice("aé€🐐b한").encode() if rng.random() < 0.7 else bytes([rng.choice(STRAY)])
            for _ in range(9)
        ]
        name = f"characters and stray bytes {n}, in tokens of one byte"
        odd[name] = [bytes([byte]) for byte in b"".join(pieces)]

    def show(name: str, turns: Turns) -> str:
        return f"{name}: push of {', '.join(repr(token) for _, token in turns)}"

    two = "two streamers in turn", [(0, b"\xc3"), (1, b"A"), (0, b"\xa9"), (1, b"B")]
    EXERCISE.judge("Streamer", streamer_class, [*_of_one(streams), two], play=shown, show=show)
    EXERCISE.judge("Streamer", streamer_class, _of_one(odd), play=shown_in_time, show=show)
