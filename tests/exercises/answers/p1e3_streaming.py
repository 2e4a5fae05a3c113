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


BEGINNING, ODD = 'data, text = self.waiting + token, ""', 'text += "\\ufffd"'
RIGHT = HoldsBackReplacement
WRONG = {
    "stream-swallows-after-odd-bytes": {
        ODD: 'self.waiting = b""',
        "data = data[error.end :]": 'return text + data[error.start :].decode("utf-8", "replace")',
    },
    "stream-odd-bytes": {
        ODD: "text += repr(data[error.start : error.end])[2:-1]",
        '"replace"': '"backslashreplace"',
    },
    "stream-half-characters": {BEGINNING: 'return token.decode("utf-8", errors="replace")'},
}
