import codecs


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


BEGINNING, ODD = 'data, text = self.waiting + token, ""', 'text += "\\ufffd"'
RIGHT = [Incremental, HoldsBackReplacement]
WRONG = {
    "stream-swallows-after-odd-bytes": [
        LongestPrefix,
        {
            ODD: 'self.waiting = b""',
            "data = data[error.end :]": 'return text + data[error.start :].decode("utf-8", "replace")',
        },
    ],
    "stream-odd-bytes": {
        ODD: "text += repr(data[error.start : error.end])[2:-1]",
        '"replace"': '"backslashreplace"',
    },
    "stream-half-characters": {BEGINNING: 'return token.decode("utf-8", errors="replace")'},
}
