import codecs


class AsPythonDoes:
    def __init__(self):
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token):
        return self.decoder.decode(token)

    def finish(self):
        return self.decoder.decode(b"", final=True)


BEGINNING, ODD = 'data, text = self.waiting + token, ""', 'text += "\\ufffd"'
RIGHT = AsPythonDoes
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
