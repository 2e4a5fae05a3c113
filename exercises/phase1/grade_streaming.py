"""Grader of the streaming decoder."""

import codecs
import random
from collections.abc import Callable, Sequence
from itertools import pairwise

from exercises.grading import Diagnoses, Exercise, NotYet, call, guard

SAYS = Diagnoses.of("p1e3_streaming")

STREAMS = [  # (bytes of each token, name)
    ([b"\xc3", b"\xa9", b"!"], "é! in tokens of one byte"),
    ([b"caf", b"\xc3\xa9 ", b"cr", b"\xc3", b"\xa8me"], "café crème"),
    ([b"\xf0", b"\x9f\x90", b"\x90", b" goat"], "a goat in three tokens"),
    ([b"\xe2\x82", b"\xac5 \xe2", b"\x82\xac6"], "two euros, the second beginning where the first ends"),
    ([b"plain ", b"", b"words"], "plain words, and an empty token"),
]
ODD_STREAMS = [
    ([b"a\xff", b"b", b"cdefghij"], "FF, which is no character, in the middle"),
    ([b"\xf0\x9f", b"x"], "half a goat, then an x"),
    ([b"\xf0\x9f", b"x", b" and", b" a long story"], "half a goat, then an x and a long story"),
    ([b"\xe2", b"(", b"more", b" behind", b" it"], "a third of a euro, then a bracket and more"),
    ([b"ok", b"\xe2\x82"], "ends with half a euro"),
    ([b"\x90\x90", b"end"], "two bytes that never begin a character"),
    ([b"\xe2", b"\x82", b"\xc3", b"\xa9"], "half a euro, then é"),
    ([b"\xff", b"A", b"B", b"\xe2", b"\x82", b"\xac"], "FF, two letters, then a euro in three bytes"),
]
STRAY = (
    b"\xff\xc0\xc3\xe0\xe2\xed\xf0\xf4\x80\x90\xa0\xbf"  # beginnings without an end, and the other way round
)


def _play(streamer_class: Callable, tokens: Sequence[bytes], tried: str) -> tuple[list[str], str]:
    streamer = guard(streamer_class, tried="Streamer()")
    shown = [guard(streamer.push, token, tried=f"{tried}: push({token!r})") for token in tokens]
    rest = guard(streamer.finish, tried=f"{tried}: finish()")
    for text in (*shown, rest):
        if not isinstance(text, str):
            raise SAYS.no("stream-no-text", tried, text, "a string")
    return shown, rest


def grade_streaming(streamer_class: Callable) -> None:
    rng = random.Random(3)
    streams = list(STREAMS)
    for n in range(15):
        data = "".join(rng.choice("aé€🐐ñ한 ") for _ in range(12)).encode()
        cuts = [0, *sorted(rng.sample(range(1, len(data)), 6)), len(data)]
        streams.append(([data[a:b] for a, b in pairwise(cuts)], f"random text {n}"))
    for tokens, name in streams:
        _grade_whole_characters(streamer_class, tokens, name)
    _grade_two_at_once(streamer_class)
    for tokens, name in ODD_STREAMS:
        _grade_odd_bytes(streamer_class, tokens, name)
    for n in range(20):
        pieces = [
            rng.choice("aé€🐐b한").encode() if rng.random() < 0.7 else bytes([rng.choice(STRAY)])
            for _ in range(9)
        ]
        tokens = [bytes([byte]) for byte in b"".join(pieces)]
        _grade_odd_bytes(streamer_class, tokens, f"characters and stray bytes {n}, in tokens of one byte")


def _grade_whole_characters(streamer_class: Callable, tokens: Sequence[bytes], name: str) -> None:
    """A stream that is good UTF-8: after each token exactly the complete characters were shown."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    expected = [decoder.decode(token) for token in tokens]
    tried = f"{name}: push of {', '.join(map(repr, tokens))}"
    shown, rest = _play(streamer_class, tokens, name)
    if shown == expected and rest == "":
        return

    def no(diagnosis: str) -> NotYet:
        return SAYS.no(diagnosis, tried, [*shown, rest], [*expected, ""])

    whole = "".join(expected)
    if "\ufffd" in "".join(shown):
        raise no("stream-half-characters")
    if shown == ["".join(expected[: i + 1]) for i in range(len(expected))]:
        raise no("stream-shows-again")
    if shown == _all_or_nothing(tokens) and "".join(shown) + rest == whole:
        raise no("stream-all-or-nothing")
    if "".join(shown) + rest == whole:
        raise no("stream-a-token-late")
    if "".join(shown) + rest == b"".join(tokens).decode() + whole or len("".join(shown) + rest) > len(whole):
        raise no("stream-shows-again (later)")
    raise no("stream-loses-characters")


def _all_or_nothing(tokens: Sequence[bytes]) -> list[str]:
    """What a streamer shows that waits until all that came can be decoded."""
    waiting, shown = b"", []
    for token in tokens:
        waiting += token
        try:
            text, waiting = waiting.decode("utf-8"), b""
        except UnicodeDecodeError:
            text = ""
        shown.append(text)
    return shown


def _grade_two_at_once(streamer_class: Callable) -> None:
    """Two users: what waits for one must not turn up at the other."""
    first, second = guard(streamer_class, tried="Streamer()"), guard(streamer_class, tried="Streamer()")
    turns = (first, b"\xc3"), (second, b"A"), (first, b"\xa9"), (second, b"B")
    shown = [call(streamer.push, token) for streamer, token in turns]
    if shown != ["", "A", "é", "B"]:
        tried = "two streamers in turn: the first gets C3 and A9, the second gets A and B"
        raise SAYS.no("stream-users-share", tried, shown, ["", "A", "é", "B"])


def _grade_odd_bytes(streamer_class: Callable, tokens: Sequence[bytes], name: str) -> None:
    """Bytes that are no characters. When exactly a � appears is left open, but what follows it may wait one token only."""
    shown, rest = _play(streamer_class, tokens, name)
    expected = b"".join(tokens).decode("utf-8", errors="replace")
    tried, got = f"{name}: push of {', '.join(map(repr, tokens))}", "".join(shown) + rest

    def no(diagnosis: str) -> NotYet:
        return SAYS.no(diagnosis, tried, [*shown, rest], expected)

    if got != expected:
        if "".join(shown) + "\ufffd" == expected and rest == "":
            raise no("stream-end-forgotten")
        if _swallowed(got, expected):
            raise no("stream-swallows-after-odd-bytes")
        if got.replace("\ufffd", "") == expected.replace("\ufffd", ""):
            raise no("stream-drops-odd-bytes")
        raise no("stream-odd-bytes")
    decoder, certain, so_far = codecs.getincrementaldecoder("utf-8")("replace"), "", ""
    for token, text in zip(tokens, shown, strict=True):
        so_far += text
        if len(so_far) < len(certain.rstrip("\ufffd")):  # what was certain a token ago
            raise no("stream-waits-for-ever")
        certain += decoder.decode(token)


def _swallowed(got: str, expected: str) -> bool:
    """Only characters of several bytes are missing, and there are � in their place."""
    left = iter(got.replace("\ufffd", ""))
    here, missing = next(left, None), []
    for character in expected.replace("\ufffd", ""):
        if character == here:
            here = next(left, None)
        else:
            missing.append(character)
    more = got.count("\ufffd") > expected.count("\ufffd")
    return here is None and more and bool(missing) and not any(c.isascii() for c in missing)


EXERCISES = [
    Exercise("p1e3_streaming", ("Streamer",), grade_streaming),
]
