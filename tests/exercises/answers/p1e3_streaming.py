"""Answers to p1e3_streaming: right ones, and mistakes by the diagnosis they must get."""

import codecs

from tests.exercises.changed import changed


class Incremental:
    def __init__(self):
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token):
        return self.decoder.decode(token)

    def finish(self):
        return self.decoder.decode(b"", True)


class HoldsBackReplacement:
    """As real detokenizers do: show the new part of the whole text unless it ends with a �."""

    def __init__(self):
        self.data, self.shown = b"", 0

    def push(self, token):
        self.data += token
        text = self.data.decode("utf-8", "replace")
        if text.endswith("\ufffd"):
            # Everything before the last � is certain.
            text = text.rstrip("\ufffd")
        new, self.shown = text[self.shown :], max(self.shown, len(text))
        return new

    def finish(self):
        return self.data.decode("utf-8", "replace")[self.shown :]


class EachAlone:
    def push(self, token):
        return token.decode("utf-8", errors="replace")

    def finish(self):
        return ""


class Again:
    def __init__(self):
        self.data = b""

    def push(self, token):
        self.data += token
        return self.data.decode("utf-8", errors="ignore")

    def finish(self):
        return ""


class OneLate:
    def __init__(self):
        self.decoder, self.held = codecs.getincrementaldecoder("utf-8")("replace"), ""

    def push(self, token):
        out, self.held = self.held, self.decoder.decode(token)
        return out

    def finish(self):
        return self.held + self.decoder.decode(b"", True)


class AllOrNothing:
    def __init__(self):
        self.waiting = b""

    def push(self, token):
        self.waiting += token
        try:
            text = self.waiting.decode("utf-8")
        except UnicodeDecodeError:
            return ""
        self.waiting = b""
        return text

    def finish(self):
        return self.waiting.decode("utf-8", errors="replace")


class WaitsForEver(AllOrNothing):
    def push(self, token):
        """Whatever cannot be decoded waits, also what never will be."""
        data = self.waiting + token
        try:
            text, self.waiting = data.decode("utf-8"), b""
        except UnicodeDecodeError as error:
            text, self.waiting = data[: error.start].decode("utf-8"), data[error.start :]
        return text


WAITING = codecs.getincrementaldecoder("utf-8")("replace")


class Shared:
    """One decoder for everybody."""

    decoder = WAITING

    def push(self, token):
        return self.decoder.decode(token)

    def finish(self):
        return self.decoder.decode(b"", True)


RIGHT = [Incremental, HoldsBackReplacement]


class LongestPrefix:
    """Up to three bytes at the end may wait. If that does not help, all is replaced, the last bytes included."""

    def __init__(self):
        self.waiting = b""

    def push(self, token):
        data = self.waiting + token
        for cut in range(4):
            end = max(0, len(data) - cut)
            try:
                text = data[:end].decode("utf-8")
            except UnicodeDecodeError:
                continue
            self.waiting = data[end:]
            return text
        self.waiting = b""
        return data.decode("utf-8", errors="replace")

    def finish(self):
        return self.waiting.decode("utf-8", errors="replace")


class ReplacesAllThatWaits(WaitsForEver):
    """Waits for what is incomplete; at a byte that is wrong everything at hand is replaced."""

    def push(self, token):
        data = self.waiting + token
        try:
            text, self.waiting = data.decode("utf-8"), b""
        except UnicodeDecodeError as error:
            if error.reason != "unexpected end of data":
                self.waiting = b""
                return data.decode("utf-8", errors="replace")
            text, self.waiting = data[: error.start].decode("utf-8"), data[error.start :]
        return text


class OnlyInvalidStarts:
    """Takes `invalid start byte` for a byte that is no character, and waits for more at every other error."""

    def __init__(self):
        self.waiting = b""

    def push(self, token):
        data, text = self.waiting + token, ""
        while True:
            try:
                text, self.waiting = text + data.decode("utf-8"), b""
                return text
            except UnicodeDecodeError as error:
                text += data[: error.start].decode("utf-8")
                if error.reason != "invalid start byte":
                    self.waiting = data[error.start :]
                    return text
                text, data = text + "\ufffd", data[error.end :]

    def finish(self):
        return self.waiting.decode("utf-8", errors="replace")


WRONG = {
    "stream-swallows-after-odd-bytes": [LongestPrefix, ReplacesAllThatWaits],
    "stream-odd-bytes": changed(Incremental, {'"replace"': '"backslashreplace"'}),
    "stream-half-characters": EachAlone,
    "stream-loses-characters": changed(EachAlone, {'"replace"': '"ignore"'}),
    "stream-shows-again": Again,
    "stream-a-token-late": OneLate,
    "stream-end-forgotten": changed(Incremental, {'self.decoder.decode(b"", True)': '""'}),
    "stream-all-or-nothing": AllOrNothing,
    "stream-users-share": Shared,
    "stream-waits-for-ever": [WaitsForEver, OnlyInvalidStarts],
    "stream-drops-odd-bytes": changed(Incremental, {'"replace"': '"ignore"'}),
    "stream-no-text": changed(Incremental, {"decode(token)": "decode(token) or None"}),
}
