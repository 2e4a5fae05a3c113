"""Text from tokens as they arrive."""

import codecs

from phase1_tokens_embeddings.tokens.library_tokenizer import LibraryTokenizer
from phase1_tokens_embeddings.tokens.tokenizer import BPETokenizer

Tokenizer = BPETokenizer | LibraryTokenizer


class StreamDecoder:
    """Turns tokens into text as they arrive, and never shows half a character.

    A token holds bytes, not characters: an emoji of four bytes may come in three tokens. Decoding
    each token by itself would show "�" three times. So bytes that may be the beginning of a
    character wait until the rest is here.

    Some tokenizers put a space before a text, and take it away when they decode. That is for the
    beginning of a text only. The answer of a model goes on where its prompt ended (`continues`):
    there the first space is a space of the text, and stays.

    >>> tok = BPETokenizer.train([""], vocab_size=257)
    >>> stream = StreamDecoder(tok)
    >>> [stream.push(i) for i in tok.encode("é!")]
    ['', 'é', '!']
    """

    def __init__(
        self, tokenizer: Tokenizer, skip_special_tokens: bool = False, continues: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._drops_space = tokenizer.drops_first_space and not continues  # until the first character is here

    def push(self, token_id: int) -> str:
        """Take one token; return the text that is certain now (possibly "")."""
        text = self._utf8.decode(self._tokenizer.decode_bytes([token_id], self._skip))
        if self._drops_space and text:
            self._drops_space = False
            return text.removeprefix(" ")
        return text

    def finish(self) -> str:
        """No more tokens will come: return what waits ("�" for an unfinished character)."""
        return self._utf8.decode(b"", final=True)
