"""A feature: tokenizers that are not byte-level BPE, or are not stored in a tokenizer.json.

It attaches behind the protocol `Tokenizer` (`tokens/stream_decoder.py`): `LibraryTokenizer` has the methods of
`BPETokenizer`, and a GGUF file's vocabulary becomes a `BPETokenizer`.
"""

from phase1_tokens_embeddings.other_tokenizers.gguf_vocabulary import from_gguf_vocabulary, to_gguf_vocabulary
from phase1_tokens_embeddings.other_tokenizers.library_tokenizer import LibraryTokenizer, read_tokenizer
