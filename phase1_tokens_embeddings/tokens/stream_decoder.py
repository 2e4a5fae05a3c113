"""Text from tokens as they arrive."""

import codecs

from phase1_tokens_embeddings.tokens.tokenizer import BPETokenizer


class StreamDecoder:
    """Turns tokens into text as they arrive, and never shows half a character.

    A token holds bytes, not characters: an emoji of four bytes may come in three tokens. Decoding
    each token by itself would show "�" three times. So bytes that may be the beginning of a
    character wait until the rest is here.

    >>> tok = BPETokenizer.train([""], vocab_size=257)
    >>> stream = StreamDecoder(tok)
    >>> [stream.push(i) for i in tok.encode("é!")]
    ['', 'é', '!']
    """

    def __init__(self, tokenizer: BPETokenizer, skip_special_tokens: bool = False) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Take one token; return the text that is certain now (possibly "")."""
        return self._utf8.decode(self._tokenizer.decode_bytes([token_id], self._skip))

    def finish(self) -> str:
        """No more tokens will come: return what waits ("�" for an unfinished character)."""
        return self._utf8.decode(b"", final=True)
